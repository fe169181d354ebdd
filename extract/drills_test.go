package extract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/storetest"
)

// reference gives the files of an undisturbed run.
func reference(t *testing.T, p planned) map[string]string {
	t.Helper()
	w := newWorld(t, p)
	return w.files(w.seal(w.options(w.backend(1, ""))).Generation)
}

func sameFiles(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		} else if want[name] != got[name] {
			t.Errorf("%s differs from the undisturbed one", name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there, not in the undisturbed run", name)
		}
	}
}

// TestEngineFaults: a single fault changes nothing but the time it takes.
func TestEngineFaults(t *testing.T) {
	p := planned{lengths: lengths(24, 100)}
	want := reference(t, p)
	for _, f := range []string{"die", "hang", "lost", "short", "wrong-ids", "nan", "zero-row", "dup", "stray", "flaky"} {
		for _, n := range []int{1, 2, 9, 25} { // 1 is the canary, 25 the last sample
			t.Run(fmt.Sprintf("%s@%d", f, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, p)
				b := w.backend(1, fmt.Sprintf("%s@%d", f, n))
				o := w.options(b)
				o.Stall = 300 * time.Millisecond
				got := w.files(w.seal(o).Generation)
				sameFiles(t, want, got)
				if most := int64(24 + 2 + 16 + 2); b.Calls() > most {
					t.Errorf("%d engine calls for 24 samples", b.Calls())
				}
			})
		}
	}
}

// marked puts a token that no other sample has into the middle of the named
// samples.
func marked(token uint32, which ...int) func(int, []uint32) {
	return func(i int, ids []uint32) {
		if slices.Contains(which, i) {
			ids[len(ids)/2] = token
		}
	}
}

func TestPoisonAndRefused(t *testing.T) {
	for _, c := range []struct {
		name, faults string
		which        []int
		reason       string
	}{
		{"poison", "poison=950", []int{9}, "when it was alone"},
		{"poison first", "poison=950", []int{0}, "when it was alone"},
		{"poison last", "poison=950", []int{19}, "when it was alone"},
		{"two poisons", "poison=950", []int{3, 4}, "when it was alone"},
		{"refused", "refuse=950", []int{2, 11}, "internal: scripted"},
		{"refused canary", "refuse=950", []int{0, 1}, "internal: scripted"},
		{"a whole blob", "refuse=950", []int{4, 5, 6, 7}, "internal: scripted"},
	} {
		for _, slots := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d slots", c.name, slots), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, planned{lengths: lengths(20, 100), change: marked(950, c.which...), repeats: 20})
				o := w.options(w.backend(slots, c.faults))
				o.MaxQuarantined = human.Share{Absolute: 4}
				g := w.seal(o).Generation
				if d := cmp.Diff(c.which, w.verify(g)); d != "" {
					t.Errorf("quarantined: %s", d)
				}
				for _, q := range w.quarantine(g) {
					if !strings.Contains(q.Reason, c.reason) || q.Dataset != "A1" {
						t.Errorf("quarantine row %+v", q)
					}
				}
				n := int64(len(c.which))
				if g.Quarantined != n || g.Distinct != 20-n || g.Samples != 2*(20-n) {
					t.Errorf("totals %+v", g)
				}
			})
		}
	}
}

func TestTooManyQuarantined(t *testing.T) {
	p := planned{lengths: lengths(20, 50), change: marked(950, 3, 12)}
	w := newWorld(t, p)
	o := w.options(w.backend(1, "refuse=950"))
	o.MaxQuarantined = human.Share{Fraction: 0.05, Relative: true}
	res, err := w.run(t.Context(), o)
	if !errors.Is(err, ErrQuarantined) || res.Sealed {
		t.Fatalf("%+v, %v", res, err)
	}
	b := w.backend(1, "")
	o.Backend, o.MaxQuarantined = b, human.Share{Fraction: 0.1, Relative: true}
	if g := w.seal(o).Generation; g.Quarantined != 2 || b.Calls() != 0 {
		t.Errorf("%d quarantined, %d engine calls", g.Quarantined, b.Calls())
	}
}

func TestEngineAtFault(t *testing.T) {
	var all []int
	for i := range 40 {
		all = append(all, i)
	}
	for name, faults := range map[string]string{"refuses all": "refuse=950", "dies of all": "poison=950"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, planned{lengths: lengths(40, 30), perBlob: 20, change: marked(950, all...)})
			o := w.options(w.backend(1, faults))
			o.MaxQuarantined, o.Patience = human.Share{Absolute: 40}, 3*time.Second
			_, err := w.run(t.Context(), o)
			if !errors.Is(err, backend.ErrUnavailable) {
				t.Fatalf("%v, want ErrUnavailable", err)
			}
		})
	}
}

func TestUnavailable(t *testing.T) {
	p := planned{lengths: lengths(20, 50)}
	want := reference(t, p)
	w := newWorld(t, p)
	o := w.options(w.backend(1, "unavailable"))
	o.Patience = 300 * time.Millisecond
	if _, err := w.run(t.Context(), o); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("%v, want ErrUnavailable", err)
	}
	// The engine is there, and dies again and again after some work.
	o = w.options(w.backend(2, "down=1000"))
	o.Patience = 500 * time.Millisecond
	if _, err := w.run(t.Context(), o); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("%v, want ErrUnavailable", err)
	}
	sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, "down=3"))).Generation))
}

// TestOneSlotDies: a slot that is gone does not hold up the others.
func TestOneSlotDies(t *testing.T) {
	p := planned{lengths: lengths(40, 50)}
	want := reference(t, p)
	w := newWorld(t, p)
	o := w.options(w.backend(2, "hang@9"))
	o.Stall, o.silence = time.Hour, 200*time.Millisecond
	sameFiles(t, want, w.files(w.seal(o).Generation))
	if !w.notes.said("takes over") {
		t.Error("nothing was taken over")
	}
}

// TestSlowSlot: the blob of a slot that is much slower than the others is made
// twice, and the first one counts.
func TestSlowSlot(t *testing.T) {
	p := planned{lengths: []int{300, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300}, perBlob: 2}
	want := reference(t, p)
	w := newWorld(t, p)
	b := w.rated(2, 3000, "slow=1:30")
	o := w.options(b)
	o.Stall = time.Hour
	sameFiles(t, want, w.files(w.seal(o).Generation))
	if !w.notes.said("takes over") {
		t.Error("nothing was taken over")
	}
	if w.notes.units != 12 {
		t.Errorf("%d samples reported, 12 were made", w.notes.units)
	}
}

func TestDrift(t *testing.T) {
	p := planned{lengths: lengths(40, 50)}
	w := newWorld(t, p)
	res, err := w.run(t.Context(), w.options(w.backend(1, "drift@20")))
	if !errors.Is(err, ErrNonsense) || !errors.Is(err, backend.ErrUnavailable) || res.Sealed {
		t.Fatalf("%+v, %v", res, err)
	}
	if res.Generation.Blobs == 0 {
		t.Error("nothing committed was kept")
	}
	want := reference(t, p)
	sameFiles(t, want, w.files(w.seal(w.options(w.backend(1, ""))).Generation))

	w = newWorld(t, p)
	sameFiles(t, want, w.files(w.seal(w.options(w.rated(2, 1000, "drift@9"))).Generation))
	if !w.notes.said("is out") {
		t.Error("the drifting slot was not taken out")
	}
}

// TestCanaryHourly: an engine whose values change without a reconnect is found
// by the canary sent between samples.
func TestCanaryAgain(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(200, 50)})
	b := w.backend(1, "")
	turned := &turning{Backend: b, other: w.seeded(6), at: 60}
	o := w.options(turned)
	o.CanaryEvery = time.Nanosecond
	if _, err := w.run(t.Context(), o); !errors.Is(err, ErrNonsense) {
		t.Fatalf("%v, want ErrNonsense", err)
	}
}

func TestStops(t *testing.T) {
	p := planned{lengths: lengths(40, 60), repeats: 10}
	want := reference(t, p)
	t.Run("limit", func(t *testing.T) {
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
	})
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
	p := planned{lengths: lengths(12, 60)}
	want := reference(t, p)
	for _, point := range []fault.Point{
		fault.ExtractBegin, fault.BlobBeforeSync, fault.BlobBeforeRename, fault.BlobAfterRename, fault.BlobAfterCommit,
		fault.SealBeforeIndex, fault.SealBeforeManifest, fault.SealAfterManifest, fault.SealAfterCommit,
		fault.LedgerBeforeAppend, fault.LedgerAfterAppend, fault.LedgerAfterCommit,
	} {
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

// TestAdopt: a blob under its final name that the ledger does not know is
// taken if it is whole, and made anew if not.
func TestAdopt(t *testing.T) {
	p := planned{lengths: lengths(12, 60), change: marked(950, 1)}
	for name, damage := range map[string]func(t *testing.T, path string){
		"whole":   nil,
		"cut":     func(t *testing.T, path string) { storetest.Truncate(t, path, -10) },
		"flipped": func(t *testing.T, path string) { storetest.FlipBit(t, path, 700) },
		"other one": func(t *testing.T, path string) {
			other := filepath.Join(t.TempDir(), "b")
			w, err := blob.Create(other, blob.Meta{Layers: []int{2}, Hidden: 4, DType: "bf16", Codec: "raw", Datasets: []string{"A1"}}, blob.WriterOptions{})
			if err == nil {
				_, err = w.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			copyFile(t, other, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, p)
			o := w.options(w.backend(1, "refuse=950"))
			o.MaxQuarantined = human.Share{Absolute: 1}
			want := w.files(w.seal(o).Generation)

			w = newWorld(t, p)
			fs := &fsx.FS{Faults: fault.New(fault.BlobAfterRename, 2)}
			dir := w.ws.Dir()
			w.must(w.ws.Close())
			w.ws = storetest.MustInitFS(t, dir, fs)
			o.Backend = w.backend(1, "refuse=950")
			res, err := w.run(t.Context(), o)
			if !errors.Is(err, fault.ErrInjected) {
				t.Fatal(err)
			}
			path := w.uncounted(res.Generation)
			w.must(w.ws.Close())
			w.ws = storetest.MustOpen(t, dir)
			if damage != nil {
				damage(t, path)
			}
			b := w.backend(1, "refuse=950")
			o.Backend = b
			got := w.files(w.seal(o).Generation)
			sameFiles(t, want, got)
			if damage != nil && !w.notes.said("made anew") {
				t.Error("nothing was said of the damaged blob")
			}
		})
	}
}

// uncounted returns the path of a blob that is there and not in the ledger.
func (w *world) uncounted(g store.GenerationRow) string {
	w.t.Helper()
	var rows []store.BlobRow
	w.must(w.ws.View(func(r store.Reader) (err error) {
		rows, err = r.Blobs(g.ID)
		return err
	}))
	for no := range 100 {
		path := filepath.Join(w.ws.GenerationDir(g), blobName(no))
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if !slices.ContainsFunc(rows, func(b store.BlobRow) bool { return int(b.No) == no }) {
			return path
		}
	}
	w.t.Fatal("every blob that is there is in the ledger")
	return ""
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommittedBlobGone(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 60)})
	o := w.options(w.backend(1, ""))
	o.Limit = 5
	res, err := w.run(t.Context(), o)
	w.must(err)
	w.must(os.Remove(filepath.Join(w.ws.GenerationDir(res.Generation), blobName(0))))
	if _, err := w.run(t.Context(), w.options(w.backend(1, ""))); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("%v, want damage", err)
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
			o.Memory, o.Stall = 32<<20, time.Second // 8 MiB of credit, 31 MiB of states
			sameFiles(t, want, w.files(w.seal(o).Generation))
		})
	}
	t.Run("refused half way", func(t *testing.T) {
		p := p
		p.lengths = p.lengths[:2]
		w := newWorld(t, p)
		o := w.options(w.backend(1, "nan@3,nan@5")) // canary, first, second; once more
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
