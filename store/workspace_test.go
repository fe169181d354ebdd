package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	w := storetest.MustInitFS(t, dir, nil)
	id := w.RootID()
	if len(id) != 32 {
		t.Errorf("root id %q", id)
	}
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := w.Update(t.Context(), "late", func(tx *store.Tx) error { return setCount(tx, 2) }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("update after close: %v", err)
	}
	if err := w.View(func(store.Reader) error { return nil }); err == nil {
		t.Error("view after close: no error")
	}
	w = storetest.MustInitFS(t, dir, nil)
	if w.RootID() != id || mustCount(t, w) != 1 {
		t.Errorf("a second Init made the workspace anew")
	}
}

// TestInitInterrupted: what an Init left that did not get to the marker is no
// workspace, and no obstacle to the next; a ledger with steps is.
func TestInitInterrupted(t *testing.T) {
	dir := emptyWorkspace(t)
	marker := filepath.Join(dir, "EAGLEBATCH")
	if err := os.Remove(marker); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrNoWorkspace) {
		t.Errorf("error %v, want no workspace", err)
	}
	w := storetest.MustInitFS(t, dir, nil)
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(marker); err != nil {
		t.Fatal(err)
	}
	before := read(t, logPath(dir))
	if _, err := store.Init(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("error %v, want damage: a ledger of 2 steps lies there", err)
	}
	if diff := cmp.Diff(before, read(t, logPath(dir))); diff != "" {
		t.Error("the ledger was changed")
	}
}

func TestMarker(t *testing.T) {
	tests := []struct {
		name, marker string
		is           error
		says         string
	}{
		{"newer", `{"root_id":"x","format":2}`, store.ErrNewer, "format 2, this program knows formats up to 1"},
		{"torn", `{"root_id":"x","fo`, store.ErrCorrupt, "EAGLEBATCH"},
		{"empty", ``, store.ErrCorrupt, "EAGLEBATCH"},
		{"no format", `{"root_id":"x"}`, store.ErrCorrupt, "missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := emptyWorkspace(t)
			write(t, filepath.Join(dir, "EAGLEBATCH"), []byte(tt.marker))
			for call, fn := range map[string]func() error{
				"Open":            func() error { _, err := store.Open(t.Context(), dir, store.Options{}); return err },
				"Init":            func() error { _, err := store.Init(t.Context(), dir, store.Options{}); return err },
				"Inspect":         func() error { _, err := store.Inspect(dir); return err },
				"RebuildManifest": func() error { return store.RebuildManifest(t.Context(), dir, store.Options{}) },
				"RebuildLog":      func() error { return store.RebuildLog(t.Context(), dir, store.Options{}) },
			} {
				if err := fn(); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: error %v, want %v saying %q", call, err, tt.is, tt.says)
				}
			}
		})
	}
}

func TestNoWorkspace(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "not there")} {
		if _, err := store.Open(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrNoWorkspace) {
			t.Errorf("Open: %v", err)
		}
		if _, err := store.Inspect(dir); !errors.Is(err, store.ErrNoWorkspace) {
			t.Errorf("Inspect: %v", err)
		}
		if ents, err := os.ReadDir(dir); len(ents) > 0 {
			t.Errorf("something was made: %v, %v", ents, err)
		}
	}
}

// TestOpenSweeps: only temporary files that are ours go.
func TestOpenSweeps(t *testing.T) {
	dir := emptyWorkspace(t)
	if err := os.Mkdir(filepath.Join(dir, "orders"), 0o777); err != nil {
		t.Fatal(err)
	}
	ours := []string{"checkpoints.jsonl.tmp", "manifest.db.tmp", "status.json.tmp", "orders/000001.ebo.tmp"}
	theirs := []string{"thesis.tmp", "notes"}
	for _, n := range append(ours, theirs...) {
		write(t, filepath.Join(dir, n), []byte("x"))
	}
	storetest.MustOpen(t, dir)
	for _, n := range ours {
		if _, err := os.Stat(filepath.Join(dir, n)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: still there (%v)", n, err)
		}
	}
	for _, n := range theirs {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
}

// TestOrderOfWrites: the line is durable before the transaction that makes it
// count; a compacted log is durable before it gets its name.
func TestOrderOfWrites(t *testing.T) {
	var ops []string
	rec := func(o fsx.Op) { ops = append(ops, string(o.Kind)+" "+filepath.Base(o.Path)) }
	w := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Trace: rec})
	root := filepath.Base(w.Dir())
	ops = nil
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	want := []string{"write checkpoints.jsonl", "fsync checkpoints.jsonl", "commit manifest.db"}
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("a step (-want +got):\n%s", diff)
	}
	ops = nil
	update(t, w, func(*store.Tx) error { return nil })
	if len(ops) > 0 {
		t.Errorf("a step without a change: %v", ops)
	}
	big := make([]byte, 1<<20)
	for i := range 20 {
		ops = nil
		update(t, w, func(tx *store.Tx) error { return tx.PutValue("big", big[i:]) })
		if len(ops) > len(want) {
			break
		}
	}
	want = append(want, "create checkpoints.jsonl.tmp", "write checkpoints.jsonl.tmp", "fsync checkpoints.jsonl.tmp",
		"close checkpoints.jsonl.tmp", "rename checkpoints.jsonl", "dirsync "+root, "close checkpoints.jsonl")
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("a step with compaction (-want +got):\n%s", diff)
	}
	if err := w.CheckLedger(t.Context()); err != nil {
		t.Error(err)
	}
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 2) })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = storetest.MustOpen(t, w.Dir())
	if n := mustCount(t, w); n != 2 {
		t.Errorf("count %d after compaction, want 2", n)
	}
}

func TestUpdateFails(t *testing.T) {
	w := storetest.MustInit(t)
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	no := errors.New("no")
	err := w.Update(t.Context(), "x", func(tx *store.Tx) error { return errors.Join(setCount(tx, 2), no) })
	if !errors.Is(err, no) {
		t.Errorf("error %v, want that of the function", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Update(ctx, "x", func(tx *store.Tx) error { return setCount(tx, 3) }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	for _, key := range []string{"", "\xff", strings.Repeat("k", 32769)} {
		err := w.Update(t.Context(), "x", func(tx *store.Tx) error { return tx.PutValue(key, []byte{1}) })
		if err == nil {
			t.Errorf("key %.10q: no error", key)
		}
	}
	if n := mustCount(t, w); n != 1 {
		t.Errorf("count %d, want 1", n)
	}
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 4) })
}

func TestNext(t *testing.T) {
	w := storetest.MustInit(t)
	seen := map[uint32]bool{}
	for range 3 {
		update(t, w, func(tx *store.Tx) error {
			for range 2 {
				n, err := tx.Next("generation")
				if err != nil || seen[n] || n != uint32(len(seen)+1) {
					t.Errorf("number %d after %v, error %v", n, seen, err)
				}
				seen[n] = true
			}
			if n, err := tx.Next("plan"); err != nil || n != uint32(len(seen)/2) {
				t.Errorf("plan %d, error %v", n, err)
			}
			return nil
		})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w = storetest.MustOpen(t, w.Dir())
	}
}

func TestDeletes(t *testing.T) {
	w := storetest.MustInit(t)
	update(t, w, fill)
	update(t, w, func(tx *store.Tx) error {
		err := errors.Join(tx.DeleteDataset("zwei"), tx.ClearAcceptance(), tx.PutValue("probe/a", nil), tx.PutValue("never", nil), tx.DeleteBlobs(1))
		if _, ok, _ := tx.Acceptance(); ok {
			t.Error("acceptance still there in the transaction")
		}
		return err
	})
	check := func(r store.Reader) error {
		ds, err := r.Datasets()
		if len(ds) != 1 || err != nil {
			t.Errorf("datasets %v, error %v", ds, err)
		}
		for gen, want := range map[uint32]int{1: 0, 2: 1} {
			if bs, err := r.Blobs(gen); len(bs) != want || err != nil {
				t.Errorf("generation %d: blobs %v, error %v", gen, bs, err)
			}
		}
		if qs, err := r.Quarantine(1); len(qs) > 0 || err != nil {
			t.Errorf("quarantine %v, error %v", qs, err)
		}
		for _, k := range []string{"probe/a", "never"} {
			if _, ok, err := r.Value(k); ok || err != nil {
				t.Errorf("value %s: there %v, error %v", k, ok, err)
			}
		}
		if _, ok, err := r.Acceptance(); ok || err != nil {
			t.Errorf("acceptance: there %v, error %v", ok, err)
		}
		return nil
	}
	if err := w.View(check); err != nil {
		t.Error(err)
	}
	s, err := store.Inspect(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := check(s); err != nil {
		t.Error(err)
	}
}
