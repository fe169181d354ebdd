package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// TestAllButCanary: an engine that answers the canary, which is short, and fails
// at every sample takes none with it, however it fails; and the other of two does
// the work.
func TestAllButCanary(t *testing.T) {
	for name, how := range map[string]error{"fails": errFails, "dies": errDies} {
		bad := func(slot int, rq backend.Request) error {
			if slot == 0 && rq.Name != canaryName {
				return how
			}
			return nil
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned{lengths: lengths(40, 50)})
			if err := w.nothingDone(1, bad); !strings.Contains(err.Error(), "extract.patience") {
				t.Errorf("%v", err)
			}
		})
		t.Run(name+", one of two", func(t *testing.T) {
			t.Parallel()
			// Blobs of more samples than it takes to find the engine at fault: of fewer,
			// at the end of a run, the canary is all that there is to judge by.
			w := newWorld(t, planned{lengths: lengths(40, 50), perBlob: 20})
			if gone := w.left(2, nil, bad); len(gone) > 0 {
				t.Errorf("left out: %v", gone)
			}
		})
	}
}

// TestBadSampleOfBadEngine: once an engine that failed at everything is well again,
// the sample that always fails is found, though it is the first in line, and no
// other is left out: what failed meanwhile counts for nothing.
func TestBadSampleOfBadEngine(t *testing.T) {
	for name, how := range map[string]error{"fails": errFails, "dies": errDies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned{lengths: lengths(30, 50)})
			asked, well, fluke := 0, false, false
			gone := w.left(1, nil, func(_ int, rq backend.Request) error {
				if rq.Name == canaryName {
					well = asked >= 40 // from a session's start on
					return nil
				}
				asked++
				switch {
				case rq.Name == "A1 sample 8", asked > 8 && !well:
					return how
				case rq.Name == "A1 sample 9" && !fluke:
					fluke = true
					return errFails
				}
				return nil
			})
			if d := cmp.Diff([]int{8}, gone); d != "" || !fluke {
				t.Errorf("left out: %s (%t)", d, fluke)
			}
		})
	}
}

// TestTwoPoisons: samples at which the engine dies are told from each other and
// from those that only were there, also as the last that there are.
func TestTwoPoisons(t *testing.T) {
	for _, bad := range [][]int{{4, 5, 6}, {0, 19}, {18, 19}, {0, 1, 2, 3, 4}} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned{lengths: lengths(20, 50)})
			var names []string
			for _, i := range bad {
				names = append(names, fmt.Sprintf("A1 sample %d", i))
			}
			deaths := 0
			gone := w.left(1, nil, func(_ int, rq backend.Request) error {
				if slices.Contains(names, rq.Name) {
					deaths++
					return errDies
				}
				return nil
			})
			if d := cmp.Diff(bad, gone); d != "" || deaths > 3*len(bad) {
				t.Errorf("left out: %s (%d deaths)", d, deaths)
			}
		})
	}
}

// TestLongSamplesOfBadEngine: an engine that goes bad while samples stream that
// are larger than all credit takes none of them with it; one that alone is
// always answered wrongly is left out.
func TestLongSamplesOfBadEngine(t *testing.T) {
	p := planned{shape: shape{hidden: 512, layers: 8, capture: []int{2, 4, 6, 8}, dtype: "bf16"}, lengths: []int{50, 3000, 3000, 60}, perBlob: 1}
	less := func(o *Options) { o.Memory = 32 << 20 }
	w := newWorld(t, p)
	b := &spoiling{Backend: w.backend(1, ""), bad: func(asked int, name string) bool { return asked > 2 }}
	o := w.options(b)
	less(&o)
	o.MaxQuarantined, o.Patience = human.Share{Absolute: 4}, 300*time.Millisecond
	if res, err := w.run(t.Context(), o); !errors.Is(err, backend.ErrUnavailable) || res.Generation.Quarantined != 0 {
		t.Errorf("all bad: %+v, %v", res, err)
	}
	b = &spoiling{Backend: w.backend(1, ""), bad: func(_ int, name string) bool { return name == "A1 sample 2" }}
	o = w.options(b)
	less(&o)
	o.MaxQuarantined = human.Share{Absolute: 1}
	if d := cmp.Diff([]int{2}, w.verify(w.seal(o).Generation)); d != "" {
		t.Errorf("one bad: %s", d)
	}
}

// spoiling makes the last rows of some answers zero.
type spoiling struct {
	backend.Backend
	bad   func(asked int, name string) bool
	asked int
}

func (s *spoiling) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	f := &fickle{Backend: s.Backend, fault: func(int, backend.Request) error { return nil }}
	for rq := range in {
		s.asked++
		bad := s.bad(s.asked, rq.Name)
		err := f.answer(ctx, slot, rq, func(c backend.Chunk) error {
			if bad {
				clear(c.Data)
			}
			return emit(c)
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// TestCanaryOfTwo: a slot whose engine refuses the first canary while another
// answers it leaves no other record of the answer than the sample's own: else
// every engine would be found to be another one.
func TestCanaryOfTwo(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(60, 50)})
	refused, answering := make(chan struct{}), make(chan struct{})
	var once, twice sync.Once
	b := &fickle{Backend: w.backend(2, "")}
	b.fault = func(slot int, rq backend.Request) error { return nil }
	asked := [2]int{}
	o := w.options(&perSlot{Backend: b, before: func(slot int, rq backend.Request) error {
		b.mu.Lock()
		asked[slot]++
		n := asked[slot]
		b.mu.Unlock()
		switch {
		case n > 1:
			return nil
		case slot == 0:
			<-answering
			once.Do(func() { close(refused) })
			return errFails
		}
		twice.Do(func() { close(answering) })
		<-refused
		return nil
	}})
	o.Limit = 20
	res, err := w.run(t.Context(), o)
	w.must(err)
	if gone := w.verify(w.seal(w.options(w.backend(2, ""))).Generation); !res.Stopped || len(gone) > 0 || w.notes.said("is out") {
		t.Errorf("left out: %v; %q", gone, w.notes.lines)
	}
}

// perSlot asks what goes wrong without a lock, so that slots may wait for each
// other.
type perSlot struct {
	backend.Backend
	before func(slot int, rq backend.Request) error
}

func (p *perSlot) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	f := &fickle{Backend: p.Backend, fault: func(slot int, rq backend.Request) error { return p.before(slot, rq) }}
	return f.Serve(ctx, slot, in, emit)
}

// TestPatienceOfTwo: the end of one slot's patience does not end the run while
// another is at work on a sample that takes longer than that.
func TestPatienceOfTwo(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 50)})
	var mu sync.Mutex
	dead, slow := 0, false
	o := w.options(&perSlot{Backend: w.backend(2, ""), before: func(slot int, rq backend.Request) error {
		if slot == 0 {
			mu.Lock()
			defer mu.Unlock()
			dead++
			return errDies
		}
		if rq.Name != canaryName && !slow {
			slow = true
			time.Sleep(time.Second)
		}
		return nil
	}})
	o.Patience = 200 * time.Millisecond
	if gone := w.verify(w.seal(o).Generation); len(gone) > 0 || dead == 0 {
		t.Errorf("left out: %v, %d deaths", gone, dead)
	}
}

// TestNoBlame: a server that answers that it is asked too much has not died of
// what it was asked.
func TestNoBlame(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 50)})
	busy := 0
	gone := w.left(1, nil, func(_ int, rq backend.Request) error {
		if rq.Name == "A1 sample 5" && busy < 6 {
			busy++
			return backend.NoBlame(errDies)
		}
		return nil
	})
	if len(gone) > 0 || busy != 6 {
		t.Errorf("left out: %v after %d", gone, busy)
	}
}

// TestKnownBad: samples that an older generation had to leave out may all fail
// again, however many: that is not the engine's fault.
func TestKnownBad(t *testing.T) {
	var all []int
	for i := range 20 {
		all = append(all, i)
	}
	w := newWorld(t, planned{lengths: lengths(21, 50)})
	w.update(func(tx *store.Tx) error {
		for i := range all {
			q := store.QuarantineRow{Gen: 40, Blob: 9, Entry: uint32(i), Dataset: "A1", Sample: uint64(i), Reason: "before"}
			if err := tx.PutQuarantine(q); err != nil {
				return err
			}
		}
		return tx.PutGeneration(store.GenerationRow{ID: 40, Name: "older", State: store.GenSealed})
	})
	gone := w.left(1, nil, func(_ int, rq backend.Request) error {
		if rq.Name != canaryName && rq.Name != "A1 sample 20" {
			return errFails
		}
		return nil
	})
	if d := cmp.Diff(all, gone); d != "" {
		t.Errorf("left out: %s", d)
	}
}

// TestAlternates: an engine that fails at every other request, the canary
// included, is no reason to go round in circles: every run ends.
func TestAlternates(t *testing.T) {
	for _, first := range []int{2, 3, 7, 8} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned{lengths: lengths(40, 50)})
			asked := 0
			w.left(1, nil, func(_ int, rq backend.Request) error {
				if asked++; asked >= first && (asked-first)%2 == 0 {
					return errFails
				}
				return nil
			})
			if asked > 1000 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// TestStopWhileHeld: an interrupt, or the end of the time, while samples are held
// by an engine that is not well ends the run; nothing is blamed for it.
func TestStopWhileHeld(t *testing.T) {
	for _, how := range []string{"interrupt", "until"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned{lengths: lengths(40, 50)})
			stop := make(chan struct{})
			asked := 0
			o := w.options(&fickle{Backend: w.backend(1, ""), fault: func(_ int, rq backend.Request) error {
				if asked++; asked == 30 {
					close(stop)
				}
				if asked > 10 && rq.Name != canaryName {
					return errFails
				}
				return nil
			}})
			o.MaxQuarantined, o.Grace = human.Share{Absolute: 40}, 100*time.Millisecond
			if how == "interrupt" {
				o.Interrupt = stop
			} else {
				o.Patience, o.Until = 500*time.Millisecond, time.Now().Add(50*time.Millisecond)
			}
			res, err := w.run(t.Context(), o)
			if how == "interrupt" && (err != nil || !res.Stopped) || err != nil && !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("%+v, %v", res, err)
			}
			if gone := w.verify(w.seal(w.options(w.backend(1, ""))).Generation); len(gone) > 0 || w.notes.said("quarantined: ") {
				t.Errorf("left out: %v", gone)
			}
		})
	}
}
