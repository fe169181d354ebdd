package plan

import (
	"testing"

	"eaglebatch/internal/human"
	"eaglebatch/store/storetest"
)

// TestFitProof: a proof is as large as the room above the reserve holds, in raw
// bytes, with the head beside it.
func TestFitProof(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(60, 80)}, {name: "B1", samples: random(61, 80)}})
	shuffle(t, ws, append([]uint32{7, 7, 7}, upTo(160)...), nil)
	free := measured(t, ws, nil).Free
	o := testOptions()
	o.MaxTokens = 256
	for _, tc := range []struct {
		room, beside int64
	}{{1 << 40, 0}, {1 << 40, 1 << 41}, {900_000, 0}, {900_000, 300_000}, {300_000, 0}, {0, 0}} {
		x := o
		x.Beside = tc.beside
		if tc.room < 1<<30 {
			// The filesystem may be written by others meanwhile: the room is made
			// far smaller than it, and what is checked is read from the answer.
			x.Reserve = human.Share{Absolute: free - tc.room}
		}
		fit, err := FitProof(t.Context(), ws, x, 100, 10)
		if err != nil {
			t.Fatal(err)
		}
		need := func(n int64) int64 {
			y := x
			y.Limit, y.Reserve = n, human.Share{}
			raw := mustPlan(t, ws, y).RawBytes + tc.beside + indexBytes*n
			return raw + max(proofSlack, raw/100)
		}
		if fit.Least < need(10) || fit.Least > need(10)+10*proofExtra {
			t.Errorf("%+v: the least takes %d, want some %d", tc, fit.Least, need(10))
		}
		if n := fit.Samples; n > 0 && need(n) > fit.Room || n > 100 {
			t.Errorf("%+v: %d samples take %d of %d", tc, n, need(n), fit.Room)
		}
		if n := fit.Samples; n < 100 && need(n+1)+(n+1)*proofExtra <= fit.Room {
			t.Errorf("%+v: %d samples, although one more takes %d of %d", tc, n, need(n+1), fit.Room)
		}
	}
}
