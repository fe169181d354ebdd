package genindex

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

// plan is an index as a test wrote it.
type plan struct {
	meta      Meta
	blobs     [][]blob.Entry
	positions []Position
	masks     [][]byte // of positions; nil: the entry's
}

func testMeta() Meta {
	return Meta{
		Generation: 7, Datasets: []string{"A", "B", "C"},
		Blob: blob.Meta{Generation: 7, Layers: []int{2, 8}, Hidden: 4, DType: "bf16", Codec: "raw", ChunkBytes: 64, Datasets: []string{"A"}},
	}
}

func randomPlan(r *rand.Rand, blobs int) plan {
	p := plan{meta: testMeta()}
	for range blobs {
		var es []blob.Entry
		for range r.IntN(5) {
			e := blob.Entry{Dataset: r.Uint32N(3), Sample: r.Uint64(), Rows: 1 + r.Uint32N(50)}
			for i := range e.Tokens {
				e.Tokens[i], e.Content[i] = byte(r.Uint32()), byte(r.Uint32())
			}
			es = append(es, e)
		}
		p.blobs = append(p.blobs, es)
		for i, e := range es {
			for range 1 + r.IntN(2) { // repeated samples
				pos := Position{Blob: uint32(len(p.blobs) - 1), Entry: uint32(i), Rows: 1 + r.Uint32N(e.Rows), Dataset: r.Uint32N(3), Sample: r.Uint64()}
				if r.IntN(4) == 0 {
					pos.Gen, pos.Blob = 1+r.Uint32N(6), r.Uint32()
				}
				p.positions = append(p.positions, pos)
				var mask []byte
				if r.IntN(3) == 0 {
					mask = make([]byte, pos.Rows)
					for t := range mask {
						mask[t] = byte(r.IntN(2))
					}
				}
				p.masks = append(p.masks, mask)
			}
		}
	}
	n := int64(len(p.positions))
	p.meta.Splits = []Split{{"train", 0, n - n/4}, {"eval", n - n/4, n / 4}}
	return p
}

// write writes a plan, blobs and positions mixed.
func (p plan) write(tb testing.TB, f *fsx.FS, path string) {
	tb.Helper()
	m := p.meta
	m.Splits = nil
	w, err := Create(f, path, m)
	if err != nil {
		tb.Fatal(err)
	}
	b := 0
	for i := range p.positions {
		if i%3 == 0 && b < len(p.blobs) {
			if err := w.Blob(p.blobs[b]); err != nil {
				tb.Fatal(err)
			}
			b++
		}
		if err := w.Position(p.positions[i], p.masks[i]); err != nil {
			tb.Fatal(err)
		}
	}
	for ; b < len(p.blobs); b++ {
		if err := w.Blob(p.blobs[b]); err != nil {
			tb.Fatal(err)
		}
	}
	w.Splits(p.meta.Splits)
	if err := w.Finish(); err != nil {
		tb.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		tb.Fatal(err)
	}
}

// wrong says how f differs from p.
func (p plan) wrong(f *File) string {
	if diff := cmp.Diff(p.meta, f.Meta()); diff != "" {
		return diff
	}
	if f.Positions() != int64(len(p.positions)) || f.Blobs() != len(p.blobs) {
		return "counts differ"
	}
	for no, es := range p.blobs {
		n := 0
		for i, e := range f.Entries(no) {
			if i >= len(es) || e != es[i] || f.Entry(no, i) != e {
				return "entries differ"
			}
			n++
		}
		if n != len(es) || n != f.BlobEntries(no) {
			return "entry counts differ"
		}
	}
	for i, want := range p.positions {
		got := f.Position(int64(i))
		if (got.Mask == NoMask) != (p.masks[i] == nil) {
			return "masks differ"
		}
		if got.Mask != NoMask && !bytes.Equal(f.Mask(got.Mask, int(got.Rows)), p.masks[i]) {
			return "masks differ"
		}
		if want.Mask = got.Mask; got != want {
			return cmp.Diff(want, got)
		}
	}
	return ""
}

func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		p := randomPlan(r, i*i/2)
		if i%5 == 0 {
			p.meta.Splits = nil
		}
		path := filepath.Join(t.TempDir(), "index.ebi")
		p.write(t, nil, path)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.wrong(f); d != "" {
			t.Fatal(d)
		}
		if err := errors.Join(f.Verify(), f.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(filepath.Dir(path) + "/*")
		if err != nil || len(names) != 1 {
			t.Fatalf("left %v (%v)", names, err)
		}
	}
}

func TestFinishIsDurableInOrder(t *testing.T) {
	var ops []string
	f := &fsx.FS{Trace: func(o fsx.Op) {
		if strings.HasSuffix(o.Path, "index.ebi") || strings.HasSuffix(o.Path, "index.ebi.tmp") || o.Kind == fsx.OpSyncDir {
			ops = append(ops, string(o.Kind))
		}
	}}
	randomPlan(rand.New(rand.NewPCG(1, 1)), 5).write(t, f, filepath.Join(t.TempDir(), "index.ebi"))
	if got, want := strings.Join(ops, " "), "create write fsync close rename dirsync"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWriterMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := Create(nil, filepath.Join(t.TempDir(), "index.ebi"), testMeta())
	if err != nil {
		t.Fatal(err)
	}
	const n = 200_000 // 8 MB of positions, 9.6 MB of entries
	entries, mask := make([]blob.Entry, 100), make([]byte, 64)
	for i := range entries {
		entries[i].Rows = 64
	}
	for i := range n {
		if i%len(entries) == 0 {
			if err := w.Blob(entries); err != nil {
				t.Fatal(err)
			}
		}
		p := Position{Blob: uint32(i / len(entries)), Entry: uint32(i % len(entries)), Rows: 64}
		if err := w.Position(p, mask); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 3<<20 {
		t.Errorf("%d bytes allocated for %d positions", got, n)
	}
}

func TestWriterRefuses(t *testing.T) {
	e := []blob.Entry{{Rows: 4}}
	for _, tt := range []struct {
		name, want string
		do         func(w *Writer) error
	}{
		{"no such blob", "no entry 0 in blob 1", func(w *Writer) error { return w.Position(Position{Blob: 1, Rows: 1}, nil) }},
		{"no such entry", "no entry 1 in blob 0", func(w *Writer) error { return w.Position(Position{Entry: 1, Rows: 1}, nil) }},
		{"too many rows", "5 rows of an entry of 4", func(w *Writer) error { return w.Position(Position{Rows: 5}, nil) }},
		{"no rows", "0 rows", func(w *Writer) error { return w.Position(Position{}, nil) }},
		{"dataset", "dataset 3 of 3", func(w *Writer) error { return w.Position(Position{Rows: 1, Dataset: 3}, nil) }},
		{"mask length", "2 mask bytes for 3 rows", func(w *Writer) error { return w.Position(Position{Rows: 3}, []byte{0, 1}) }},
		{"mask value", "mask[0] is 2", func(w *Writer) error { return w.Position(Position{Rows: 1}, []byte{2}) }},
		{"splits", "splits have 0 of 1", func(w *Writer) error {
			w.Splits([]Split{{"train", 0, 0}})
			return w.Position(Position{Rows: 1}, nil)
		}},
		{"split order", "split", func(w *Writer) error {
			w.Splits([]Split{{"train", 1, 1}})
			return w.Position(Position{Rows: 1}, nil)
		}},
	} {
		path := filepath.Join(t.TempDir(), "index.ebi")
		w, err := Create(nil, path, testMeta())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Blob(e); err != nil {
			t.Fatal(err)
		}
		err = tt.do(w)
		if err == nil {
			err = w.Finish()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
		if names, err := filepath.Glob(filepath.Dir(path) + "/*"); err != nil || len(names) != 0 {
			t.Errorf("%s: left %v (%v)", tt.name, names, err)
		}
		if err := w.Blob(e); err == nil {
			t.Errorf("%s: used after Abort", tt.name)
		}
	}
}

// mustRefuse holds a damaged file to the promise: it does not open.
func mustRefuse(t *testing.T, what string, data []byte) {
	t.Helper()
	f := &File{path: "x", b: data}
	var bad *blob.CorruptError
	if len(data) < headBytes+trailerBytes {
		return // mapFile refuses it; see TestShortFiles
	}
	if err := f.check(); !errors.As(err, &bad) {
		t.Fatalf("%s: %v", what, err)
	}
}

func smallFile(tb testing.TB) []byte {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "index.ebi")
	randomPlan(rand.New(rand.NewPCG(6, 6)), 8).write(tb, nil, path)
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestEveryBitCounts(t *testing.T) {
	b := smallFile(t)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			mustRefuse(t, "bit flipped", b)
			b[i] ^= 1 << bit
		}
		mustRefuse(t, "cut", b[:i])
	}
	mustRefuse(t, "appended", append(bytes.Clone(b), 0))
}

func TestShortFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.ebi")
	for _, n := range []int{0, 1, 31, 95} {
		if err := os.WriteFile(path, make([]byte, n), 0o666); err != nil {
			t.Fatal(err)
		}
		var bad *blob.CorruptError
		if _, err := Open(path); !errors.As(err, &bad) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := Open(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

// FuzzOpen looks behind the checksums: it makes them right again, so that the
// checks of the numbers are what is tried.
func FuzzOpen(f *testing.F) {
	b := smallFile(f)
	f.Add(b, 40, byte(1))
	f.Add(b[:len(b)-1], 0, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, at int, v byte) {
		if len(data) < headBytes+trailerBytes {
			return
		}
		data = bytes.Clone(data)
		data[uint(at)%uint(len(data))] ^= v
		reseal(data)
		file := &File{path: "x", b: data}
		if file.check() != nil {
			return
		}
		for i := range file.Positions() {
			if p := file.Position(i); p.Mask != NoMask {
				_ = file.Mask(p.Mask, int(p.Rows))
			} else if p.Gen == 0 {
				_ = file.Entry(int(p.Blob), int(p.Entry))
			}
		}
		for no := range file.Blobs() {
			for range file.Entries(no) {
				continue
			}
		}
	})
}

func reseal(b []byte) {
	size := int64(len(b))
	copy(b, magicHead)
	binary.LittleEndian.PutUint32(b[16:], 0)
	binary.LittleEndian.PutUint32(b[28:], crc32.ChecksumIEEE(b[:28]))
	end := b[size-trailerBytes:]
	copy(end[56:], magicTail)
	binary.LittleEndian.PutUint32(end[52:], crc32.ChecksumIEEE(end[:52]))
	s, err := parseTrailer(end, size)
	if err != nil {
		return
	}
	for k := range s.blocks() {
		from, to := k*blockBytes, min((k+1)*blockBytes, s.metaAt())
		binary.LittleEndian.PutUint32(b[s.blocksAt()+4*k:], crc32.ChecksumIEEE(b[from:to]))
	}
	binary.LittleEndian.PutUint32(end[48:], crc32.ChecksumIEEE(b[s.metaAt():size-trailerBytes]))
	binary.LittleEndian.PutUint32(end[52:], crc32.ChecksumIEEE(end[:52]))
}
