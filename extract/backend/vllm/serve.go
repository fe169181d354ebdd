package vllm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// serving is one call of Serve.
type serving struct {
	b      *Backend
	slot   int
	http   *link.Client
	model  served
	ctx    context.Context
	cancel context.CancelCauseFunc
	// taking ends when nothing more is to be sent; what is in flight goes on.
	taking context.Context
	leave  context.CancelCauseFunc

	emitMu sync.Mutex
	emit   func(backend.Chunk) error
	buf    []byte

	mu   sync.Mutex
	free *sync.Cond
	n    int   // requests in flight
	size int64 // bytes of their states
}

const sweepEvery = time.Minute

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= len(b.urls) {
		return fmt.Errorf("vllm: slot %d of %d", slot, len(b.urls))
	}
	hc := link.New(b.o.Concurrency)
	defer hc.Close()
	m, err := b.discover(ctx, hc, slot) // anew: another server may listen there now
	if err != nil {
		return err
	}
	b.Sweep()
	defer b.Sweep()
	s := &serving{b: b, slot: slot, http: hc, model: m, emit: backend.UntilError(emit)}
	s.free = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	s.taking, s.leave = context.WithCancelCause(s.ctx)
	defer s.leave(nil)
	unhook := context.AfterFunc(s.taking, func() {
		s.mu.Lock()
		s.free.Broadcast()
		s.mu.Unlock()
	})
	defer unhook()
	var wg sync.WaitGroup
	s.receive(in, &wg)
	wg.Wait()
	return context.Cause(s.taking)
}

// receive starts a goroutine for each request, as far as the bounds allow.
func (s *serving) receive(in <-chan backend.Request, wg *sync.WaitGroup) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-s.taking.Done():
			return
		case <-sweep.C:
			s.b.Sweep()
		case rq, ok := <-in:
			if !ok {
				return
			}
			bytes := int64(len(rq.Tokens)) * int64(s.b.tokenBytes())
			if !s.book(bytes) {
				return
			}
			wg.Go(func() {
				defer s.unbook(bytes)
				err := s.handle(rq)
				var lost *lostError
				switch {
				case errors.As(err, &lost):
					s.leave(err)
				case err != nil:
					s.cancel(err)
				}
			})
		}
	}
}

// book waits for room. A request larger than all of it goes alone.
func (s *serving) book(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.taking.Err() == nil && s.n > 0 && (s.n >= s.b.o.Concurrency || s.size+bytes > s.b.o.InFlight) {
		s.free.Wait()
	}
	s.n++
	s.size += bytes
	return s.taking.Err() == nil
}

func (s *serving) unbook(bytes int64) {
	s.mu.Lock()
	s.n--
	s.size -= bytes
	s.free.Broadcast()
	s.mu.Unlock()
}

// lostError says that the server was lost sight of. What it was asked before that
// it may still answer.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// handle answers one request. An error is the endpoint's, and ends Serve.
func (s *serving) handle(rq backend.Request) error {
	err := s.refuse(rq.Tokens)
	if err == nil {
		err = s.ask(rq)
	}
	var se *backend.SampleError
	if errors.As(err, &se) {
		return s.give(backend.Chunk{ID: rq.ID, Err: se})
	}
	return err
}

// refuse tells what the server would refuse.
func (s *serving) refuse(ids []uint32) error {
	permanent := func(code, format string, args ...any) error {
		return &backend.SampleError{Code: code, Permanent: true, Err: fmt.Errorf(format, args...)}
	}
	if len(ids) == 0 {
		return permanent("internal", "a sample without tokens")
	}
	if n := s.model.maxLength; n > 0 && len(ids) >= n {
		return permanent("too_long", "%d tokens: the server takes %d (--max-model-len %d, one of them generated)", len(ids), n-1, n)
	}
	if v := s.b.o.Vocab; v > 0 {
		if i := slices.IndexFunc(ids, func(id uint32) bool { return int64(id) >= int64(v) }); i >= 0 {
			return permanent("bad_token", "token %d at %d lies outside the vocabulary of %d", ids[i], i, v)
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
	return s.emit(c)
}

// ask posts a request and hands its states on.
func (s *serving) ask(rq backend.Request) error {
	id, rp, err := s.post(rq)
	if err != nil {
		return err
	}
	lost := true
	defer func() { s.b.forget(id, lost) }()
	if len(rp.Choices) > 0 && rp.Choices[0].Prompt != nil && !slices.Equal(rp.Choices[0].Prompt, rq.Tokens) {
		return sampleFailed(errors.New("the server used other token ids than were sent"))
	}
	if rp.KV == nil || rp.KV.Path == "" {
		return s.misconfigured(errors.New("the answer names no file of states: was the server started with --kv-transfer-config and --speculative-config?"))
	}
	path, err := s.b.local(rp.KV.Path)
	if err != nil {
		return s.misconfigured(err)
	}
	defer remove(path) // all rows are handed on, or the file is of no use
	ctx, cancel := context.WithTimeout(s.ctx, s.b.o.FileWait)
	defer cancel()
	st, err := open(ctx, path, rq.Tokens, len(s.b.o.Capture), s.b.o.Hidden, dtypes[s.b.o.DType])
	var shape *shapeError
	switch {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case errors.As(err, &shape):
		lost = false
		return s.misconfigured(err)
	case err != nil:
		return sampleFailed(err)
	}
	defer st.close()
	lost = false
	return s.stream(rq, st)
}

// stream emits the rows in pieces. The emitter's buffer is the endpoint's.
func (s *serving) stream(rq backend.Request, st *states) error {
	s.emitMu.Lock()
	defer s.emitMu.Unlock()
	tb := s.b.tokenBytes()
	step := max(1, s.b.o.chunk/tb)
	if len(s.buf) < step*tb {
		s.buf = make([]byte, step*tb)
	}
	for first := 0; first < len(rq.Tokens); first += step {
		c := backend.Chunk{ID: rq.ID, First: first, Rows: min(step, len(rq.Tokens)-first)}
		if first == 0 {
			c.Echo = rq.Tokens // as verified
		}
		c.Data = s.buf[:c.Rows*tb]
		if _, err := st.f.ReadAt(c.Data, st.h.data+st.h.states.Offsets[0]+int64(first)*int64(tb)); err != nil {
			c = backend.Chunk{ID: rq.ID, Err: sampleFailed(err)}
		}
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if err := s.emit(c); err != nil || c.Err != nil {
			return err
		}
	}
	return nil
}

// sampleFailed is a failure that trying again may cure.
func sampleFailed(err error) error { return &backend.SampleError{Code: "internal", Err: err} }

// misconfigured is an endpoint that gives something else than what is wanted.
func (s *serving) misconfigured(err error) error {
	return fmt.Errorf("vllm: %s (version %s): %w; layers %v of hidden size %d in %s are wanted ('eaglebatch doctor' prints how to start the server): %w",
		s.b.Name(s.slot), s.model.version, err, s.b.o.Capture, s.b.o.Hidden, s.b.o.DType, backend.ErrUnavailable)
}

// post sends a request until the server answers it. While the server fails it
// tries again, each time with a new id: a file that an earlier attempt leaves
// must not be taken for this one's.
func (s *serving) post(rq backend.Request) (string, *reply, error) {
	body := prompt(s.model.model, rq.Tokens)
	for attempt := 1; ; attempt++ {
		if s.taking.Err() != nil {
			return "", nil, context.Cause(s.taking)
		}
		id := s.b.newID()
		var rp reply
		ctx, cancel := context.WithTimeout(s.ctx, s.b.o.Timeout)
		err := s.b.do(ctx, s.http, s.slot, "POST", "/v1/completions", id, body, &rp)
		cancel()
		if err == nil {
			return id, &rp, nil
		}
		s.b.forget(id, true)
		if s.ctx.Err() != nil {
			return "", nil, context.Cause(s.ctx)
		}
		var se *statusError
		if errors.As(err, &se) && se.lasting() {
			return "", nil, s.b.classify(s.slot, se)
		}
		if severed(err) {
			return "", nil, &lostError{s.b.endpointError(s.slot, "/v1/completions", err)}
		}
		if attempt >= s.b.o.Attempts {
			return "", nil, s.gaveUp(err, attempt)
		}
		if err := s.backoff(attempt, se); err != nil {
			return "", nil, err
		}
	}
}

// backoff waits before the next attempt: longer each time, and never the same.
func (s *serving) backoff(attempt int, se *statusError) error {
	d := s.b.o.Backoff << (attempt - 1)
	d = d/2 + rand.N(d)
	if se != nil && se.after > d {
		d = se.after
	}
	select {
	case <-s.taking.Done():
		return context.Cause(s.taking)
	case <-time.After(d):
		return nil
	}
}

// gaveUp decides whose fault it is: a server that is well otherwise fails at
// this sample.
func (s *serving) gaveUp(err error, attempts int) error {
	ctx, cancel := context.WithTimeout(s.ctx, probing)
	defer cancel()
	err = fmt.Errorf("%d attempts: the last: %w", attempts, err)
	var se *statusError
	if errors.As(err, &se) && se.code == 500 && s.b.health(ctx, s.http, s.slot) == nil {
		return sampleFailed(err)
	}
	return s.b.endpointError(s.slot, "/v1/completions", err)
}
