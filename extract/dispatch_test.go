package extract

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/enginetest"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/internal/fsx"
)

// timed is a set of engines that compute one sample at a time at a rate each,
// ask for more meanwhile, and may be gone for good after a while.
type timed struct {
	shape shape
	rates []float64             // tokens a second, by slot
	until map[int]time.Duration // when a slot dies; others do not
	began time.Time             // of the first Serve
	rows  func(ids []uint32) []byte
}

func (e *timed) Describe(context.Context) (backend.Info, error) {
	return backend.Info{Engine: "timed", Version: "1", Hidden: e.shape.hidden, Layers: e.shape.layers, Vocab: testVocab, Capture: e.shape.capture,
		DType: e.shape.dtype, LastPreNorm: true, Slots: len(e.rates), MaxInFlight: 8, Synthetic: true, Deterministic: true}, nil
}

func (e *timed) Close() error { return nil }

func (e *timed) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan backend.Request, 8)
	go func() {
		defer close(queue)
		for {
			select {
			case <-ctx.Done():
				return
			case rq, ok := <-in:
				if !ok {
					return
				}
				select {
				case queue <- rq:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	var death <-chan time.Time
	if d, dies := e.until[slot]; dies {
		death = time.After(time.Until(e.began.Add(d)))
	}
	gone := fmt.Errorf("slot %d is gone: %w", slot, backend.ErrUnavailable)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-death:
			return gone
		case rq, ok := <-queue:
			if !ok {
				return ctx.Err()
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-death:
				return gone
			case <-time.After(duration(int64(len(rq.Tokens)), e.rates[slot])):
			}
			if err := emit(backend.Chunk{ID: rq.ID, Rows: len(rq.Tokens), Data: e.rows(rq.Tokens), Echo: rq.Tokens}); err != nil {
				return err
			}
		}
	}
}

// allows is the time that so many tokens take with the capacity there is.
func (e *timed) allows(tokens float64) time.Duration {
	var ends []time.Duration
	for slot := range e.rates {
		if d, dies := e.until[slot]; dies {
			ends = append(ends, d)
		}
	}
	slices.Sort(ends)
	at := time.Duration(0)
	for _, end := range append(ends, never) {
		rate := 0.0
		for slot, r := range e.rates {
			if d, dies := e.until[slot]; !dies || d > at {
				rate += r
			}
		}
		done := rate * (end - at).Seconds()
		if done >= tokens {
			return at + time.Duration(tokens/rate*float64(time.Second))
		}
		tokens -= done
		at = end
	}
	return never
}

// dispatched are sets of endpoints.
var dispatched = []struct {
	name  string
	rates []float64
	until map[int]time.Duration
}{
	{"one", []float64{1000}, nil},
	{"two alike", []float64{1000, 1000}, nil},
	{"one slow by five times", []float64{1000, 200}, nil},
	{"one dies half way", []float64{1000, 1000}, map[int]time.Duration{1: 60 * time.Second}},
	{"a slow one, and one dies half way", []float64{1000, 200, 1000}, map[int]time.Duration{2: 60 * time.Second}},
	{"the slow one survives", []float64{1000, 200}, map[int]time.Duration{0: 100 * time.Second}},
}

// dispatch extracts 300 samples and returns how long it took by the clock that t
// runs by, beside what the capacity allows; booked is what the ledger says.
func dispatch(t testing.TB, rates []float64, until map[int]time.Duration) (took, allowed, booked time.Duration) {
	n := lengths(300, 1000)
	w := newWorld(t, planned{lengths: n, perBlob: 5})
	w.rows = func(ids []uint32) []byte { return enginetest.Rows(ids, w.shape.capture, w.shape.hidden) }
	e := &timed{shape: w.shape, rates: rates, until: until, began: time.Now(), rows: w.rows}
	o := w.options(e)
	o.Patience, o.backoff = time.Hour, 250*time.Millisecond
	g := w.seal(o).Generation
	took = time.Since(e.began)
	if gone := w.verify(g); len(gone) > 0 {
		t.Errorf("left out: %v", gone)
	}
	return took, e.allows(float64(sum(n))), time.Duration(g.Seconds * float64(time.Second))
}

// TestDispatch runs endpoints of different speeds, some of which die, on a clock
// that goes on only when everybody waits: the time is that of the scheduling, on
// a machine of any speed. It is within a tenth of what the capacity allows.
func TestDispatch(t *testing.T) {
	for _, c := range dispatched {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, allowed, booked := dispatch(t, c.rates, c.until)
				t.Logf("%.1f s, the capacity allows %.1f s: %.3f", took.Seconds(), allowed.Seconds(), took.Seconds()/allowed.Seconds())
				if booked > took || booked < took*9/10 {
					t.Errorf("the ledger has %s of %s, in which there was always an engine that worked", booked, took)
				}
				if took > allowed*11/10 {
					t.Errorf("it took %s, and the capacity allows %s", took, allowed)
				}
			})
		})
	}
}

// TestSlowCommits: an engine that is faster than the disk waits for it, so that a
// crash never costs more than a few blobs.
func TestSlowCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun, most := 0, 0
		isBlob := func(op fsx.Op, k fsx.Kind) bool { return op.Kind == k && strings.Contains(op.Path, ".ebb") }
		w := newWorld(t, planned{lengths: lengths(120, 20), perBlob: 3, fs: &fsx.FS{Trace: func(op fsx.Op) {
			switch {
			case isBlob(op, fsx.OpCreate):
				mu.Lock()
				begun++
				most = max(most, begun)
				mu.Unlock()
			case isBlob(op, fsx.OpRename):
				time.Sleep(time.Hour)
				mu.Lock()
				begun--
				mu.Unlock()
			}
		}}})
		w.rows = func(ids []uint32) []byte { return enginetest.Rows(ids, w.shape.capture, w.shape.hidden) }
		o := w.options(&timed{shape: w.shape, rates: []float64{1e9}, began: time.Now(), rows: w.rows})
		w.verify(w.seal(o).Generation)
		if begun != 0 || most > maxUncommitted {
			t.Errorf("%d blobs were begun and not committed, at most %d should be", most, maxUncommitted)
		}
	})
}

// BenchmarkDispatch does the same by the wall clock, twenty times as fast.
func BenchmarkDispatch(b *testing.B) {
	for _, c := range dispatched {
		b.Run(c.name, func(b *testing.B) {
			rates, until := slices.Clone(c.rates), map[int]time.Duration{}
			for i := range rates {
				rates[i] *= 20
			}
			for slot, d := range c.until {
				until[slot] = d / 20
			}
			var took, allowed time.Duration
			for b.Loop() {
				t, a, _ := dispatch(b, rates, until)
				took, allowed = took+t, allowed+a
			}
			b.ReportMetric(float64(took)/float64(allowed), "of-what-capacity-allows")
		})
	}
}

// BenchmarkEndpoints has three vLLM servers (fakes, over HTTP), one slower by five
// times and one that dies half way.
func BenchmarkEndpoints(b *testing.B) {
	rates, until := []float64{5000, 1000, 5000}, map[int]time.Duration{2: 10 * time.Second}
	var took, allowed time.Duration
	for b.Loop() {
		n := lengths(300, 1000)
		w := vllmWorld(b, planned{lengths: n, perBlob: 5})
		dir := b.TempDir()
		var urls []string
		for i, rate := range rates {
			v, url := vllmServer(b, dir, func(v *enginetest.VLLM) { v.Rate = rate })
			urls = append(urls, url)
			if d, dies := until[i]; dies {
				defer time.AfterFunc(d, v.Kill).Stop()
			}
		}
		client := vllmClient(b, dir, urls, func(o *vllm.Options) { o.Concurrency = 4 })
		o := w.options(client)
		o.Patience = time.Minute
		began := time.Now()
		g := w.seal(o).Generation
		took += time.Since(began)
		w.must(client.Close())
		if gone := w.verify(g); len(gone) > 0 {
			b.Errorf("left out: %v", gone)
		}
		allowed += (&timed{rates: rates, until: until}).allows(float64(sum(n)))
	}
	b.ReportMetric(float64(took)/float64(allowed), "of-what-capacity-allows")
}
