package extract

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/human"
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

// silent is after how long a silent engine is taken for dead: where one falls silent
// that is waited for. Any other may be slow as the machine may be, and is not to be
// blamed for that.
func silent(faults string) time.Duration {
	if strings.HasPrefix(faults, "hang") || strings.HasPrefix(faults, "lost") {
		return 3 * time.Second
	}
	return 0
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
				o.Stall = silent(f)
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
