package cli

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

var probeMeta = blob.Meta{Layers: []int{1, 2}, Hidden: 8, DType: "bf16", Codec: "raw", Datasets: []string{"probe"}}

const probeRow = 2 * 8 * 2 // bytes of a token's rows

// script answers each request with what answer makes of it.
type script struct {
	backend.Backend
	answer func(r backend.Request, emit func(backend.Chunk) error) error
}

func (s script) Serve(ctx context.Context, _ int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r, ok := <-in:
			if !ok {
				return nil
			}
			if err := s.answer(r, emit); err != nil {
				return err
			}
		}
	}
}

func rowsOf(r backend.Request, first, n int) backend.Chunk {
	return backend.Chunk{ID: r.ID, First: first, Rows: n, Data: make([]byte, n*probeRow)}
}

// byHalves answers in two chunks.
func byHalves(r backend.Request, emit func(backend.Chunk) error) error {
	h := len(r.Tokens) / 2
	return errors.Join(emit(rowsOf(r, 0, h)), emit(rowsOf(r, h, len(r.Tokens)-h)))
}

func probeSamples(lengths ...int) []*samples.Sample {
	var out []*samples.Sample
	for i, n := range lengths {
		s := &samples.Sample{Index: uint64(i), IDs: make([]uint32, n), Mask: make([]byte, n)}
		s.IDs[0], s.Mask[n-1] = uint32(i), 1
		out = append(out, s)
	}
	return out
}

func TestProbeRun(t *testing.T) {
	oom := &backend.SampleError{Code: "oom", Err: errors.New("out of memory")}
	tests := []struct {
		name    string
		memory  int64 // in rows
		lengths []int
		slots   int
		answer  func(r backend.Request, emit func(backend.Chunk) error) error
		failed  int
		tokens  int64
		err     string
	}{
		{name: "all at once", memory: 100, lengths: []int{10, 9, 8}, slots: 1, answer: byHalves, tokens: 27},
		{name: "less credit than samples", memory: 10, lengths: []int{10, 9, 8, 7}, slots: 3, answer: byHalves, tokens: 34},
		{name: "larger than the credit", memory: 8, lengths: []int{30, 20, 8, 2}, slots: 3, answer: byHalves, tokens: 60},
		{name: "a failed sample gives its credit back", memory: 10, lengths: []int{10, 9, 8}, slots: 2, failed: 1, tokens: 18,
			answer: func(r backend.Request, emit func(backend.Chunk) error) error {
				if r.ID != 1 {
					return byHalves(r, emit)
				}
				return errors.Join(emit(rowsOf(r, 0, 3)), emit(backend.Chunk{ID: 1, Err: oom}))
			}},
		{name: "a large sample that fails at once", memory: 8, lengths: []int{30, 8}, slots: 1, failed: 1, tokens: 8,
			answer: func(r backend.Request, emit func(backend.Chunk) error) error {
				if r.ID == 0 {
					return emit(backend.Chunk{ID: 0, Err: oom})
				}
				return byHalves(r, emit)
			}},
		{name: "a large sample that fails in the middle", memory: 8, lengths: []int{30, 8}, slots: 1, err: "failed after 3 rows",
			answer: func(r backend.Request, emit func(backend.Chunk) error) error {
				return errors.Join(emit(rowsOf(r, 0, 3)), emit(backend.Chunk{ID: r.ID, Err: oom}))
			}},
		{name: "an engine that dies while others wait for credit", memory: 10, lengths: []int{10, 9, 8}, slots: 2, err: "gone",
			answer: func(backend.Request, func(backend.Chunk) error) error { return errors.New("gone") }},
		{name: "a sample without answer", memory: 100, lengths: []int{10, 9}, slots: 1, err: "1 of 2 samples were never answered",
			answer: func(r backend.Request, emit func(backend.Chunk) error) error {
				if r.ID == 1 {
					return nil
				}
				return byHalves(r, emit)
			}},
		{name: "answered twice", memory: 100, lengths: []int{10}, slots: 1, err: "not open",
			answer: func(r backend.Request, emit func(backend.Chunk) error) error {
				return errors.Join(byHalves(r, emit), byHalves(r, emit))
			}},
		{name: "too many rows", memory: 100, lengths: []int{10}, slots: 1, err: "after 0 of 10 rows",
			answer: func(r backend.Request, emit func(backend.Chunk) error) error { return emit(rowsOf(r, 0, 11)) }},
		{name: "rows out of order", memory: 100, lengths: []int{10}, slots: 1, err: "from 5",
			answer: func(r backend.Request, emit func(backend.Chunk) error) error { return emit(rowsOf(r, 5, 5)) }},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			w, err := blob.Create(filepath.Join(t.TempDir(), "b.ebb"), probeMeta, blob.WriterOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r := newProbeRun(ctx, w, probeSamples(c.lengths...), probeMeta, c.memory*probeRow)
			err = r.serve(ctx, script{answer: c.answer}, c.slots)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one that says %q", err, c.err)
				}
				if err := w.Abort(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			info, err := w.Commit(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if r.failed != c.failed || r.tokens != c.tokens || info.Tokens != c.tokens || info.RawBytes < c.tokens*probeRow {
				t.Errorf("%d failed, %d tokens, blob %+v; want %d failed, %d tokens", r.failed, r.tokens, info, c.failed, c.tokens)
			}
			if r.credit != r.whole || len(r.rows) != 0 {
				t.Errorf("%d of %d credit left, %d samples held", r.credit, r.whole, len(r.rows))
			}
		})
	}
}

func TestProbeSuits(t *testing.T) {
	good := backend.Info{Engine: "x", Hidden: 8, Capture: []int{1, 2}, DType: "bf16"}
	if err := probeSuits(good, probeMeta); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*backend.Info){
		"hidden size 9": func(i *backend.Info) { i.Hidden = 9 },
		"layers [1 3]":  func(i *backend.Info) { i.Capture = []int{1, 3} },
		"gives fp32":    func(i *backend.Info) { i.DType = "fp32" },
	} {
		bad := good
		change(&bad)
		if err := probeSuits(bad, probeMeta); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

func TestSteady(t *testing.T) {
	began := time.Unix(1000, 0)
	list := func(secondsAndTokens ...float64) (out []arrival) {
		for i := 0; i < len(secondsAndTokens); i += 2 {
			out = append(out, arrival{began.Add(time.Duration(secondsAndTokens[i] * float64(time.Second))), int64(secondsAndTokens[i+1])})
		}
		return out
	}
	for _, tc := range []struct {
		name string
		came []arrival
		want float64
	}{
		{"nothing", nil, 0},
		{"one sample", list(4, 100), 4},
		{"one batch", list(4, 100, 4.001, 100), 4.001},
		{"a first batch of one sample is warm-up", list(3, 100, 8, 500, 8.001, 500), 5.001 * 1100 / 1000},
		{"a first batch of two, then one by one", list(3, 100, 3.01, 100, 5, 200, 7, 200, 9, 200), (9 - 3.01) * 800 / 600},
		{"nearly all in the first batch", list(8, 500, 8.001, 500, 9, 100), 9},
	} {
		if got := steady(began, tc.came); math.Abs(got-tc.want) > 1e-6 {
			t.Errorf("%s: %v s, want %v", tc.name, got, tc.want)
		}
	}
}
