package gc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
)

// clock is a time that tests move.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time { return c.t }

func (c *clock) pass(d time.Duration) { c.t = c.t.Add(d) }

// put records a generation and makes its directory with a few files.
func put(t testing.TB, ws *store.Workspace, name string, state store.GenState, change func(*store.GenerationRow)) store.GenerationRow {
	t.Helper()
	var g store.GenerationRow
	update(t, ws, func(tx *store.Tx) error {
		id, err := tx.Next("generation")
		if err != nil {
			return err
		}
		g = store.GenerationRow{ID: id, Name: name, Origin: "made", State: state, Kind: retain.KindStates,
			Path: fmt.Sprintf("generations/%06d", id), Created: time.Now(), Changed: time.Now()}
		if state == store.GenSealed {
			g.Sealed = time.Now()
		}
		if change != nil {
			change(&g)
		}
		return tx.PutGeneration(g)
	})
	dir := ws.GenerationDir(g)
	write(t, filepath.Join(dir, "LEASE"), 0)
	write(t, filepath.Join(dir, "blob-000000.ebb"), 20000)
	write(t, filepath.Join(dir, "blob-000001.ebb"), 5000)
	if state == store.GenSealed {
		m := genindex.Manifest{Format: 1, Generation: g.ID, Name: name, Kind: "states",
			Meta:  blob.Meta{Layers: []int{1}, Hidden: 8, DType: "bf16", Codec: "raw"},
			Files: []genindex.ManifestFile{{Name: "blob-000000.ebb", Bytes: 20000, Hash: "0011223344556677"}, {Name: "blob-000001.ebb", Bytes: 5000, Hash: "0011223344556677"}}}
		if _, err := genindex.WriteManifest(nil, dir, m); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func update(t testing.TB, ws *store.Workspace, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := ws.Update(context.Background(), "test", fn); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, n), 0o666); err != nil {
		t.Fatal(err)
	}
}

func row(t testing.TB, ws *store.Workspace, id uint32) (g store.GenerationRow) {
	t.Helper()
	err := ws.View(func(r store.Reader) (err error) {
		g, _, err = r.Generation(id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func mustPlan(t testing.TB, ws *store.Workspace, o Options) *Sweep {
	t.Helper()
	s, err := Plan(t.Context(), ws, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustExecute(t testing.TB, ws *store.Workspace, o Options) *Sweep {
	t.Helper()
	s := mustPlan(t, ws, o)
	if _, err := Execute(t.Context(), ws, s, o, progress.Nop{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func item(t testing.TB, s *Sweep, id uint32) Item {
	t.Helper()
	for _, it := range s.Items {
		if it.Generation.ID == id {
			return it
		}
	}
	t.Fatalf("generation %d is not in the sweep", id)
	return Item{}
}

func there(t testing.TB, path string) bool {
	t.Helper()
	ok, err := exists(path)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// writeIndex writes a plan's index whose positions point into generations.
func writeIndex(t testing.TB, path string, gens ...uint32) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	m := blob.Meta{Layers: []int{1}, Hidden: 8, DType: "bf16", Codec: "raw", ChunkBytes: 1 << 16, Datasets: []string{"d"}}
	w, err := genindex.Create(nil, path, genindex.Meta{Datasets: []string{"d"}, Blob: m})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gens {
		if err := w.Position(genindex.Position{Gen: g, Rows: 1, Mask: genindex.NoMask}, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.Splits([]genindex.Split{{Name: "train", Count: int64(len(gens))}})
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}
