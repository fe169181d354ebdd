package sglang

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// serving is one call of Serve.
type serving struct {
	b      *Backend
	slot   int
	http   *link.Client
	ctx    context.Context
	cancel context.CancelCauseFunc

	emitMu sync.Mutex
	emit   func(backend.Chunk) error

	mu   sync.Mutex
	free *sync.Cond
	n    int   // requests in flight
	size int64 // bytes of their answers
}

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= len(b.urls) {
		return fmt.Errorf("sglang: slot %d of %d", slot, len(b.urls))
	}
	hc := link.New(b.o.Concurrency)
	defer hc.Close()
	if _, err := b.probe(ctx, hc, slot); err != nil {
		return err
	}
	s := &serving{b: b, slot: slot, http: hc, emit: backend.UntilError(emit)}
	s.free = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	unhook := context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		s.free.Broadcast()
		s.mu.Unlock()
	})
	defer unhook()
	var wg sync.WaitGroup
	s.receive(in, &wg)
	wg.Wait()
	return context.Cause(s.ctx)
}

// receive starts a goroutine for each request, as far as the bounds allow.
func (s *serving) receive(in <-chan backend.Request, wg *sync.WaitGroup) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case rq, ok := <-in:
			if !ok {
				return
			}
			bytes := int64(len(rq.Tokens)) * int64(s.b.o.Hidden) * valueText
			if !s.book(bytes) {
				return
			}
			wg.Go(func() {
				defer s.unbook(bytes)
				s.handle(rq)
			})
		}
	}
}

// book waits for room. A request larger than all of it goes alone.
func (s *serving) book(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ctx.Err() == nil && s.n > 0 && (s.n >= s.b.o.Concurrency || s.size+bytes > maxText) {
		s.free.Wait()
	}
	s.n++
	s.size += bytes
	return s.ctx.Err() == nil
}

func (s *serving) unbook(bytes int64) {
	s.mu.Lock()
	s.n--
	s.size -= bytes
	s.free.Broadcast()
	s.mu.Unlock()
}

// handle answers one request; an endpoint's failure ends Serve.
func (s *serving) handle(rq backend.Request) {
	c := s.b.answer(s.ctx, s.http, s.slot, rq)
	var ee endpointError
	if errors.As(c.Err, &ee) {
		s.cancel(ee.error)
	} else if err := s.give(c); err != nil {
		s.cancel(err)
	}
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
