package exporter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/states"
)

// generation writes a sealed generation of two blobs: samples of 5, 9, 30 and 1
// tokens for train, one of 7 for eval. The value at token t, layer index k,
// column c of the i-th is i*1000 + t*10 + k + c/64.
func generation(t *testing.T, change func(*blob.Meta)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "000002")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f := &fsx.FS{}
	must(f.MkdirAll(dir))
	must(genindex.CreateLease(f, dir))
	m := blob.Meta{Generation: 2, Layers: []int{2, 5, 8}, Hidden: 8, DType: "fp32", LastPreNorm: true, Codec: "lz4", Model: "m", Engine: "e", Datasets: []string{"a"}}
	if change != nil {
		change(&m)
	}
	ix, err := genindex.Create(f, filepath.Join(dir, states.IndexName), genindex.Meta{Generation: 2, Datasets: m.Datasets, Blob: m})
	must(err)
	man := genindex.Manifest{Generation: 2, Name: "g", Kind: "states", Meta: m, Samples: 5}
	lengths := [][]int{{5, 9}, {30, 1, 7}}
	i := 0
	for no, ls := range lengths {
		m.Blob = uint32(no)
		name := blob.FileName(m.Blob)
		w, err := blob.Create(filepath.Join(dir, name), m, blob.WriterOptions{FS: f, Threads: 1})
		must(err)
		var entries []blob.Entry
		for _, n := range ls {
			e := blob.Entry{Sample: uint64(i), Rows: uint32(n), Tokens: [16]byte{byte(i)}, Content: [16]byte{byte(i)}}
			must(w.Begin(e, make([]uint32, n), append(make([]byte, n-1), 1)))
			must(w.Rows(t.Context(), rowsOf(m, i, n), n))
			must(w.End())
			entries = append(entries, e)
			i++
		}
		info, err := w.Commit(t.Context())
		must(err)
		man.Files = append(man.Files, genindex.ManifestFile{Name: name, Bytes: info.Bytes, Hash: info.Hash})
		must(ix.Blob(entries))
	}
	i = 0
	for no, ls := range lengths {
		for k, n := range ls {
			must(ix.Position(genindex.Position{Blob: uint32(no), Entry: uint32(k), Rows: uint32(n), Sample: uint64(i), Mask: genindex.NoMask}, nil))
			i++
		}
	}
	ix.Splits([]genindex.Split{{Name: "train", Count: 4}, {Name: "eval", First: 4, Count: 1}})
	must(ix.Finish())
	_, err = genindex.WriteManifest(f, dir, man)
	must(err)
	return dir
}

func rowsOf(m blob.Meta, i, n int) []byte {
	var b []byte
	for t := range n {
		for k := range m.Layers {
			for c := range m.Hidden {
				b, _ = binary.Append(b, binary.LittleEndian, float32(i)*1000+float32(t)*10+float32(k)+float32(c)/64)
			}
		}
	}
	return b
}

// tree is the content of every file under dir, by its path there.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestStates(t *testing.T) {
	gen, out := generation(t, nil), filepath.Join(t.TempDir(), "out")
	o := StatesOptions{FS: &fsx.FS{}, Generation: gen, Layout: "speculators", Dir: out}
	r, err := States(t.Context(), o, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Samples != 4 || r.Tokens != 45 || r.Skipped != 0 || r.Others != "eval" || r.LastNormed {
		t.Errorf("report %+v", r)
	}
	files := tree(t, out)
	for i, n := range []int{5, 9, 30, 1} {
		b := files[fmt.Sprintf("hidden_states/hs_%d.safetensors", i)]
		head := int(binary.LittleEndian.Uint64([]byte(b)))
		if got := b[8+head : 8+head+n*3*8*4]; got != string(rowsOf(blob.Meta{Layers: []int{2, 5, 8}, Hidden: 8}, i, n)) {
			t.Errorf("sample %d has other states", i)
		}
	}
	if len(files) != 4+3+2 { // states; table; export.json and files.jsonl
		t.Errorf("%d files", len(files))
	}
	var doc bookDoc
	if err := json.Unmarshal([]byte(files[bookName]), &doc); err != nil || !doc.Done || doc.Samples != 4 {
		t.Errorf("%v %+v", err, doc)
	}
	// Again: all is there. One file lost, one cut: they alone are written again.
	if r, err = States(t.Context(), o, progress.Nop{}); err != nil || r.Skipped != 4 || r.Bytes == 0 {
		t.Errorf("again: %v %+v", err, r)
	}
	for i, err := range []error{
		os.Remove(filepath.Join(out, "hidden_states/hs_1.safetensors")),
		os.Truncate(filepath.Join(out, "hidden_states/hs_2.safetensors"), 100),
	} {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if r, err = States(t.Context(), o, progress.Nop{}); err != nil || r.Skipped != 2 {
		t.Errorf("after damage: %v %+v", err, r)
	}
	for path, want := range files {
		if got := tree(t, out)[path]; path != filesName && got != want {
			t.Errorf("%s differs from the first export", path)
		}
	}
	o.Split = "eval"
	if _, err := States(t.Context(), o, progress.Nop{}); !errors.Is(err, ErrExists) {
		t.Errorf("another split into the same directory: %v", err)
	}
	o.Dir = filepath.Join(t.TempDir(), "eval")
	if r, err := States(t.Context(), o, progress.Nop{}); err != nil || r.Samples != 1 || r.Tokens != 7 {
		t.Errorf("eval: %v %+v", err, r)
	}
}

// TestStatesInterrupted fails at each file in turn, and goes on.
func TestStatesInterrupted(t *testing.T) {
	gen := generation(t, nil)
	whole := filepath.Join(t.TempDir(), "whole")
	run := func(dir string, fsys *fsx.FS) (StatesReport, error) {
		return States(t.Context(), StatesOptions{FS: fsys, Generation: gen, Layout: "modelopt", Dir: dir, Writers: 1}, progress.Nop{})
	}
	if _, err := run(whole, &fsx.FS{}); err != nil {
		t.Fatal(err)
	}
	want := tree(t, whole)
	for _, point := range []fault.Point{fault.ExportBeforeRename, fault.ExportAfterRename} {
		for n := 1; n <= 4; n++ {
			dir := filepath.Join(t.TempDir(), "out")
			if _, err := run(dir, &fsx.FS{Faults: fault.New(point, int64(n))}); err == nil {
				t.Fatalf("%s, hit %d: no error", point, n)
			}
			if r, err := run(dir, &fsx.FS{}); err != nil || r.Skipped >= 4 {
				t.Fatalf("%s, hit %d: %v, %d skipped", point, n, err, r.Skipped)
			}
			got := tree(t, dir)
			for path := range want {
				if path != filesName && got[path] != want[path] {
					t.Errorf("%s, hit %d: %s differs", point, n, path)
				}
			}
			for path := range got {
				if _, ok := want[path]; !ok {
					t.Errorf("%s, hit %d: %s was left", point, n, path)
				}
			}
		}
	}
}

// TestStatesList: a list that a crash tore is read as far as it is whole.
func TestStatesList(t *testing.T) {
	gen, out := generation(t, nil), filepath.Join(t.TempDir(), "out")
	o := StatesOptions{FS: &fsx.FS{}, Generation: gen, Layout: "modelopt", Dir: out}
	if _, err := States(t.Context(), o, progress.Nop{}); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(out, filesName)
	lines := strings.SplitAfter(tree(t, out)[filesName], "\n")
	for name, text := range map[string]string{
		"torn":        lines[0] + lines[1] + lines[2][:20],
		"zeros":       lines[0] + lines[1] + strings.Repeat("\x00", 4096),
		"huge":        lines[0] + lines[1] + strings.Repeat("x", 1<<20),
		"other index": lines[0] + lines[1] + `{"i":9,"path":"x","bytes":1,"xxh64":""}` + "\n",
	} {
		if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if r, err := States(t.Context(), o, progress.Nop{}); err != nil || r.Skipped != 2 {
			t.Errorf("%s: %v, %d skipped, want 2", name, err, r.Skipped)
		}
		if got := strings.Count(tree(t, out)[filesName], "\n"); got != 4 {
			t.Errorf("%s: %d lines afterwards", name, got)
		}
	}
}

func TestStatesRefuses(t *testing.T) {
	gen := generation(t, nil)
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	base := StatesOptions{FS: &fsx.FS{}, Generation: gen, Layout: "modelopt", Dir: filepath.Join(t.TempDir(), "out")}
	for name, tt := range map[string]struct {
		change func(*StatesOptions)
		want   string
	}{
		"no such layout": {func(o *StatesOptions) { o.Layout = "x" }, "no layout"},
		"no norm":        {func(o *StatesOptions) { o.Layout = "specforge" }, "final norm"},
		"used directory": {func(o *StatesOptions) { o.Dir = used }, "mine"},
		"no such split":  {func(o *StatesOptions) { o.Split = "test" }, "no samples"},
		"not sealed":     {func(o *StatesOptions) { o.Generation = used }, "not sealed"},
		"made-up states": {func(o *StatesOptions) { o.Generation = generation(t, func(m *blob.Meta) { m.Synthetic = true }) }, "made up"},
		"normed last state": {func(o *StatesOptions) {
			o.Layout, o.Generation = "speculators", generation(t, func(m *blob.Meta) { m.LastPreNorm = false })
		}, "twice"},
	} {
		o := base
		tt.change(&o)
		if _, err := States(t.Context(), o, progress.Nop{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l, err := genindex.Exclude(gen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := States(t.Context(), base, progress.Nop{}); !errors.Is(err, genindex.ErrGoing) {
		t.Errorf("a generation that gc is taking: %v", err)
	}
}

// TestStatesRoom refuses before it writes what the volume cannot hold.
func TestStatesRoom(t *testing.T) {
	gen, out := generation(t, nil), t.TempDir()
	src, err := openSource(StatesOptions{Generation: gen})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	src.target.Hidden = 1 << 40 // states of such a size
	x := &stateFiles{o: StatesOptions{FS: &fsx.FS{}, Dir: out}, src: src}
	if x.book, err = openBook(x.o.FS, out, identity{Samples: 4}); err != nil {
		t.Fatal(err)
	}
	defer x.book.Close()
	if err := x.room(); !errors.Is(err, store.ErrDiskFull) {
		t.Errorf("room: %v", err)
	}
}

// TestStatesLeavesNothing: a file that cannot get its name is not left under
// another.
func TestStatesLeavesNothing(t *testing.T) {
	gen, out := generation(t, nil), filepath.Join(t.TempDir(), "out")
	o := StatesOptions{FS: &fsx.FS{}, Generation: gen, Layout: "modelopt", Dir: out}
	if _, err := States(t.Context(), o, progress.Nop{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(out, "0000000001.pt")
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := States(t.Context(), o, progress.Nop{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a directory in the place of a file: %v", err)
	}
	for name := range tree(t, out) {
		if strings.HasSuffix(name, fsx.TempSuffix) {
			t.Errorf("%s was left", name)
		}
	}
}
