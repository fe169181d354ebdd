package extract

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSealsAndReadsBack(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		t.Run(dtype, func(t *testing.T) {
			sh := smallShape()
			sh.dtype = dtype
			w := newWorld(t, planned{shape: sh, lengths: lengths(30, 200), repeats: 3})
			res := w.seal(w.options(w.backend(2, "")))
			if absent := w.verify(res.Generation); len(absent) > 0 {
				t.Errorf("absent: %v", absent)
			}
			g := res.Generation
			if g.Samples != 33 || g.Distinct != 30 || g.Blobs != 8 || g.Quarantined != 0 {
				t.Errorf("totals: %+v", g)
			}
			again, err := w.run(t.Context(), w.options(w.backend(1, "unavailable")))
			if err != nil || !again.Sealed || again.Generation.ID != g.ID {
				t.Errorf("a second run: %+v, %v", again, err)
			}
		})
	}
}

// TestSameBytes: neither slots nor the order of answers change a byte. With
// several slots it is chance which sample a request number falls on, so each
// run has one fault: two could meet the same sample, which is then set aside.
func TestSameBytes(t *testing.T) {
	var want map[string]string
	faults := map[int][]string{1: {"", "out-of-order", "die@7,flaky@11,nan@15,dup@19,short@23"}}
	faults[2] = []string{"", "out-of-order", "die@7", "flaky@11", "nan@15", "dup@19", "short@23"}
	faults[3] = faults[2]
	for slots := 1; slots <= 3; slots++ {
		for _, faults := range faults[slots] {
			t.Run(fmt.Sprintf("%d slots %s", slots, faults), func(t *testing.T) {
				w := newWorld(t, planned{lengths: lengths(40, 300), repeats: 2})
				got := w.files(w.seal(w.options(w.backend(slots, faults))).Generation)
				if want == nil {
					want = got
				}
				if d := cmp.Diff(len(want), len(got)); d != "" {
					t.Fatal(d)
				}
				for name := range want {
					if want[name] != got[name] {
						t.Errorf("%s differs", name)
					}
				}
			})
		}
	}
}
