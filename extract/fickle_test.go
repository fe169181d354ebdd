package extract

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/human"
)

// fickle is an engine that answers one request after the other, and asks before
// each what goes wrong with it: a sample's error, or one that ends the session.
type fickle struct {
	backend.Backend
	fault func(slot int, rq backend.Request) error

	mu sync.Mutex
}

const canaryName = "the canary"

var (
	errFails = &backend.SampleError{Code: "internal", Err: errors.New("scripted")}
	errDies  = fmt.Errorf("it died (scripted): %w", backend.ErrUnavailable)
)

func (f *fickle) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case rq, ok := <-in:
			if !ok {
				return nil
			}
			if err := f.answer(ctx, slot, rq, emit); err != nil {
				return err
			}
		}
	}
}

func (f *fickle) answer(ctx context.Context, slot int, rq backend.Request, emit func(backend.Chunk) error) error {
	f.mu.Lock()
	err := f.fault(slot, rq)
	f.mu.Unlock()
	var se *backend.SampleError
	switch {
	case errors.As(err, &se):
		return emit(backend.Chunk{ID: rq.ID, Err: se})
	case err != nil:
		return err
	}
	one := make(chan backend.Request, 1)
	one <- rq
	close(one)
	return f.Backend.Serve(ctx, slot, one, emit)
}

// left runs with an engine whose faults are scripted, and returns what was left
// out.
func (w *world) left(slots int, change func(*Options), fault func(slot int, rq backend.Request) error) []int {
	w.t.Helper()
	o := w.options(&fickle{Backend: w.backend(slots, ""), fault: fault})
	o.MaxQuarantined, o.backoff = human.Share{Absolute: 1000}, 50*time.Microsecond
	if change != nil {
		change(&o)
	}
	return w.verify(w.seal(o).Generation)
}

// nothingDone runs with an engine that answers no sample: the run ends and no
// sample is blamed for it.
func (w *world) nothingDone(slots int, fault func(slot int, rq backend.Request) error) error {
	w.t.Helper()
	o := w.options(&fickle{Backend: w.backend(slots, ""), fault: fault})
	o.MaxQuarantined, o.Patience = human.Share{Absolute: 1000}, 300*time.Millisecond
	res, err := w.run(w.t.Context(), o)
	if !errors.Is(err, backend.ErrUnavailable) || res.Generation.Quarantined != 0 || w.notes.said("quarantined: ") {
		w.t.Fatalf("%+v, %v, %q", res, err, w.notes.lines)
	}
	return err
}
