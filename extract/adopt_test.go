package extract

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/storetest"
)

// TestAdopt: a blob under its final name that the ledger does not know is
// taken if it is whole, and made anew if not.
func TestAdopt(t *testing.T) {
	p := planned{lengths: lengths(12, 60), change: marked(950, 1)}
	for name, damage := range map[string]func(t *testing.T, path string){
		"whole":   nil,
		"cut":     func(t *testing.T, path string) { storetest.Truncate(t, path, -10) },
		"flipped": func(t *testing.T, path string) { storetest.FlipBit(t, path, 700) },
		"other one": func(t *testing.T, path string) {
			other := filepath.Join(t.TempDir(), "b")
			w, err := blob.Create(other, blob.Meta{Layers: []int{2}, Hidden: 4, DType: "bf16", Codec: "raw", Datasets: []string{"A1"}}, blob.WriterOptions{})
			if err == nil {
				_, err = w.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			copyFile(t, other, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, p)
			o := w.options(w.backend(1, "refuse=950"))
			o.MaxQuarantined = human.Share{Absolute: 1}
			want := w.files(w.seal(o).Generation)

			w = newWorld(t, p)
			fs := &fsx.FS{Faults: fault.New(fault.BlobAfterRename, 2)}
			dir := w.ws.Dir()
			w.must(w.ws.Close())
			w.ws = storetest.MustInitFS(t, dir, fs)
			o.Backend = w.backend(1, "refuse=950")
			res, err := w.run(t.Context(), o)
			if !errors.Is(err, fault.ErrInjected) {
				t.Fatal(err)
			}
			path := w.uncounted(res.Generation)
			w.must(w.ws.Close())
			var mu sync.Mutex
			var ops []string
			w.ws = storetest.MustInitFS(t, dir, &fsx.FS{Trace: func(o fsx.Op) {
				if o.Kind == fsx.OpCommit || o.Kind == fsx.OpSyncDir {
					mu.Lock()
					defer mu.Unlock()
					ops = append(ops, string(o.Kind)+" "+filepath.Base(o.Path))
				}
			}})
			if damage != nil {
				damage(t, path)
			}
			b := w.backend(1, "refuse=950")
			o.Backend = b
			got := w.files(w.seal(o).Generation)
			sameFiles(t, want, got)
			// The first thing that the resumed run commits is that blob.
			if i := slices.Index(ops, "commit manifest.db"); damage == nil && (i < 1 || ops[i-1] != "dirsync "+filepath.Base(filepath.Dir(path))) {
				t.Errorf("the name of the adopted blob is not durable before the ledger has it: %v", ops)
			}
			if damage != nil && !w.notes.said("made anew") {
				t.Error("nothing was said of the damaged blob")
			}
		})
	}
}

// uncounted returns the path of a blob that is there and not in the ledger.
func (w *world) uncounted(g store.GenerationRow) string {
	w.t.Helper()
	var rows []store.BlobRow
	w.must(w.ws.View(func(r store.Reader) (err error) {
		rows, err = r.Blobs(g.ID)
		return err
	}))
	for no := range 100 {
		path := filepath.Join(w.ws.GenerationDir(g), blobName(no))
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if !slices.ContainsFunc(rows, func(b store.BlobRow) bool { return int(b.No) == no }) {
			return path
		}
	}
	w.t.Fatal("every blob that is there is in the ledger")
	return ""
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommittedBlobGone(t *testing.T) {
	w := newWorld(t, planned{lengths: lengths(12, 60)})
	o := w.options(w.backend(1, ""))
	o.Limit = 5
	res, err := w.run(t.Context(), o)
	w.must(err)
	w.must(os.Remove(filepath.Join(w.ws.GenerationDir(res.Generation), blobName(0))))
	if _, err := w.run(t.Context(), w.options(w.backend(1, ""))); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("%v, want damage", err)
	}
}
