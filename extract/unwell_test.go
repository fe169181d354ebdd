package extract

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/enginetest"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/internal/human"
)

// badFrom lets the completions from the nth on go wrong, until Mend.
func badFrom(n int, fault string) map[int]string {
	m := map[int]string{}
	for i := n; i <= 100_000; i++ {
		m[i] = fault
	}
	return m
}

// sampleFaults are blamed on the sample at first: the server answers.
var sampleFaults = []string{
	enginetest.Fault500, enginetest.FaultNoFile, enginetest.FaultTruncated, enginetest.FaultWrongIDs,
	enginetest.FaultWrongPrompt, enginetest.FaultNaN, enginetest.FaultZero,
}

// waiting is a client with so many requests in flight. A file that stays cut is
// waited for, the shorter the better for the test; others come in time.
func waiting(flight int, fault string) func(*vllm.Options) {
	return func(o *vllm.Options) {
		if o.Concurrency = flight; fault == enginetest.FaultTruncated {
			o.FileWait = time.Second
		}
	}
}

// TestServerGoesBad: a server that from some point on fails at everything, with
// few requests in flight or many, takes no sample with it, whether it is looked
// at first or not.
func TestServerGoesBad(t *testing.T) {
	for i, fault := range sampleFaults {
		for k, from := range []int{1, 9} {
			flight := []int{1, 2, 16}[(i+k)%3]
			t.Run(fmt.Sprintf("%s from %d, %d in flight", fault, from, flight), func(t *testing.T) {
				t.Parallel()
				badThenWell(t, 40, func(v *enginetest.VLLM) { v.Faults = badFrom(from, fault) }, waiting(flight, fault))
			})
		}
	}
}

// TestServerBadForAWhile: one that is well again within patience is waited for,
// and has cost no sample.
func TestServerBadForAWhile(t *testing.T) {
	for _, fault := range sampleFaults {
		for _, from := range []int{1, 9} {
			t.Run(fmt.Sprintf("%s from %d", fault, from), func(t *testing.T) {
				t.Parallel()
				w := vllmWorld(t, planned{lengths: lengths(40, 60)})
				v, url := vllmServer(t, t.TempDir(), func(v *enginetest.VLLM) { v.Faults = badFrom(from, fault) })
				time.AfterFunc(300*time.Millisecond, v.Mend)
				b := vllmClient(t, v.Dir, []string{url}, waiting(2, fault))
				if gone := w.verify(w.seal(w.options(b)).Generation); len(gone) > 0 {
					t.Errorf("left out: %v", gone)
				}
				nothingLeft(t, v, b)
			})
		}
	}
}

// TestOneServerBad: what the well one of two answers does not speak for the
// other, which loses no sample and does not end the run.
func TestOneServerBad(t *testing.T) {
	for _, fault := range sampleFaults {
		for _, from := range []int{1, 9} {
			t.Run(fmt.Sprintf("%s from %d", fault, from), func(t *testing.T) {
				t.Parallel()
				w := vllmWorld(t, planned{lengths: lengths(80, 60)})
				dir := t.TempDir()
				bad, badURL := vllmServer(t, dir, func(v *enginetest.VLLM) { v.Faults = badFrom(from, fault) })
				good, goodURL := vllmServer(t, dir, nil)
				b := vllmClient(t, dir, []string{badURL, goodURL}, waiting(2, fault))
				if gone := w.verify(w.seal(w.options(b)).Generation); len(gone) > 0 {
					t.Errorf("left out: %v", gone)
				}
				nothingLeft(t, bad, b)
				nothingLeft(t, good, b)
			})
		}
	}
}

// TestAllRefused: samples that an engine refuses are left out although nothing
// that serves as canary is answered, as soon as one sample is.
func TestAllRefused(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(7, 50), change: marked(950, 0, 1, 2, 3, 4, 6)})
	o := w.options(w.backend(1, "refuse=950"))
	o.MaxQuarantined = human.Share{Absolute: 6}
	w.verify(w.seal(o).Generation)

	w = newWorld(t, planned{lengths: lengths(3, 50), change: marked(950, 0, 1, 2)})
	o = w.options(w.backend(1, "refuse=950"))
	o.MaxQuarantined, o.Patience = human.Share{Absolute: 3}, 100*time.Millisecond
	if res, err := w.run(t.Context(), o); !errors.Is(err, backend.ErrUnavailable) || res.Generation.Quarantined != 0 {
		t.Errorf("an engine that answers nothing: %+v, %v", res, err)
	}
}
