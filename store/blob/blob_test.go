package blob

import (
	"bytes"
	"context"
	"errors"
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
	bound := WriterMemory(m, 2) + 1<<20 // tables, ids
	if got := int64(after.TotalAlloc - before.TotalAlloc); got > bound || info.RawBytes != 48<<20 {
		t.Errorf("%d bytes allocated for %d of states, want at most %d", got, info.RawBytes, bound)
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

func TestWindowsOfSplitSamples(t *testing.T) {
	for _, tt := range []struct {
		index  uint64
		window uint32
		want   uint64
	}{{7, 0, 7}, {7, 1, 1<<40 | 7}, {1<<40 - 1, 1<<24 - 1, 1<<64 - 1}} {
		got := WindowSample(tt.index, tt.window)
		index, window := SplitSample(got)
		if got != tt.want || index != tt.index || window != tt.window {
			t.Errorf("window %d of %d: %#x, back as %d of %d", tt.window, tt.index, got, window, index)
		}
	}
}
