package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
)

// Limits bound what a session has in flight, and how long it tries.
type Limits struct {
	Requests int   // at a time
	Bytes    int64 // of what Size says; a request larger than all of it goes alone
	Size     func(tokens int) int64
	Timeout  time.Duration // of one answer
	Attempts int           // for one request while the server fails
	Backoff  time.Duration // before the second attempt, doubling
}

// Session is one Serve of a backend.
type Session struct {
	e      *Endpoint
	l      Limits
	ctx    context.Context // of all that it does
	cancel context.CancelCauseFunc
	// taking ends when nothing more is to be sent; what is in flight goes on.
	taking context.Context
	leave  context.CancelCauseFunc

	emitMu sync.Mutex
	emit   func(backend.Chunk) error

	mu   sync.Mutex
	free *sync.Cond
	n    int // requests in flight
	size int64
}

// Open begins a session; Run must follow.
func (e *Endpoint) Open(ctx context.Context, l Limits, emit func(backend.Chunk) error) *Session {
	s := &Session{e: e, l: l, emit: backend.UntilError(emit)}
	s.free = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.taking, s.leave = context.WithCancelCause(s.ctx)
	return s
}

// Run takes requests from in, as many at a time as the limits allow, and has each
// answered on a goroutine of its own, until in is closed and all are answered. An
// error of answer is the sample's, if it is a backend.SampleError; any other is
// the endpoint's, and ends the session.
func (s *Session) Run(in <-chan backend.Request, answer func(backend.Request) error) error {
	defer s.cancel(nil)
	defer s.leave(nil)
	unhook := context.AfterFunc(s.taking, func() {
		s.mu.Lock()
		s.free.Broadcast()
		s.mu.Unlock()
	})
	defer unhook()
	var wg sync.WaitGroup
	s.receive(in, answer, &wg)
	wg.Wait()
	return context.Cause(s.taking)
}

func (s *Session) receive(in <-chan backend.Request, answer func(backend.Request) error, wg *sync.WaitGroup) {
	for {
		select {
		case <-s.taking.Done():
			return
		case rq, ok := <-in:
			if !ok {
				return
			}
			bytes := s.l.Size(len(rq.Tokens))
			if !s.book(bytes) {
				return
			}
			wg.Go(func() {
				defer s.unbook(bytes)
				s.end(rq, answer(rq))
			})
		}
	}
}

// book waits for room.
func (s *Session) book(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.taking.Err() == nil && s.n > 0 && (s.n >= s.l.Requests || s.size+bytes > s.l.Bytes) {
		s.free.Wait()
	}
	s.n++
	s.size += bytes
	return s.taking.Err() == nil
}

func (s *Session) unbook(bytes int64) {
	s.mu.Lock()
	s.n--
	s.size -= bytes
	s.free.Broadcast()
	s.mu.Unlock()
}

// end draws the consequences of how a request ended.
func (s *Session) end(rq backend.Request, err error) {
	var se *backend.SampleError
	if errors.As(err, &se) {
		err = s.Give(backend.Chunk{ID: rq.ID, Err: se})
	}
	var lost *lostError
	switch {
	case errors.As(err, &lost):
		s.leave(err)
	case err != nil:
		s.cancel(err)
	}
}

// lostError says that the server was lost sight of. What it was asked before that
// it may still answer.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// Context ends when nothing is waited for any more.
func (s *Session) Context() context.Context { return s.ctx }

// Give hands a chunk to the caller of Serve.
func (s *Session) Give(c backend.Chunk) error {
	return s.Emit(func(emit func(backend.Chunk) error) error { return emit(c) })
}

// Emit hands chunks of one request to the caller of Serve, nobody else's between
// them.
func (s *Session) Emit(chunks func(emit func(backend.Chunk) error) error) error {
	s.emitMu.Lock()
	defer s.emitMu.Unlock()
	return chunks(func(c backend.Chunk) error {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		return s.emit(c)
	})
}

// Question is a request to the server.
type Question struct {
	Path string
	// Send makes one attempt, and keeps the answer.
	Send func(context.Context) error
	// Refused says whose failure a lasting refusal is.
	Refused func(*StatusError) error
	// Failed says whose failure it is that all attempts failed, of which err was
	// the last.
	Failed func(err error) error
}

// Ask sends a question until it is answered. A server that broke the connection
// is asked nothing more, since it may be another one now.
func (s *Session) Ask(q Question) error {
	var last error
	for attempt := 1; ; attempt++ {
		if s.taking.Err() != nil {
			return context.Cause(s.taking)
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.l.Timeout)
		err := q.Send(ctx)
		cancel()
		var se *StatusError
		switch {
		case err == nil:
			return nil
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case errors.As(err, &se) && se.Lasting():
			return q.Refused(se)
		case Severed(err):
			if last != nil && errors.Is(err, backend.ErrReconnect) {
				err = last // it took the last connection with it
			}
			return &lostError{s.e.Unavailable(q.Path, err)}
		case attempt >= s.l.Attempts:
			return q.Failed(fmt.Errorf("%d attempts: the last: %w", attempt, err))
		}
		last = err
		if err := s.backoff(attempt, se); err != nil {
			return err
		}
	}
}

// backoff waits before the next attempt: longer each time, and never the same.
func (s *Session) backoff(attempt int, se *StatusError) error {
	d := s.l.Backoff << (attempt - 1)
	d = d/2 + rand.N(d)
	if se != nil {
		d = max(d, se.after)
	}
	select {
	case <-s.taking.Done():
		return context.Cause(s.taking)
	case <-time.After(d):
		return nil
	}
}

// Refuse tells what no server takes: no tokens, and tokens outside a vocabulary
// (0: it is not known).
func Refuse(ids []uint32, vocab int) error {
	if len(ids) == 0 {
		return Permanent("internal", "a sample without tokens")
	}
	if i := slices.IndexFunc(ids, func(id uint32) bool { return vocab > 0 && int64(id) >= int64(vocab) }); i >= 0 {
		return Permanent("bad_token", "token %d at %d lies outside the vocabulary of %d", ids[i], i, vocab)
	}
	return nil
}

// Permanent is a sample's failure that trying again cannot help.
func Permanent(code, format string, args ...any) error {
	return &backend.SampleError{Code: code, Permanent: true, Err: fmt.Errorf(format, args...)}
}
