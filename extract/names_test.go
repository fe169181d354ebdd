package extract

import (
	"context"
	"slices"
	"sync"
	"testing"

	"eaglebatch/extract/backend"
)

// listening keeps the names of the requests that it hands on.
type listening struct {
	backend.Backend
	mu    sync.Mutex
	names []string
}

func (l *listening) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	heard := make(chan backend.Request)
	go func() {
		defer close(heard)
		for {
			select {
			case <-ctx.Done():
				return
			case rq, ok := <-in:
				if !ok {
					return
				}
				l.mu.Lock()
				l.names = append(l.names, rq.Name)
				l.mu.Unlock()
				select {
				case heard <- rq:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return l.Backend.Serve(ctx, slot, heard, emit)
}

// TestNames: an engine is told which sample of which dataset a request is for,
// so that its log can name what it died of.
func TestNames(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(3, 20)})
	l := &listening{Backend: w.backend(1, "")}
	w.seal(w.options(l))
	if want := []string{"the canary", "A1 sample 0", "A1 sample 1", "A1 sample 2"}; !slices.Equal(l.names, want) {
		t.Errorf("named %q, want %q", l.names, want)
	}
}
