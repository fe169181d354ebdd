package exporter

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

// world is a workspace of two merged datasets, shuffled.
type world struct {
	t       testing.TB
	ws      *store.Workspace
	names   []string
	samples []samples.Sample
	order   []uint32
	train   int64
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) update(fn func(*store.Tx) error) {
	w.t.Helper()
	w.must(w.ws.Update(w.t.Context(), "test", fn))
}

func newWorld(t testing.TB, fs *fsx.FS, n int) *world {
	t.Helper()
	w := &world{t: t, ws: storetest.MustInitFS(t, t.TempDir(), fs), names: []string{"A \"x\"", "B"}}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		length := 1 + r.IntN(90)
		s := samples.Sample{Dataset: 7, Index: uint64(i), Line: int64(3*i + 1), ID: fmt.Sprintf("id<%d>", i),
			IDs: make([]uint32, length), Mask: make([]byte, length)}
		if i >= n/3 {
			s.Dataset, s.Index, s.ID = 9, uint64(i-n/3), ""
		}
		for k := range s.IDs {
			s.IDs[k], s.Mask[k] = r.Uint32N(163840), byte(r.IntN(2))
		}
		s.Mask[length-1] = 1
		if length > 4 {
			s.Segments = []samples.Segment{{Kind: "prompt", End: uint32(length / 2)}, {Kind: "response", End: uint32(length)}}
		}
		w.samples = append(w.samples, s)
		w.order = append(w.order, uint32(i))
	}
	r.Shuffle(n, func(i, j int) { w.order[i], w.order[j] = w.order[j], w.order[i] })
	w.order = append(w.order, w.order[0], w.order[5]) // one repeated, one for eval
	w.train = int64(n + 1)
	w.merge(n)
	return w
}

func (w *world) merge(n int) {
	w.t.Helper()
	sw, err := samples.OpenWriter(w.ws.SamplesDir(1), 0, samples.Options{FS: w.ws.FS(), Memory: 16 << 20})
	w.must(err)
	w.must(sw.Append(w.t.Context(), w.samples))
	w.must(sw.Seal(w.t.Context()))
	w.must(sw.Close())
	hash, _, err := w.ws.WriteOrder(w.t.Context(), 1, slices.Values(w.order))
	w.must(err)
	first := int64(n / 3)
	src := []store.SourceFile{{Path: "/data/a/part.jsonl"}}
	w.update(func(tx *store.Tx) error {
		w.must(tx.PutDataset(store.DatasetRow{Name: w.names[0], ID: 7, SamplesGen: 1, Accepted: first, Duplicates: 4, Sources: src, Done: true}))
		w.must(tx.PutDataset(store.DatasetRow{Name: w.names[1], ID: 9, Order: 1, SamplesGen: 1, FirstRow: first, Accepted: int64(n) - first, Sources: src, Done: true}))
		w.must(tx.PutOrder(store.OrderRow{ID: 1, Algorithm: "numpy", N: w.train, Eval: 1, Merged: int64(n), Hash: hash}))
		return tx.PutPhase(store.PhaseRow{Name: store.PhaseShuffle, State: store.Done})
	})
}

// plan caps every sample at most tokens, in the order of the shuffle.
func (w *world) plan(most int) {
	w.t.Helper()
	m := blob.Meta{Layers: []int{2, 4, 5, 8}, Hidden: 16, DType: "bf16", LastPreNorm: true, Codec: "lz4", Model: "m", Engine: "e", Datasets: w.names}
	path := w.ws.PlanPath(1)
	w.must(w.ws.FS().MkdirAll(filepath.Dir(path)))
	g, err := genindex.Create(w.ws.FS(), path, genindex.Meta{Datasets: w.names, Blob: m})
	w.must(err)
	var entries []blob.Entry
	for i := range w.samples {
		row := samples.MakeRow(&w.samples[i])
		entries = append(entries, blob.Entry{Dataset: w.set(i), Sample: w.samples[i].Index, Rows: min(row.Length, uint32(most)), Tokens: row.Tokens, Content: row.Content})
	}
	w.must(g.Blob(entries))
	for _, i := range w.order {
		w.must(g.Position(genindex.Position{Entry: i, Rows: entries[i].Rows, Dataset: entries[i].Dataset, Sample: entries[i].Sample, Mask: genindex.NoMask}, nil))
	}
	g.Splits([]genindex.Split{{Name: "train", Count: w.train}, {Name: "eval", First: w.train, Count: 1}})
	w.must(g.Finish())
	w.update(func(tx *store.Tx) error {
		w.must(tx.PutPhase(store.PhaseRow{Name: store.PhasePlan, State: store.Done}))
		return tx.PutPlan(store.PlanRow{ID: 1, Order: 1, MaxTokens: int64(most), Samples: int64(len(w.order)), Repeated: 1,
			Layers: m.Layers, Hidden: m.Hidden, DType: m.DType, Overlong: "truncate"})
	})
}

func (w *world) set(i int) uint32 {
	if w.samples[i].Dataset == 9 {
		return 1
	}
	return 0
}
