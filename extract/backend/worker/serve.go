package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"sync"

	"eaglebatch/extract/backend"
)

// pending is a request that the worker has.
type pending struct {
	rq   backend.Request
	sum  uint32 // of the ids
	rows int    // answered
}

// serving is one call of Serve.
type serving struct {
	ctx   context.Context
	p     *process
	freed chan struct{} // a request ended
	ended chan struct{} // the reader did
	err   error         // of the reader; set before ended is closed
	dog   *watchdog

	emitMu sync.Mutex
	emit   func(backend.Chunk) error

	mu      sync.Mutex
	flight  map[uint32]*pending
	seq     uint32
	barrier uint32 // the PONG that ends the reader; 0: none is due
}

// emitError is the caller's own, not the worker's.
type emitError struct{ error }

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= b.o.Workers {
		return fmt.Errorf("worker: slot %d of %d", slot, b.o.Workers)
	}
	p, err := b.acquire(ctx, slot)
	if err != nil {
		return err
	}
	s := &serving{
		ctx: ctx, p: p, emit: backend.UntilError(emit), flight: map[uint32]*pending{},
		freed: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	s.dog = p.watch(s.waiting)
	unhook := context.AfterFunc(ctx, p.end)
	go func() {
		defer close(s.ended)
		s.err = s.read()
	}()
	answered, err := s.write(in)
	if err != nil {
		p.end() // which ends the reader
	}
	<-s.ended
	s.dog.stop()
	ours := unhook()
	err = s.verdict(answered, err)
	if err == nil && s.err == nil && ours {
		b.park(slot, p)
		return nil
	}
	p.kill()
	return err
}

// waiting reports whether the worker owes anything.
func (s *serving) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flight) > 0 || s.barrier != 0
}

// write hands requests to the worker until in is closed and all are answered,
// and then asks it for a last sign that ends the reader.
func (s *serving) write(in <-chan backend.Request) (answered bool, err error) {
	for {
		s.mu.Lock()
		n := len(s.flight)
		s.mu.Unlock()
		if in == nil && n == 0 {
			break
		}
		more := in
		if n >= s.p.hello.MaxInFlight {
			more = nil
		}
		select {
		case <-s.ctx.Done():
			return false, context.Cause(s.ctx)
		case <-s.ended:
			return false, s.err
		case <-s.freed:
		case rq, ok := <-more:
			if !ok {
				in = nil
				continue
			}
			if err := s.request(rq); err != nil {
				return false, err
			}
		}
	}
	s.mu.Lock()
	s.seq++
	s.barrier = s.seq
	s.mu.Unlock()
	return true, s.p.send(Frame{Type: Ping, Seq: s.barrier}, nil)
}

// request sends one request, or refuses it.
func (s *serving) request(rq backend.Request) error {
	if se := s.refuse(rq.Tokens); se != nil {
		return s.give(backend.Chunk{ID: rq.ID, Err: se})
	}
	body := make([]byte, 0, 4*len(rq.Tokens))
	for _, id := range rq.Tokens {
		body = binary.LittleEndian.AppendUint32(body, id)
	}
	s.mu.Lock()
	s.seq++
	seq := s.seq
	s.flight[seq] = &pending{rq: rq, sum: crc32.ChecksumIEEE(body)}
	s.mu.Unlock()
	return s.p.send(Frame{Type: Req, Seq: seq, Body: body}, struct{}{})
}

func (s *serving) refuse(ids []uint32) *backend.SampleError {
	h := &s.p.hello
	permanent := func(code, format string, args ...any) *backend.SampleError {
		return &backend.SampleError{Code: code, Permanent: true, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(ids) == 0:
		return permanent("internal", "a sample without tokens")
	case h.MaxTokens > 0 && len(ids) > h.MaxTokens:
		return permanent("too_long", "%d tokens: the worker takes %d", len(ids), h.MaxTokens)
	case h.Vocab > 0:
		if i := slices.IndexFunc(ids, func(id uint32) bool { return int64(id) >= int64(h.Vocab) }); i >= 0 {
			return permanent("bad_token", "token %d at %d lies outside the vocabulary of %d", ids[i], i, h.Vocab)
		}
	}
	return nil
}

// give hands a chunk to the caller.
func (s *serving) give(c backend.Chunk) error {
	s.emitMu.Lock()
	defer s.emitMu.Unlock()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.dog.pause(true)
	defer s.dog.pause(false)
	if err := s.emit(c); err != nil {
		return emitError{err}
	}
	return nil
}

// read takes frames until the barrier's PONG.
func (s *serving) read() error {
	for {
		f, err := s.p.r.Next()
		if err != nil {
			return err
		}
		s.dog.heard()
		switch f.Type {
		case Resp:
			err = s.answer(f)
		case Fail:
			err = s.failed(f)
		case Pong:
			s.mu.Lock()
			over := s.barrier != 0 && f.Seq == s.barrier
			s.mu.Unlock()
			if over {
				return nil
			}
		case Log:
			s.p.note(f)
		case Bye:
			err = fmt.Errorf("%w: BYE, though it was not told to go", ErrFrame)
		default:
			err = fmt.Errorf("%w: %s from a worker", ErrFrame, f.Type)
		}
		if err != nil {
			return err
		}
	}
}

// answer takes rows.
func (s *serving) answer(f Frame) error {
	var m RespMeta
	if err := f.decode(&m); err != nil {
		return err
	}
	s.mu.Lock()
	w := s.flight[f.Seq]
	s.mu.Unlock()
	h := &s.p.hello
	rows := m.Shape[0]
	switch {
	case w == nil:
		return fmt.Errorf("%w: RESP for %d, which is not in flight", ErrFrame, f.Seq)
	case m.Shape[1] != len(h.Layers) || m.Shape[2] != h.Hidden || m.DType != h.DType:
		return fmt.Errorf("%w: RESP of shape %v %s, agreed were [rows %d %d] %s", ErrFrame, m.Shape, m.DType, len(h.Layers), h.Hidden, h.DType)
	case rows <= 0 || m.First != w.rows || rows > len(w.rq.Tokens)-m.First:
		return fmt.Errorf("%w: RESP with rows [%d,+%d) of %d after %d", ErrFrame, m.First, rows, len(w.rq.Tokens), w.rows)
	case len(f.Body) != rows*len(h.Layers)*h.Hidden*dtypeSize(h.DType):
		return fmt.Errorf("%w: RESP of shape %v %s with %d bytes", ErrFrame, m.Shape, m.DType, len(f.Body))
	}
	c := backend.Chunk{ID: w.rq.ID, First: m.First, Rows: rows, Data: f.Body}
	if m.Tokens != nil {
		if *m.Tokens != w.sum {
			return s.end(f.Seq, backend.Chunk{ID: w.rq.ID, Err: &backend.SampleError{
				Code: "internal", Err: errors.New("the worker computed other token ids than it was given"),
			}})
		}
		if m.First == 0 {
			c.Echo = w.rq.Tokens
		}
	}
	w.rows += rows
	if w.rows == len(w.rq.Tokens) {
		return s.end(f.Seq, c)
	}
	return s.give(c)
}

// failed takes an ERR.
func (s *serving) failed(f Frame) error {
	var m FailMeta
	if err := f.decode(&m); err != nil {
		return err
	}
	s.mu.Lock()
	w := s.flight[f.Seq]
	s.mu.Unlock()
	if w == nil {
		return fmt.Errorf("%w: ERR for %d, which is not in flight: %s: %s", ErrFrame, f.Seq, m.Code, m.Message)
	}
	if m.Code == "" {
		m.Code = "internal"
	}
	return s.end(f.Seq, backend.Chunk{ID: w.rq.ID, Err: &backend.SampleError{Code: m.Code, Permanent: !m.Retryable, Err: errors.New(m.Message)}})
}

// end gives a request's last chunk and its credit back.
func (s *serving) end(seq uint32, c backend.Chunk) error {
	s.mu.Lock()
	delete(s.flight, seq)
	s.mu.Unlock()
	err := s.give(c)
	select {
	case s.freed <- struct{}{}:
	default:
	}
	return err
}

// verdict says how the call ended.
func (s *serving) verdict(answered bool, err error) error {
	var own emitError
	switch {
	case errors.As(s.err, &own) || errors.As(err, &own):
		return own.error
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case answered:
		return nil // and if the last sign did not come, the next call starts anew
	}
	if s.err != nil {
		err = s.err // the reader knows better than a write that failed
	}
	if s.dog.bit() {
		err = s.dog.silence()
	} else if errors.Is(err, io.EOF) && !errors.Is(err, ErrFrame) {
		err = errors.New("it closed the socket")
	}
	s.p.end()
	in := s.inFlight()
	s.p.log.Printf("host: %v; in flight: %s", err, in)
	return fmt.Errorf("%w; in flight: %s", s.p.explain(err), in)
}

// inFlight names the requests that the worker had.
func (s *serving) inFlight() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seqs []uint32
	for seq := range s.flight {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	if len(seqs) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, seq := range seqs {
		w := s.flight[seq]
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%d tokens, %d rows answered)", w.rq.Label(), len(w.rq.Tokens), w.rows)
	}
	return b.String()
}
