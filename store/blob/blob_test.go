package blob

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

func TestRoundTrip(t *testing.T) {
	codecs := []string{"raw", "lz4", "lz4-planes", "dense"}
	dtypes := []string{"bf16", "fp16", "fp32", "fp8"}
	rules := []string{"", RowsAll, RowsLastSupervised, RowsCutTail, RowsBoth}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 160 {
		m := testMeta(codecs[i%4], dtypes[i/4%4])
		m.Rows = rules[r.IntN(len(rules))]
		m.Hidden = 1 + r.IntN(70)
		m.Layers = [][]int{{0}, {2, 4, 8}, {1, 2, 3, 4, 5, 6, 7}}[r.IntN(3)]
		m.ChunkBytes = []int{1, 100, 1000, 20_000}[r.IntN(4)]
		var samples []sample
		for range r.IntN(6) {
			s := randomSample(r, m, 1+r.IntN(90))
			if r.IntN(5) == 0 {
				s.reason = "engine said no: größer als erlaubt"
			}
			samples = append(samples, s)
		}
		path := blobPath(t)
		info := write(t, path, m, WriterOptions{Threads: 1 + r.IntN(3)}, samples)
		checkBlob(t, path, m, samples, info)
		if t.Failed() {
			t.Fatalf("case %d: %+v", i, m)
		}
	}
}

func checkBlob(t *testing.T, path string, m Meta, samples []sample, info Info) {
	t.Helper()
	r := mustOpen(t, path)
	if diff := cmp.Diff(m, r.Meta()); diff != "" {
		t.Error(diff)
	}
	want := Info{Entries: len(samples)}
	for i, s := range samples {
		wrong, failed := checkSample(r, m, i, s)
		if wrong != nil || failed != nil {
			t.Error(wrong, failed)
		}
		if s.reason != "" {
			want.Absent++
			if _, err := r.IDs(i); !errors.Is(err, ErrAbsent) {
				t.Errorf("ids of an absent entry: %v", err)
			}
			continue
		}
		want.Tokens += int64(len(s.ids))
		for l := range m.Layers {
			all := s.layerOf(m, l)
			want.RawBytes += int64(len(all))
			checkRanges(t, r, m, i, l, all)
		}
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	want.Bytes = st.Size()
	if want.Hash, err = HashFile(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, info); diff != "" {
		t.Error(diff)
	}
	n, err := r.Verify(context.Background(), func(d Damage) { t.Errorf("damage in a sound file: %+v", d) })
	if err != nil || n != want.Bytes {
		t.Errorf("verify read %d of %d bytes: %v", n, want.Bytes, err)
	}
}

// checkRanges reads parts of a layer.
func checkRanges(t *testing.T, r *Reader, m Meta, entry, layer int, all []byte) {
	t.Helper()
	rb := m.RowBytes()
	rnd := rand.New(rand.NewPCG(uint64(entry), uint64(layer)))
	n := len(all) / rb
	for range 4 {
		first := rnd.IntN(n + 1)
		k := rnd.IntN(n - first + 1)
		got := make([]byte, k*rb)
		if err := r.Layer(got, entry, layer, first, k); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, all[first*rb:(first+k)*rb]) {
			t.Errorf("entry %d layer %d rows [%d, +%d): wrong values", entry, layer, first, k)
		}
	}
	if err := r.Layer(make([]byte, 2*rb), entry, layer, max(0, n-1), 2); err == nil {
		t.Errorf("entry %d layer %d: rows past the end were read", entry, layer)
	}
}

func TestSameBytesWhateverTheThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, codec := range []string{"raw", "lz4", "lz4-planes", "dense"} {
		m := testMeta(codec, "bf16")
		m.Rows, m.ChunkBytes = RowsLastSupervised, 1000
		var samples []sample
		for range 20 {
			samples = append(samples, randomSample(r, m, 1+r.IntN(200)))
		}
		var first []byte
		for threads := range 5 {
			path := blobPath(t)
			write(t, path, m, WriterOptions{Threads: threads}, samples)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if threads == 0 {
				first = b
			} else if !bytes.Equal(first, b) {
				t.Errorf("%s: %d threads give other bytes", codec, threads)
			}
		}
	}
}

// A long sample goes through in pieces; what the writer allocates does not grow
// with it.
func TestWriterMemoryIsBounded(t *testing.T) {
	m := testMeta("raw", "bf16")
	m.Hidden, m.ChunkBytes = 1024, 64<<10
	const rows, piece = 8192, 64 // 48 MiB
	data := make([]byte, piece*len(m.Layers)*m.RowBytes())
	ids, mask := make([]uint32, rows), make([]byte, rows)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := Create(blobPath(t), m, WriterOptions{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Begin(Entry{Rows: rows}, ids, mask); err != nil {
		t.Fatal(err)
	}
	for range rows / piece {
		if err := w.Rows(context.Background(), data, piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	info, err := w.Commit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 || info.RawBytes != 48<<20 {
		t.Errorf("%d bytes allocated for %d of states", got, info.RawBytes)
	}
}

func TestCommitIsDurableInOrder(t *testing.T) {
	var ops []string
	fsys := &fsx.FS{Trace: func(o fsx.Op) {
		if o.Kind != fsx.OpWrite || len(ops) == 0 || ops[len(ops)-1] != string(fsx.OpWrite) {
			ops = append(ops, string(o.Kind))
		}
	}}
	m := testMeta("raw", "bf16")
	path := blobPath(t)
	write(t, path, m, WriterOptions{FS: fsys, Threads: 1}, []sample{randomSample(rand.New(rand.NewPCG(1, 1)), m, 9)})
	if got, want := strings.Join(ops, " "), "create write fsync close rename dirsync"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestFaultsAroundCommit(t *testing.T) {
	m := testMeta("raw", "bf16")
	s := randomSample(rand.New(rand.NewPCG(1, 1)), m, 9)
	for _, p := range []fault.Point{fault.BlobBeforeSync, fault.BlobBeforeRename, fault.BlobAfterRename} {
		path := blobPath(t)
		w, err := Create(path, m, WriterOptions{FS: &fsx.FS{Faults: fault.New(p, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Begin(s.entry, s.ids, s.mask); err != nil {
			t.Fatal(err)
		}
		if err := w.Rows(context.Background(), s.data, len(s.ids)); err != nil {
			t.Fatal(err)
		}
		if err := w.End(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(context.Background()); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("%s: %v", p, err)
		}
		if err := w.Abort(); err != nil {
			t.Errorf("%s: abort: %v", p, err)
		}
		names, err := filepath.Glob(filepath.Dir(path) + "/*")
		if err != nil {
			t.Fatal(err)
		}
		if p == fault.BlobAfterRename {
			r := mustOpen(t, path)
			if wrong, failed := checkSample(r, m, 0, s); wrong != nil || failed != nil {
				t.Error(wrong, failed)
			}
		} else if len(names) != 0 {
			t.Errorf("%s: left %v", p, names)
		}
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	m := testMeta("lz4", "bf16")
	path := blobPath(t)
	w, err := Create(path, m, WriterOptions{Tag: "slot-2"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ".slot-2.tmp"); err != nil {
		t.Error(err)
	}
	s := randomSample(rand.New(rand.NewPCG(1, 1)), m, 200)
	if err := w.Begin(s.entry, s.ids, s.mask); err != nil {
		t.Fatal(err)
	}
	step := len(m.Layers) * m.RowBytes()
	if err := w.Rows(context.Background(), s.data[:150*step], 150); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path + ".slot-2.tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("temporary file is still there")
	}
	if err := w.End(); err == nil {
		t.Error("End after Abort went through")
	}
}

// A write that fails behind the writer is reported by a later call, by all
// after it, and never lost.
func TestWriteErrorSurfaces(t *testing.T) {
	m := testMeta("raw", "bf16")
	m.Hidden, m.ChunkBytes = 4096, 64<<10
	w, err := Create(blobPath(t), m, WriterOptions{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.f.Close(); err != nil {
		t.Fatal(err)
	}
	const rows = 400
	if err := w.Begin(Entry{Rows: rows}, make([]uint32, rows), make([]byte, rows)); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, len(m.Layers)*m.RowBytes())
	for range rows {
		if err = w.Rows(context.Background(), data, 1); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrClosed) {
		t.Errorf("rows after a failed write: %v", err)
	}
	if _, err := w.Commit(context.Background()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("commit after a failed write: %v", err)
	}
}

func TestRowsStopsWithContext(t *testing.T) {
	m := testMeta("raw", "bf16")
	w, err := Create(blobPath(t), m, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := randomSample(rand.New(rand.NewPCG(1, 1)), m, 20)
	if err := w.Begin(s.entry, s.ids, s.mask); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Rows(ctx, s.data, 20); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}

func TestMisuse(t *testing.T) {
	m := testMeta("raw", "bf16")
	row := make([]byte, len(m.Layers)*m.RowBytes())
	e := Entry{Rows: 2}
	begin := func(w *Writer) error { return w.Begin(e, []uint32{1, 2}, []byte{0, 1}) }
	ctx := context.Background()
	for _, tt := range []struct {
		name, want string
		do         func(w *Writer) error
	}{
		{"rows first", "Rows without Begin", func(w *Writer) error { return w.Rows(ctx, row, 1) }},
		{"end first", "End without Begin", func(w *Writer) error { return w.End() }},
		{"begin twice", "Begin before End", func(w *Writer) error { return errors.Join(begin(w), begin(w)) }},
		{"skip inside", "Skip before End", func(w *Writer) error { return errors.Join(begin(w), w.Skip(e, "x")) }},
		{"commit inside", "Commit before End", func(w *Writer) error { _, err := w.Commit(ctx); return errors.Join(begin(w), err) }},
		{"few rows", "End after 1 of 2 rows", func(w *Writer) error { return errors.Join(begin(w), w.Rows(ctx, row, 1), w.End()) }},
		{"many rows", "3 rows, want 2", func(w *Writer) error {
			return errors.Join(begin(w), w.Rows(ctx, bytes.Repeat(row, 3), 3))
		}},
		{"short data", "bytes for 1 rows", func(w *Writer) error { return errors.Join(begin(w), w.Rows(ctx, row[1:], 1)) }},
		{"ids", "1 ids and 2 mask", func(w *Writer) error { return w.Begin(e, []uint32{1}, []byte{0, 1}) }},
		{"mask value", "mask[1] is 7", func(w *Writer) error { return w.Begin(e, []uint32{1, 2}, []byte{0, 7}) }},
		{"dataset", "dataset 2 of 2", func(w *Writer) error { return w.Skip(Entry{Rows: 1, Dataset: 2}, "x") }},
		{"no rows", "0 rows", func(w *Writer) error { return w.Begin(Entry{}, nil, nil) }},
		{"no reason", "without a reason", func(w *Writer) error { return w.Skip(e, "") }},
	} {
		w, err := Create(blobPath(t), m, WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if tt.name == "commit inside" {
			if err := begin(w); err != nil {
				t.Fatal(err)
			}
		}
		if err := tt.do(w); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
		if _, err := w.Commit(ctx); err == nil {
			t.Errorf("%s: committed", tt.name)
		}
		if err := w.Abort(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*Meta)
	}{
		{"no layers", func(m *Meta) { m.Layers = nil }},
		{"descending layers", func(m *Meta) { m.Layers = []int{3, 2} }},
		{"negative layer", func(m *Meta) { m.Layers = []int{-1} }},
		{"hidden", func(m *Meta) { m.Hidden = 0 }},
		{"dtype", func(m *Meta) { m.DType = "int4" }},
		{"codec", func(m *Meta) { m.Codec = "gzip" }},
		{"chunk", func(m *Meta) { m.ChunkBytes = 1 << 30 }},
		{"rows", func(m *Meta) { m.Rows = "some" }},
		{"text", func(m *Meta) { m.Model = "\xff" }},
	} {
		m := testMeta("raw", "bf16")
		tt.set(&m)
		path := blobPath(t)
		if _, err := Create(path, m, WriterOptions{}); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
		if _, err := os.Stat(path + fsx.TempSuffix); err == nil {
			t.Errorf("%s: left a file", tt.name)
		}
	}
}

func TestSkipBoundsReasons(t *testing.T) {
	m := testMeta("raw", "bf16")
	path := blobPath(t)
	write(t, path, m, WriterOptions{}, []sample{{entry: Entry{Rows: 1}, reason: strings.Repeat("ä", 5000) + "\xff"}})
	r := mustOpen(t, path)
	reason, absent := r.Absent(0)
	if !absent || len(reason) > maxReason || !strings.HasSuffix(reason, "ä…") {
		t.Errorf("absent %v, %d bytes, ends in %q", absent, len(reason), reason[len(reason)-8:])
	}
}

func TestSelectedRows(t *testing.T) {
	for _, tt := range []struct {
		rows         string
		mask         []byte
		last, others int
	}{
		{RowsAll, []byte{0, 1, 0, 0, 0}, 5, 5},
		{RowsLastSupervised, []byte{0, 0, 0, 1, 0, 0}, 3, 6},
		{RowsCutTail, []byte{0, 1, 0, 0, 0, 0}, 3, 3},
		{RowsBoth, []byte{0, 0, 0, 1, 0, 0}, 3, 5},
		{RowsBoth, []byte{0, 0, 0}, 0, 3},
		{RowsLastSupervised, []byte{1}, 1, 1},
	} {
		last, others, err := SelectedRows(tt.rows, tt.mask)
		if err != nil || last != tt.last || others != tt.others {
			t.Errorf("%s %v: %d, %d, %v; want %d, %d", tt.rows, tt.mask, last, others, err, tt.last, tt.others)
		}
	}
	if _, _, err := SelectedRows("most", nil); err == nil {
		t.Error("unknown rule accepted")
	}
}

func TestConcurrentReads(t *testing.T) {
	m := testMeta("lz4-planes", "bf16")
	rnd := rand.New(rand.NewPCG(8, 8))
	var samples []sample
	for range 12 {
		samples = append(samples, randomSample(rnd, m, 1+rnd.IntN(80)))
	}
	path := blobPath(t)
	write(t, path, m, WriterOptions{}, samples)
	r := mustOpen(t, path)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for k := range samples {
				i := (k*5 + g) % len(samples)
				if wrong, failed := checkSample(r, m, i, samples[i]); wrong != nil || failed != nil {
					t.Error(wrong, failed)
				}
			}
		})
	}
	wg.Wait()
}
