package blob

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"eaglebatch/internal/fsx"
)

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
