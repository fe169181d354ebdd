package gc

import (
	"errors"
	"os"
	"strings"
	"testing"

	"eaglebatch/store"
	"eaglebatch/store/retain"
	"eaglebatch/store/storetest"
)

// TestGoneIsForgotten: of what is unlinked the ledger keeps the row only; of what
// the plan in force counts, the blobs too.
func TestGoneIsForgotten(t *testing.T) {
	ws := storetest.MustInit(t)
	planned, old := put(t, ws, "planned", store.GenSealed, nil), put(t, ws, "old", store.GenSealed, nil)
	put(t, ws, "new", store.GenSealed, nil)
	writeIndex(t, ws.PlanPath(1))
	update(t, ws, func(tx *store.Tx) error {
		err := tx.PutPlan(store.PlanRow{ID: 1, Generation: planned.ID})
		for _, id := range []uint32{old.ID, planned.ID} {
			err = errors.Join(err, tx.PutBlob(store.BlobRow{Gen: id, No: 1}), tx.PutDamaged(id, []store.DamagedEntry{{Blob: 1, Whole: true}}))
		}
		return err
	})
	mustExecute(t, ws, Options{Keep: 1, Now: true})
	for _, g := range []store.GenerationRow{old, planned} {
		if !retain.IsGone(row(t, ws, g.ID)) {
			t.Errorf("%s is still there", g.Name)
		}
		err := ws.View(func(r store.Reader) error {
			damaged, e1 := store.Damaged(r, g.ID)
			blobs, e2 := r.Blobs(g.ID)
			if len(damaged) > 0 || (len(blobs) > 0) != (g.ID == planned.ID) {
				t.Errorf("%s: damaged %v, blobs %v", g.Name, damaged, blobs)
			}
			return errors.Join(e1, e2)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestMissingDirectory: a generation of ours that lost its directory is given up
// where a repair recorded all of it as damaged, or by its name.
func TestMissingDirectory(t *testing.T) {
	ws := storetest.MustInit(t)
	lost, away := put(t, ws, "lost", store.GenSealed, nil), put(t, ws, "away", store.GenAbandoned, nil)
	put(t, ws, "new", store.GenSealed, nil)
	update(t, ws, func(tx *store.Tx) error {
		return errors.Join(tx.PutBlob(store.BlobRow{Gen: lost.ID, No: 0}), tx.PutBlob(store.BlobRow{Gen: lost.ID, No: 1}),
			tx.PutDamaged(lost.ID, []store.DamagedEntry{{Blob: 0, Whole: true}, {Blob: 1, Entry: 3}}))
	})
	for _, g := range []store.GenerationRow{lost, away} {
		if err := os.RemoveAll(ws.GenerationDir(g)); err != nil {
			t.Fatal(err)
		}
	}
	for _, it := range mustExecute(t, ws, Options{Keep: 1}).Items[:2] {
		if it.Action != ActionKeep || !it.Refused || !strings.Contains(it.Reason, "its directory is missing: ") ||
			!strings.HasSuffix(it.Reason, "; 'gc --apply --name "+it.Generation.Name+"' takes it off the list") {
			t.Errorf("%s: %+v", it.Generation.Name, it)
		}
	}
	update(t, ws, func(tx *store.Tx) error { return tx.PutDamaged(lost.ID, []store.DamagedEntry{{Blob: 1, Whole: true}}) })
	if s := mustExecute(t, ws, Options{Keep: 1}); item(t, s, lost.ID).Action != ActionForget || item(t, s, away.ID).Action != ActionKeep || s.Free != 0 {
		t.Errorf("%+v", s)
	}
	if s := mustExecute(t, ws, Options{Keep: 1, Names: []string{"away"}}); item(t, s, away.ID).Action != ActionForget {
		t.Errorf("%+v", s)
	}
	if s := mustPlan(t, ws, Options{Keep: 1}); len(s.Items) != 1 || !retain.IsGone(row(t, ws, lost.ID)) || !retain.IsGone(row(t, ws, away.ID)) {
		t.Errorf("%+v", s)
	}
}
