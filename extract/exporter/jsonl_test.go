package exporter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"eaglebatch/ingest"
	"eaglebatch/internal/compress"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type jsonSegment struct {
	Kind string
	End  uint32
}

type jsonLine struct {
	ID       string
	IDs      []uint32 `json:"input_ids"`
	RawMask  []int    `json:"loss_mask"`
	Source   string
	Index    uint64
	File     string
	Line     int64
	Segments []jsonSegment
}

func readLines(t *testing.T, path string) []jsonLine {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := compress.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []jsonLine
	for d := json.NewDecoder(r); ; {
		var l jsonLine
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
}

// want is the line of the i-th position with at most cap tokens; 0: all.
func (w *world) want(i, most int) jsonLine {
	s := w.samples[w.order[i]]
	n := len(s.IDs)
	if most > 0 {
		n = min(n, most)
	}
	l := jsonLine{ID: s.ID, IDs: s.IDs[:n], Source: w.names[w.set(int(w.order[i]))], Index: s.Index, File: "part.jsonl", Line: s.Line}
	for _, m := range s.Mask[:n] {
		l.RawMask = append(l.RawMask, int(m))
	}
	from := 0
	for _, g := range s.Segments {
		if end := min(int(g.End), n); end > from {
			l.Segments = append(l.Segments, jsonSegment{g.Kind, uint32(end)})
			from = end
		}
	}
	return l
}

func TestJSONL(t *testing.T) {
	for _, tc := range []struct {
		name string
		most int
		z    compress.Format
		file string
	}{
		{"shuffled", 0, compress.Plain, "train.jsonl"},
		{"planned", 20, compress.Plain, "train.jsonl"},
		{"gzip", 20, compress.Gzip, "train.jsonl.gz"},
		{"zstd", 20, compress.Zstd, "train.jsonl.zst"},
		{"lz4", 20, compress.LZ4, "train.jsonl.lz4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, nil, 60)
			if tc.most > 0 {
				w.plan(tc.most)
			}
			dir := filepath.Join(t.TempDir(), "out")
			// so little memory that every reader waits for the one before
			o := JSONLOptions{Dir: dir, Compression: tc.z, Segments: true, Memory: 1}
			r, err := JSONL(t.Context(), w.ws, o, progress.Nop{})
			w.must(err)
			got := readLines(t, filepath.Join(dir, tc.file))
			if len(got) != 61 {
				t.Fatalf("%d lines, want 61", len(got))
			}
			for i := range got {
				if d := cmp.Diff(w.want(i, tc.most), got[i], cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("line %d (-want +got):\n%s", i, d)
				}
			}
			if len(r.Splits) != 2 || r.Splits[1].Split != "eval" || r.Splits[1].Samples != 1 || r.Duplicates != 4 {
				t.Fatalf("report %+v", r)
			}
			if r.Datasets[0].Samples+r.Datasets[1].Samples != 62 {
				t.Errorf("datasets %+v do not add up to 62 positions", r.Datasets)
			}
			first, err := os.ReadFile(filepath.Join(dir, tc.file))
			w.must(err)
			o.Memory = 0
			again, err := JSONL(t.Context(), w.ws, o, progress.Nop{})
			w.must(err)
			second, err := os.ReadFile(filepath.Join(dir, tc.file))
			w.must(err)
			if !bytes.Equal(first, second) || !again.Splits[0].Unchanged {
				t.Error("the second export is not the first")
			}
		})
	}
}

func TestJSONLKeepsOthersFiles(t *testing.T) {
	w := newWorld(t, nil, 20)
	path := filepath.Join(t.TempDir(), "mine.jsonl")
	w.must(os.WriteFile(path, []byte("mine\n"), 0o644))
	o := JSONLOptions{File: path}
	if _, err := JSONL(t.Context(), w.ws, o, progress.Nop{}); !errors.Is(err, ErrExists) {
		t.Fatalf("error %v, want ErrExists", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine\n" {
		t.Fatalf("the file now holds %q, %v", b, err)
	}
	o.Force = true
	r, err := JSONL(t.Context(), w.ws, o, progress.Nop{})
	w.must(err)
	if got := readLines(t, path); int64(len(got)) != w.train || r.Splits[0].Samples != w.train {
		t.Fatalf("%d lines, want %d", len(got), w.train)
	}
	if _, err := os.Stat(path + fsx.TempSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a temporary file is left: %v", err)
	}
}

func TestJSONLFaults(t *testing.T) {
	for _, p := range []fault.Point{fault.ExportBeforeRename, fault.ExportAfterRename} {
		t.Run(string(p), func(t *testing.T) {
			w := newWorld(t, &fsx.FS{Faults: fault.New(p, 1)}, 20)
			path := filepath.Join(t.TempDir(), "o.jsonl")
			if _, err := JSONL(t.Context(), w.ws, JSONLOptions{File: path}, progress.Nop{}); err == nil {
				t.Fatal("the fault was not reached")
			}
			_, serr := os.Stat(path)
			if there := serr == nil; there != (p == fault.ExportAfterRename) {
				t.Errorf("file there: %v", there)
			}
			r, err := JSONL(t.Context(), w.ws, JSONLOptions{File: path}, progress.Nop{})
			w.must(err)
			if r.Splits[0].Samples != w.train {
				t.Errorf("%d samples", r.Splits[0].Samples)
			}
		})
	}
}

func TestJSONLNotShuffled(t *testing.T) {
	w := newWorld(t, nil, 20)
	w.update(func(tx *store.Tx) error {
		return tx.PutPhase(store.PhaseRow{Name: store.PhaseShuffle, State: store.Stale})
	})
	if _, err := JSONL(t.Context(), w.ws, JSONLOptions{Dir: t.TempDir()}, progress.Nop{}); !errors.Is(err, errNotShuffled) {
		t.Fatalf("error %v", err)
	}
}

func TestInOrder(t *testing.T) {
	var out, most atomic.Int64
	var got []int64
	err := inOrder(t.Context(), work[int64]{
		n: 500, readers: 7, budget: 10,
		cost: func(i int64) int64 { return i % 13 },
		do: func(_ context.Context, i int64) (int64, error) {
			n := out.Add(min(i%13, 10))
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Duration(i%3) * 10 * time.Microsecond)
			return i, nil
		},
		emit: func(i, v int64) error {
			out.Add(-min(i%13, 10))
			got = append(got, v)
			return nil
		},
	})
	if err != nil || len(got) != 500 {
		t.Fatalf("%d results, %v", len(got), err)
	}
	for i, v := range got {
		if int64(i) != v {
			t.Fatalf("result %d is %d", i, v)
		}
	}
	if most.Load() > 10 {
		t.Errorf("%d under way at once, budget 10", most.Load())
	}
}

func TestInOrderEnds(t *testing.T) {
	boom := errors.New("boom")
	base := work[int]{n: 1 << 40, readers: 3, budget: 100, cost: func(int64) int64 { return 1 },
		do: func(context.Context, int64) (int, error) { return 0, nil }, emit: func(int64, int) error { return nil }}
	w := base
	w.do = func(_ context.Context, i int64) (int, error) {
		if i == 50 {
			return 0, boom
		}
		return 0, nil
	}
	if err := inOrder(t.Context(), w); !errors.Is(err, boom) {
		t.Errorf("of work: %v", err)
	}
	w = base
	w.emit = func(i int64, _ int) error {
		if i == 50 {
			return boom
		}
		return nil
	}
	if err := inOrder(t.Context(), w); !errors.Is(err, boom) {
		t.Errorf("of emit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.emit = func(i int64, _ int) error {
		if i == 50 {
			cancel()
		}
		return nil
	}
	if err := inOrder(ctx, w); !errors.Is(err, context.Canceled) {
		t.Errorf("of the context: %v", err)
	}
}

// TestJSONLImported merges an export: the same samples in the exported order.
func TestJSONLImported(t *testing.T) {
	w := newWorld(t, nil, 60)
	path := filepath.Join(t.TempDir(), "o.jsonl.zst")
	_, err := JSONL(t.Context(), w.ws, JSONLOptions{File: path, Compression: compress.Zstd}, progress.Nop{})
	w.must(err)
	ws := storetest.MustInit(t)
	st, err := ingest.Run(t.Context(), ws, ingest.Options{Datasets: []ingest.Dataset{{Name: "X", Paths: []string{path}}},
		VocabSize: 163840, Dedup: ingest.DedupNone, MinLossTokens: 1}, progress.Nop{})
	w.must(err)
	d := st.Datasets[0]
	if d.Accepted != w.train || d.Lines != w.train {
		t.Fatalf("%d of %d lines accepted, want %d", d.Accepted, d.Lines, w.train)
	}
	s, err := samples.Open(ws.SamplesDir(d.SamplesGen), d.Accepted, samples.Options{})
	w.must(err)
	defer s.Close()
	for i := range w.train {
		got, err := s.Get(t.Context(), d.ID, uint64(i))
		w.must(err)
		want := w.samples[w.order[i]]
		if got.ID != want.ID || !slices.Equal(got.IDs, want.IDs) || !bytes.Equal(got.Mask, want.Mask) {
			t.Fatalf("line %d came back as another sample: id %q, want %q", i, got.ID, want.ID)
		}
	}
}
