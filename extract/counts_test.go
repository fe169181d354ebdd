package extract

import (
	"errors"
	"testing"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
)

// served counts the positions of the plan that committed blobs hold, and how
// many entries of these are quarantined.
func (w *world) served(g store.GenerationRow) (t totals, gone int) {
	w.t.Helper()
	absent, have := map[entryKey]bool{}, map[uint32]bool{}
	w.must(w.ws.View(func(r store.Reader) error {
		blobs, e1 := r.Blobs(g.ID)
		rows, e2 := r.Quarantine(g.ID)
		for _, b := range blobs {
			have[b.No] = true
		}
		for _, q := range rows {
			absent[entryKey{int(q.Blob), int(q.Entry)}] = true
		}
		return errors.Join(e1, e2)
	}))
	idx, err := genindex.Open(w.ws.PlanPath(g.Plan))
	w.must(err)
	for i := range idx.Positions() {
		if p := idx.Position(i); have[p.Blob] && !absent[entryKey{int(p.Blob), int(p.Entry)}] {
			t.samples, t.tokens = t.samples+1, t.tokens+int64(p.Rows)
		}
	}
	w.must(idx.Close())
	return t, len(absent)
}

// TestCountsWhileBuilding: a generation being built counts the positions that
// its committed blobs serve, and a resumed one goes on from there.
func TestCountsWhileBuilding(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(24, 60), repeats: 7, change: marked(950, 2, 9)})
	for limit := int64(5); ; limit += 8 {
		o := w.options(w.backend(1, "refuse=950"))
		o.Limit, o.MaxQuarantined = limit, human.Share{Absolute: 2}
		res, err := w.run(t.Context(), o)
		w.must(err)
		g := res.Generation
		want, gone := w.served(g)
		if got := (totals{g.Samples, g.Tokens}); got != want || want.samples == 0 {
			t.Errorf("%s with %d blobs: %+v, want %+v", g.State, g.Blobs, got, want)
		}
		if !res.Sealed {
			continue
		}
		if gone != 2 || limit == 5 {
			t.Errorf("%d quarantined, stopped at %d: nothing is shown", gone, limit)
		}
		return
	}
}
