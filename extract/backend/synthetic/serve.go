package synthetic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
)

// server is one call of Serve.
type server struct {
	b    *Backend
	slot int
	v    *values
	emit func(backend.Chunk) error
	rate float64   // tokens a second; 0: no bound
	due  time.Time // when the engine has computed what it began
	buf  []byte
}

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= b.o.Slots {
		return fmt.Errorf("synthetic: slot %d of %d", slot, b.o.Slots)
	}
	if b.script.down || b.serves.Add(1) <= b.script.downServes {
		return fmt.Errorf("synthetic: slot %d: %w (scripted)", slot, backend.ErrUnavailable)
	}
	s := &server{b: b, slot: slot, v: b.slotValues(slot), emit: emit, rate: b.o.Rate, due: time.Now()}
	if f := b.script.slow[slot]; f > 0 {
		s.rate /= f
	}
	s.buf = make([]byte, b.o.ChunkRows*s.v.tokenBytes())

	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan backend.Request, b.o.InFlight)
	received := make(chan struct{})
	go func() {
		defer close(received)
		receive(ctx, in, queue)
	}()
	err := s.run(ctx, queue)
	cancel()
	<-received
	return err
}

// receive moves requests to the queue until in is closed or ctx ends.
func receive(ctx context.Context, in <-chan backend.Request, queue chan<- backend.Request) {
	defer close(queue)
	for {
		select {
		case rq, ok := <-in:
			if !ok {
				return
			}
			select {
			case queue <- rq:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) run(ctx context.Context, queue <-chan backend.Request) error {
	var window []backend.Request
	for {
		if len(window) == 0 {
			select {
			case rq, ok := <-queue:
				if !ok {
					return ctx.Err()
				}
				window = append(window, rq)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		at := 0
		if s.b.script.outOfOrder {
			window = fill(window, queue, s.b.o.InFlight)
			at = int(mix(window[0].ID) % uint64(len(window)))
		}
		rq := window[at]
		window = slices.Delete(window, at, at+1)
		if err := s.answer(ctx, rq); err != nil {
			return err
		}
	}
}

// fill adds what has already arrived, up to n requests.
func fill(window []backend.Request, queue <-chan backend.Request, n int) []backend.Request {
	for len(window) < n {
		select {
		case rq, ok := <-queue:
			if !ok {
				return window
			}
			window = append(window, rq)
		default:
			return window
		}
	}
	return window
}

func (s *server) answer(ctx context.Context, rq backend.Request) error {
	n := s.b.began.Add(1)
	faults := s.b.script.at[n]
	has := func(name string) bool { return slices.Contains(faults, name) }
	switch {
	case has("drift"):
		s.b.mu.Lock()
		s.b.drift[s.slot] = true
		s.b.mu.Unlock()
		return s.died(n)
	case has("die"), anyOf(s.b.script.poison, rq.Tokens):
		return s.died(n)
	case has("hang"):
		<-ctx.Done()
		return ctx.Err()
	case has("lost"):
		return nil
	case has("flaky"):
		return s.refuse(rq, "internal", false, "scripted")
	case anyOf(s.b.script.refuse, rq.Tokens):
		return s.refuse(rq, "internal", true, "scripted")
	case s.b.o.MaxTokens > 0 && len(rq.Tokens) > s.b.o.MaxTokens:
		return s.refuse(rq, "too_long", true, fmt.Sprintf("%d tokens of at most %d", len(rq.Tokens), s.b.o.MaxTokens))
	case len(rq.Tokens) == 0:
		return s.refuse(rq, "internal", true, "no tokens")
	}
	if v := s.b.o.Vocab; v > 0 {
		for _, id := range rq.Tokens {
			if int(id) >= v {
				return s.refuse(rq, "bad_token", true, fmt.Sprintf("token id %d of %d", id, v))
			}
		}
	}
	if has("stray") {
		data := s.buf[:s.v.tokenBytes()]
		s.v.row(data, s.v.start())
		if err := s.emit(backend.Chunk{ID: ^rq.ID, Rows: 1, Data: data}); err != nil {
			return err
		}
	}
	times := 1
	if has("dup") {
		times = 2
	}
	for range times {
		if err := s.stream(ctx, rq, has); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) died(n int64) error {
	return fmt.Errorf("synthetic: slot %d died at request %d: %w (scripted)", s.slot, n, backend.ErrUnavailable)
}

func (s *server) refuse(rq backend.Request, code string, permanent bool, why string) error {
	return s.emit(backend.Chunk{ID: rq.ID, Err: &backend.SampleError{Code: code, Permanent: permanent, Err: errors.New(why)}})
}

// stream computes and emits a request chunk by chunk.
func (s *server) stream(ctx context.Context, rq backend.Request, has func(string) bool) error {
	state, tb := s.v.start(), s.v.tokenBytes()
	for first := 0; first < len(rq.Tokens); first += s.b.o.ChunkRows {
		n := min(s.b.o.ChunkRows, len(rq.Tokens)-first)
		data := s.buf[:n*tb]
		for i := range n {
			state = s.v.next(state, rq.Tokens[first+i])
			s.v.row(data[i*tb:][:tb], state)
		}
		c := backend.Chunk{ID: rq.ID, First: first, Rows: n, Data: data}
		if first == 0 {
			c.Echo = rq.Tokens
		}
		s.spoil(&c, len(rq.Tokens), has)
		if err := s.pace(ctx, n); err != nil {
			return err
		}
		if err := s.emit(c); err != nil {
			return err
		}
	}
	return nil
}

// spoil applies the faults that change an answer's content.
func (s *server) spoil(c *backend.Chunk, rows int, has func(string) bool) {
	last := c.First+c.Rows == rows
	if has("wrong-ids") && c.First == 0 {
		c.Echo = slices.Clone(c.Echo)
		c.Echo[len(c.Echo)-1] ^= 1
	}
	if has("short") && last {
		c.Data = c.Data[:len(c.Data)-s.v.tokenBytes()]
	}
	if has("nan") && last {
		for i := range s.v.f.size {
			c.Data[len(c.Data)-1-i] = 0xff
		}
	}
	if has("zero-row") && last {
		clear(c.Data[len(c.Data)-s.v.rowBytes:])
	}
}

// slack is how far an engine may compute ahead of a caller that is slow to take
// answers.
const slack = 250 * time.Millisecond

// pace waits until an engine of the set rate would have computed n more tokens.
func (s *server) pace(ctx context.Context, n int) error {
	if s.rate <= 0 {
		return ctx.Err()
	}
	// A real engine goes on computing while its last answers are taken, up to
	// what it may have in flight; so a short delay is caught up with.
	if late := time.Now().Add(-slack); s.due.Before(late) {
		s.due = late
	}
	s.due = s.due.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
	t := time.NewTimer(time.Until(s.due))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
