package vllm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// serving is one call of Serve.
type serving struct {
	*link.Session
	b     *Backend
	slot  int
	http  *link.Client
	model served
	buf   []byte // of rows on their way to emit
}

const sweepEvery = time.Minute

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= len(b.ends) {
		return fmt.Errorf("vllm: slot %d of %d", slot, len(b.ends))
	}
	hc := link.New(b.o.Concurrency)
	defer hc.Close()
	m, err := b.discover(ctx, hc, slot) // anew: another server may listen there now
	if err != nil {
		return err
	}
	defer b.sweeping(ctx)()
	s := &serving{b: b, slot: slot, http: hc, model: m}
	s.Session = b.ends[slot].Open(ctx, link.Limits{
		Requests: b.o.Concurrency, Bytes: b.o.InFlight, Size: func(tokens int) int64 { return int64(tokens) * int64(b.tokenBytes()) },
		Timeout: b.o.Timeout, Attempts: b.o.Attempts, Backoff: b.o.Backoff,
	}, emit)
	return s.Run(in, s.answer)
}

// sweeping sweeps now, every minute, and once more when it is stopped.
func (b *Backend) sweeping(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	b.Sweep()
	wg.Go(func() {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				b.Sweep()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		b.Sweep()
	}
}

// answer answers one request. An error that is not the sample's ends Serve.
func (s *serving) answer(rq backend.Request) error {
	if err := link.Refuse(rq.Tokens, s.b.o.Vocab); err != nil {
		return err
	}
	if n := s.model.maxLength; n > 0 && len(rq.Tokens) >= n {
		return link.Permanent("too_long", "%d tokens: the server takes %d (--max-model-len %d, one of them generated)", len(rq.Tokens), n-1, n)
	}
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
	ctx, cancel := context.WithTimeout(s.Context(), s.b.o.FileWait)
	defer cancel()
	st, err := open(ctx, path, rq.Tokens, len(s.b.o.Capture), s.b.o.Hidden, dtypes[s.b.o.DType])
	var shape *shapeError
	switch {
	case s.Context().Err() != nil:
		return context.Cause(s.Context())
	case errors.As(err, &shape):
		lost = false
		return s.misconfigured(err)
	case err != nil:
		return sampleFailed(err)
	}
	defer st.close()
	lost = false
	return s.Emit(func(emit func(backend.Chunk) error) error { return s.stream(rq, st, emit) })
}

// stream emits the rows in pieces. The buffer is the endpoint's, and emit's one
// caller at a time has it.
func (s *serving) stream(rq backend.Request, st *states, emit func(backend.Chunk) error) error {
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
		if err := emit(c); err != nil || c.Err != nil {
			return err
		}
	}
	return nil
}

// sampleFailed is a failure that trying again may cure.
func sampleFailed(err error) error { return &backend.SampleError{Code: "internal", Err: err} }

// misconfigured is an endpoint that gives something else than what is wanted.
func (s *serving) misconfigured(err error) error {
	return backend.NoBlame(fmt.Errorf("vllm: %s (version %s): %w; layers %v of hidden size %d in %s are wanted ('eaglebatch doctor' prints how to start the server): %w",
		s.b.Name(s.slot), s.model.version, err, s.b.o.Capture, s.b.o.Hidden, s.b.o.DType, backend.ErrUnavailable))
}

// post sends a request until the server answers it, each time with a new id: a
// file that an earlier attempt leaves must not be taken for this one's.
func (s *serving) post(rq backend.Request) (id string, rp *reply, err error) {
	body := prompt(s.model.model, rq.Tokens)
	err = s.Ask(link.Question{
		Path: completions,
		Send: func(ctx context.Context) error {
			id, rp = s.b.newID(), &reply{}
			err := s.b.ends[s.slot].Do(ctx, s.http, link.Call{Method: http.MethodPost, Path: completions, ID: id, Body: body, Into: rp, Most: maxReply})
			if err != nil {
				s.b.forget(id, true)
			}
			return err
		},
		Refused: func(e *link.StatusError) error { return s.b.classify(s.slot, e) },
		Failed:  s.gaveUp,
	})
	return id, rp, err
}

// gaveUp decides whose fault it is: a server that is well otherwise fails at
// this sample.
func (s *serving) gaveUp(err error) error {
	ctx, cancel := context.WithTimeout(s.Context(), link.Probing)
	defer cancel()
	var se *link.StatusError
	if errors.As(err, &se) && se.Code == http.StatusInternalServerError && s.b.health(ctx, s.http, s.slot) == nil {
		return sampleFailed(err)
	}
	return s.b.ends[s.slot].Unavailable(completions, err)
}
