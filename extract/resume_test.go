package extract

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/backend/synthetic"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/storetest"
)

func TestStops(t *testing.T) {
	p := planned{lengths: lengths(40, 60), repeats: 10}
	want := reference(t, p)
	t.Run("limit", func(t *testing.T) { stopAtLimits(t, p, want) })
	t.Run("until", func(t *testing.T) {
		w := newWorld(t, p)
		o := w.options(w.rated(1, 500, ""))
		o.Until = time.Now().Add(50 * time.Millisecond)
		res, err := w.run(t.Context(), o)
		w.must(err)
		if !res.Stopped || res.Sealed {
			t.Fatalf("%+v", res)
		}
		sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))
	})
	t.Run("interrupt", func(t *testing.T) {
		w := newWorld(t, p)
		stop, once := make(chan struct{}), sync.Once{}
		w.notes.onAdd = func(n int64) {
			if n == 5 {
				once.Do(func() { close(stop) })
			}
		}
		o := w.options(w.rated(1, 20000, ""))
		o.Interrupt = stop
		res, err := w.run(t.Context(), o)
		w.must(err)
		if !res.Stopped || res.Generation.Blobs == 0 {
			t.Fatalf("%+v", res)
		}
		w.notes.onAdd = nil
		sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))
	})
	t.Run("grace", func(t *testing.T) {
		w := newWorld(t, p)
		stop := make(chan struct{})
		close(stop)
		o := w.options(w.backend(1, "hang@6"))
		o.Interrupt, o.Grace = stop, 100*time.Millisecond
		res, err := w.run(t.Context(), o)
		w.must(err)
		if !res.Stopped {
			t.Fatalf("%+v", res)
		}
		sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))
	})
}

// stopAtLimits runs with a growing limit until the generation is sealed.
func stopAtLimits(t *testing.T, p planned, want map[string]string) {
	t.Helper()
	w := newWorld(t, p)
	done := int64(0)
	for i := range 10 {
		o := w.options(w.backend(2, ""))
		o.Limit = int64(10 * (i + 1))
		res, err := w.run(t.Context(), o)
		w.must(err)
		if res.Sealed {
			break
		}
		if !res.Stopped || res.Generation.Distinct < done {
			t.Fatalf("limit %d: %+v", o.Limit, res)
		}
		done = res.Generation.Distinct
		if most := o.Limit + 8; done > most {
			t.Errorf("limit %d: %d samples done", o.Limit, done)
		}
	}
	sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, "unavailable"))).Generation))
}

// TestCancelEverywhere cancels at every sample in turn.
func TestCancelEverywhere(t *testing.T) {
	p := planned{lengths: lengths(24, 60)}
	want := reference(t, p)
	for at := int64(1); at <= 24; at += 2 {
		w := newWorld(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		w.notes.onAdd = func(n int64) {
			if n >= at {
				cancel()
			}
		}
		res, err := w.run(ctx, w.options(w.backend(2, "")))
		if err == nil && !res.Sealed || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("at %d: %+v, %v", at, res, err)
		}
		w.notes.onAdd = nil
		sameFiles(t, want, w.files(w.seal(w.options(w.backend(2, ""))).Generation))
		cancel()
	}
}

// TestFaultPoints fails at every hit of every point in turn, and again during
// the resume.
func TestFaultPoints(t *testing.T) {
	failAtPoints(t, planned{lengths: lengths(12, 60)}, []fault.Point{
		fault.ExtractBegin, fault.BlobBeforeSync, fault.BlobBeforeRename, fault.BlobAfterRename, fault.BlobAfterCommit,
		fault.SealBeforeIndex, fault.SealBeforeManifest, fault.SealAfterManifest, fault.SealAfterCommit,
		fault.LedgerBeforeAppend, fault.LedgerAfterAppend, fault.LedgerAfterCommit,
	})
}

func failAtPoints(t *testing.T, p planned, points []fault.Point) {
	t.Helper()
	want := reference(t, p)
	for _, point := range points {
		hits := 0
		for n := int64(1); ; n++ {
			w := newWorld(t, p)
			dir := w.ws.Dir()
			w.must(w.ws.Close())
			fs := &fsx.FS{Faults: fault.New(point, n)}
			w.ws = storetest.MustInitFS(t, dir, fs)
			res, err := w.run(t.Context(), w.options(w.backend(2, "")))
			if err != nil && !errors.Is(err, fault.ErrInjected) {
				t.Fatalf("%s hit %d: %v", point, n, err)
			}
			if err == nil {
				sameFiles(t, want, w.files(res.Generation))
				break
			}
			hits++
			w.must(w.ws.Close())
			w.ws = storetest.MustOpen(t, dir)
			sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))
		}
		if hits == 0 {
			t.Errorf("%s was never reached", point)
		}
	}
}

func TestNoRoom(t *testing.T) {
	p := planned{lengths: lengths(12, 60)}
	want := reference(t, p)
	w := newWorld(t, p)
	o := w.options(w.backend(1, ""))
	o.Reserve = human.Share{Fraction: 1, Relative: true}
	_, err := w.run(t.Context(), o)
	var se *store.SpaceError
	if !errors.As(err, &se) || !errors.Is(err, store.ErrDiskFull) || se.Missing() <= 0 {
		t.Fatalf("%v, want SpaceError", err)
	}
	sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))
}

// TestLongSample: a sample larger than the memory streams through in row
// ranges, also when the engine dies in the middle of it.
func TestLongSample(t *testing.T) {
	sh := shape{hidden: 512, layers: 8, capture: []int{2, 4, 6, 8}, dtype: "bf16"} // 4 KiB a token
	p := planned{shape: sh, lengths: []int{100, 8000, 3000, 50}, perBlob: 2}
	want := reference(t, p)
	for _, faults := range []string{"", "die@3", "short@3", "nan@3", "lost@4"} {
		t.Run("faults "+faults, func(t *testing.T) {
			w := newWorld(t, p)
			o := w.options(w.backend(1, faults))
			o.Memory, o.Stall = 32<<20, silent(faults) // 8 MiB of credit, 31 MiB of states
			sameFiles(t, want, w.files(w.seal(o).Generation))
		})
	}
	t.Run("refused half way", func(t *testing.T) {
		p := p
		p.lengths = p.lengths[:2]
		w := newWorld(t, p)
		o := w.options(w.backend(1, "nan@3,nan@6")) // canary, first, second; each once more
		o.Memory, o.MaxQuarantined = 32<<20, human.Share{Absolute: 1}
		g := w.seal(o).Generation
		if d := cmp.Diff([]int{1}, w.verify(g)); d != "" {
			t.Errorf("quarantined: %s", d)
		}
	})
}

func TestMismatch(t *testing.T) {
	p := planned{lengths: lengths(4, 20)}
	for name, change := range map[string]func(*blob.Meta){
		"hidden":    func(m *blob.Meta) { m.Hidden = 64 },
		"layers":    func(m *blob.Meta) { m.Layers = []int{2, 5, 8} },
		"dtype":     func(m *blob.Meta) { m.DType = "fp16" },
		"synthetic": func(m *blob.Meta) { m.Synthetic = false },
		"norm":      func(m *blob.Meta) { m.LastPreNorm = false },
		"fp8 of":    func(m *blob.Meta) { m.DType, m.Source = "fp8", "fp16" },
		"fp8":       func(m *blob.Meta) { m.DType = "fp8" },
	} {
		t.Run(name, func(t *testing.T) {
			q := p
			q.meta = change
			w := newWorld(t, q)
			if _, err := w.run(t.Context(), w.options(w.backend(1, ""))); err == nil {
				t.Error("an engine that is not the one planned was used")
			}
		})
	}
}

func TestAbandon(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 60)})
	o := w.options(w.backend(1, ""))
	o.Limit = 5
	res, err := w.run(t.Context(), o)
	w.must(err)
	w.must(Abandon(t.Context(), w.ws))
	g := w.seal(w.options(w.backend(1, ""))).Generation
	if g.ID == res.Generation.ID {
		t.Error("the abandoned generation was continued")
	}
	w.must(w.ws.View(func(r store.Reader) error {
		old, _, err := r.Generation(res.Generation.ID)
		if old.State != store.GenAbandoned {
			t.Errorf("state %q", old.State)
		}
		p, _, perr := r.Phase(store.PhaseExtract)
		if p.Done != 12 || p.Total != 12 || p.Unit != "samples" {
			t.Errorf("phase %+v", p)
		}
		return errors.Join(err, perr)
	}))
}

// TestReuse: a plan that older generations serve needs no engine, and its
// manifest names what it needs.
func TestReuse(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 60)})
	old := w.seal(w.options(w.backend(1, ""))).Generation
	f, err := genindex.Open(filepath.Join(w.ws.GenerationDir(old), indexName))
	w.must(err)
	defer f.Close()
	m := f.Meta()
	g, err := genindex.Create(w.ws.FS(), w.ws.PlanPath(2), genindex.Meta{Datasets: m.Datasets, Blob: m.Blob})
	w.must(err)
	for i := f.Positions() - 1; i >= 0; i-- {
		p := f.Position(i)
		p.Gen = old.ID
		w.must(g.Position(p, nil))
	}
	w.must(g.Finish())
	w.update(func(tx *store.Tx) error { return tx.PutPlan(store.PlanRow{ID: 2, Samples: 12, Reused: 12}) })
	now := w.seal(w.options(w.backend(1, "unavailable"))).Generation
	if now.ID == old.ID || now.Samples != 12 || now.Distinct != 0 || now.Blobs != 0 || !slices.Equal(now.Needs, []uint32{old.ID}) {
		t.Errorf("%+v", now)
	}
	mf, _, err := genindex.ReadManifest(w.ws.GenerationDir(now))
	w.must(err)
	_, hash, err := genindex.ReadManifest(w.ws.GenerationDir(old))
	w.must(err)
	want := []genindex.Need{{Generation: old.ID, Path: "../000001", Hash: hash}}
	if d := cmp.Diff(want, mf.Needs); d != "" {
		t.Error(d)
	}
}

func TestTooLongForTheEngine(t *testing.T) {
	w := newWorld(t, planned{lengths: []int{10, 20, 30, 40}})
	b, err := synthetic.New(synthetic.Options{Hidden: w.shape.hidden, Layers: w.shape.layers, Capture: w.shape.capture, Seed: 5, MaxTokens: 25})
	w.must(err)
	o := w.options(b)
	if _, err := w.run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "2 planned samples are longer, up to 40") {
		t.Errorf("%v", err)
	}
	o.MaxQuarantined = human.Share{Absolute: 2}
	if d := cmp.Diff([]int{2, 3}, w.verify(w.seal(o).Generation)); d != "" {
		t.Errorf("quarantined: %s", d)
	}
}
