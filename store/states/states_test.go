package states

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

func meta() blob.Meta {
	return blob.Meta{Layers: []int{1, 2}, Hidden: 4, DType: "bf16", Codec: "raw", ChunkBytes: 64, Model: "m", Engine: "e", Datasets: []string{"A"}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// generation writes generation no with one blob of one sample of three tokens
// or, with older, one that points to that of another generation. It returns the
// checksum of its manifest.
func generation(t *testing.T, root string, no uint32, m blob.Meta, older uint32, hash string) string {
	t.Helper()
	fs := &fsx.FS{}
	dir := filepath.Join(root, fmt.Sprintf("%06d", no))
	must(t, fs.MkdirAll(dir))
	m.Generation = no
	e := blob.Entry{Sample: 5, Rows: 3}
	if older == 0 {
		w, err := blob.Create(filepath.Join(dir, blob.FileName(0)), m, blob.WriterOptions{FS: fs})
		must(t, err)
		data := make([]byte, 3*len(m.Layers)*m.RowBytes())
		for i := range data {
			data[i] = byte(i)
		}
		must(t, errors.Join(w.Begin(e, []uint32{7, 8, 9}, []byte{0, 1, 1}), w.Rows(context.Background(), data, 3), w.End()))
		_, err = w.Commit(context.Background())
		must(t, err)
	}
	x, err := genindex.Create(fs, filepath.Join(dir, IndexName), genindex.Meta{Generation: no, Datasets: m.Datasets, Blob: m})
	must(t, err)
	if older == 0 {
		must(t, x.Blob([]blob.Entry{e}))
	}
	must(t, x.Position(genindex.Position{Gen: older, Rows: 2, Sample: 5}, nil))
	must(t, x.Finish())
	mf := genindex.Manifest{Generation: no, Meta: m, Samples: 1}
	if older != 0 {
		mf.Needs = []genindex.Need{{Generation: older, Path: fmt.Sprintf("../%06d", older), Hash: hash}}
	}
	sum, err := genindex.WriteManifest(fs, dir, mf)
	must(t, err)
	return sum
}

func first(dir string) (*Sample, error) {
	g, err := Open(dir, false)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.At(0)
}

func TestFollowsTheIndex(t *testing.T) {
	root := t.TempDir()
	sum := generation(t, root, 3, meta(), 0, "")
	generation(t, root, 8, meta(), 3, sum)
	g, err := Open(filepath.Join(root, "000008"), false)
	must(t, err)
	defer g.Close()
	s, err := g.At(0)
	must(t, err)
	defer s.Close()
	if fmt.Sprint(s.IDs, s.Mask, s.Entry.Rows, s.Reader.Meta().Generation) != "[7 8] [0 1] 3 3" {
		t.Errorf("ids %v, mask %v, entry %+v", s.IDs, s.Mask, s.Entry)
	}
	row := make([]byte, 8)
	must(t, s.Layer(row, 1, 1, 1))
	if row[0] != 24 {
		t.Errorf("token 1 of the second layer begins with %d", row[0])
	}
	if err := s.Layer(row, 1, 2, 1); err == nil {
		t.Error("a row beyond the position was given")
	}
}

// TestRefusesOthers: what lies where the index points is not what was meant.
func TestRefusesOthers(t *testing.T) {
	other := meta()
	other.DType = "fp16"
	for name, c := range map[string]struct {
		change func(t *testing.T, root string)
		says   string
	}{
		"another generation": {func(t *testing.T, root string) {
			must(t, os.RemoveAll(filepath.Join(root, "000003")))
			m := meta()
			m.Model = "another"
			generation(t, root, 3, m, 0, "")
		}, "not the generation that was meant"},
		"missing": {func(t *testing.T, root string) { must(t, os.RemoveAll(filepath.Join(root, "000003"))) }, "points here"},
		"a blob of another number": {func(t *testing.T, root string) {
			generation(t, root, 4, meta(), 0, "")
			must(t, os.Rename(filepath.Join(root, "000004", blob.FileName(0)), filepath.Join(root, "000003", blob.FileName(0))))
		}, "blob 0 of generation 4, want blob 0 of 3"},
		"other values": {func(t *testing.T, root string) {
			dir := t.TempDir()
			generation(t, dir, 3, other, 0, "")
			must(t, os.Rename(filepath.Join(dir, "000003", blob.FileName(0)), filepath.Join(root, "000003", blob.FileName(0))))
		}, "4 fp16 values"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			sum := generation(t, root, 3, meta(), 0, "")
			generation(t, root, 8, meta(), 3, sum)
			c.change(t, root)
			_, err := first(filepath.Join(root, "000008"))
			var bad *blob.CorruptError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want damage that says %q", err, c.says)
			}
		})
	}
}
