package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func update(t testing.TB, w *store.Workspace, fn func(*store.Tx) error) {
	t.Helper()
	if err := w.Update(t.Context(), "test", fn); err != nil {
		t.Fatal(err)
	}
}

// fill puts a row of every kind.
func fill(tx *store.Tx) error {
	day := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	id, err := tx.Next("generation")
	if err != nil {
		return err
	}
	return errors.Join(
		tx.PutPhase(store.PhaseRow{Name: store.PhaseMerge, State: store.Running, Cursor: []byte{0, 1}, Started: day, Fingerprint: []store.Part{{Key: "a", Value: "b"}}}),
		tx.PutDataset(store.DatasetRow{Name: "zwei", Order: 1, ID: 2, Reasons: map[string]int64{"bad": 3}}),
		tx.PutDataset(store.DatasetRow{Name: "ä \"1\"\n<&>", Order: 0, ID: 1}),
		tx.PutOrder(store.OrderRow{ID: 1, N: 5}),
		tx.PutPlan(store.PlanRow{ID: 1, Layers: []int{2, 4}}),
		tx.PutPlan(store.PlanRow{ID: 2, Ratio: 0.75}),
		tx.PutAcceptance(store.Acceptance{Values: map[string]string{"gc": "old"}, At: day}),
		tx.PutGeneration(store.GenerationRow{ID: id, Name: "g", State: store.GenBuilding, Adopted: &store.Adopted{Inode: 1 << 63}}),
		tx.PutBlob(store.BlobRow{Gen: id, No: 10, Bytes: 1}),
		tx.PutBlob(store.BlobRow{Gen: id, No: 9, Bytes: 2}),
		tx.PutBlob(store.BlobRow{Gen: id + 1, No: 0}),
		tx.PutQuarantine(store.QuarantineRow{Gen: id, Blob: 1, Entry: 2, Reason: "nan"}),
		tx.PutValue("probe/a", []byte{}),
		tx.PutValue("probe/b", []byte("xyz")),
	)
}

// everything reads all rows there are.
func everything(t testing.TB, r store.Reader) map[string]any {
	t.Helper()
	all := map[string]any{}
	one := func(name string, v any, ok bool, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ok {
			all[name] = v
		}
	}
	for _, p := range store.Phases() {
		v, ok, err := r.Phase(p)
		one("phase "+p, v, ok, err)
	}
	ds, err := r.Datasets()
	one("datasets", ds, true, err)
	or, ok, err := r.Order()
	one("order", or, ok, err)
	pl, ok, err := r.Plan()
	one("plan", pl, ok, err)
	pl, ok, err = r.PlanByID(1)
	one("plan 1", pl, ok, err)
	ac, ok, err := r.Acceptance()
	one("acceptance", ac, ok, err)
	gs, err := r.Generations()
	one("generations", gs, true, err)
	for _, g := range []uint32{1, 2} {
		row, ok, err := r.Generation(g)
		one("generation", row, ok, err)
		bs, err := r.Blobs(g)
		one("blobs", bs, true, err)
		qs, err := r.Quarantine(g)
		one("quarantine", qs, true, err)
	}
	for _, k := range []string{"probe/a", "probe/b"} {
		v, ok, err := r.Value(k)
		one(k, v, ok, err)
	}
	return all
}

func view(t testing.TB, w *store.Workspace) (all map[string]any) {
	t.Helper()
	if err := w.View(func(r store.Reader) error {
		all = everything(t, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRowsSurvive(t *testing.T) {
	w := storetest.MustInit(t)
	var inside map[string]any
	update(t, w, func(tx *store.Tx) error {
		if err := fill(tx); err != nil {
			return err
		}
		inside = everything(t, tx)
		return nil
	})
	if diff := cmp.Diff(inside, view(t, w)); diff != "" {
		t.Errorf("read in the transaction and after it (-in +after):\n%s", diff)
	}
	if err := w.CheckLedger(t.Context()); err != nil {
		t.Error(err)
	}
	s, err := store.Inspect(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(inside, everything(t, s)); diff != "" {
		t.Errorf("read by a snapshot (-in +snapshot):\n%s", diff)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = storetest.MustOpen(t, w.Dir())
	if diff := cmp.Diff(inside, view(t, w)); diff != "" {
		t.Errorf("read after opening anew (-in +anew):\n%s", diff)
	}
}
