package extract

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/synthetic"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/codec"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

// shape of the states that tests extract.
type shape struct {
	hidden, layers int
	capture        []int
	dtype          string
}

func smallShape() shape { return shape{hidden: 32, layers: 8, capture: []int{2, 4, 8}, dtype: "bf16"} }

const testVocab = 1000

// world is a workspace with merged samples and a plan in force.
type world struct {
	t       testing.TB
	ws      *store.Workspace
	shape   shape
	samples []samples.Sample
	notes   notes
	rows    func(ids []uint32) []byte // what is right; nil: what the synthetic engine gives
}

// planned says how the plan is made.
type planned struct {
	shape   shape
	lengths []int
	perBlob int // samples
	fs      *fsx.FS
	dir     string
	repeats int                       // the first so many samples have a second position
	change  func(i int, ids []uint32) // changes the ids of each sample
	meta    func(*blob.Meta)          // of the plan
}

func newWorld(t testing.TB, p planned) *world {
	t.Helper()
	if p.dir == "" {
		p.dir = t.TempDir()
	}
	if p.shape.hidden == 0 {
		p.shape = smallShape()
	}
	if p.perBlob == 0 {
		p.perBlob = 4
	}
	w := &world{t: t, shape: p.shape, ws: storetest.MustInitFS(t, p.dir, p.fs)}
	for i, n := range p.lengths {
		s := samples.Sample{Dataset: 7, Index: uint64(i), Line: int64(i + 1), IDs: make([]uint32, n), Mask: make([]byte, n)}
		for k := range s.IDs {
			s.IDs[k] = uint32(mix(uint64(i*1_000_003+k))) % (testVocab - 100)
			if k > n/3 {
				s.Mask[k] = 1
			}
		}
		if p.change != nil {
			p.change(i, s.IDs)
		}
		w.samples = append(w.samples, s)
	}
	w.merge()
	w.plan(p)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) merge() {
	w.t.Helper()
	dir := w.ws.SamplesDir(1)
	sw, err := samples.OpenWriter(dir, 0, samples.Options{FS: w.ws.FS(), Memory: 16 << 20})
	w.must(err)
	w.must(sw.Append(w.t.Context(), w.samples))
	w.must(sw.Seal(w.t.Context()))
	w.must(sw.Close())
	w.update(func(tx *store.Tx) error {
		return tx.PutDataset(store.DatasetRow{Name: "A1", ID: 7, SamplesGen: 1, Accepted: int64(len(w.samples)), Lines: int64(len(w.samples)), Done: true})
	})
}

func (w *world) update(fn func(*store.Tx) error) {
	w.t.Helper()
	w.must(w.ws.Update(w.t.Context(), "test", fn))
}

func (w *world) entry(i int) blob.Entry {
	row := samples.MakeRow(&w.samples[i])
	return blob.Entry{Sample: uint64(i), Rows: row.Length, Tokens: row.Tokens, Content: row.Content}
}

// plan lays out the samples in order.
func (w *world) plan(p planned) {
	w.t.Helper()
	m := blob.Meta{Layers: w.shape.capture, Hidden: w.shape.hidden, DType: w.shape.dtype, LastPreNorm: true, Codec: "lz4",
		Model: "m", Engine: "synthetic 1", Synthetic: true, Datasets: []string{"A1"}}
	if p.meta != nil {
		p.meta(&m)
	}
	path := w.ws.PlanPath(1)
	w.must(w.ws.FS().MkdirAll(filepath.Dir(path)))
	g, err := genindex.Create(w.ws.FS(), path, genindex.Meta{Datasets: m.Datasets, Blob: m})
	w.must(err)
	n := int64(0)
	for at := 0; at < len(w.samples); at += p.perBlob {
		var es []blob.Entry
		for i := at; i < min(at+p.perBlob, len(w.samples)); i++ {
			es = append(es, w.entry(i))
		}
		w.must(g.Blob(es))
	}
	for k := range len(w.samples) + p.repeats {
		i := k % len(w.samples)
		pos := genindex.Position{Blob: uint32(i / p.perBlob), Entry: uint32(i % p.perBlob), Rows: uint32(len(w.samples[i].IDs)), Sample: uint64(i), Mask: genindex.NoMask}
		var mask []byte
		if k >= len(w.samples) {
			mask = make([]byte, pos.Rows)
			mask[0] = 1
		}
		w.must(g.Position(pos, mask))
		n++
	}
	g.Splits([]genindex.Split{{Name: "train", Count: n - 1}, {Name: "eval", First: n - 1, Count: 1}})
	w.must(g.Finish())
	w.update(func(tx *store.Tx) error {
		return tx.PutPlan(store.PlanRow{ID: 1, Samples: n, NewSamples: int64(len(w.samples)), Layers: m.Layers, Hidden: m.Hidden, DType: m.DType, Overlong: "truncate"})
	})
}

// backend makes the synthetic engine for the world's shape.
func (w *world) backend(slots int, faults string) *synthetic.Backend {
	w.t.Helper()
	b, err := synthetic.New(synthetic.Options{Hidden: w.shape.hidden, Layers: w.shape.layers, Vocab: testVocab,
		Capture: w.shape.capture, DType: w.shape.dtype, Slots: slots, Faults: faults, Seed: 5})
	w.must(err)
	return b
}

func (w *world) options(b backend.Backend) Options {
	return Options{Backend: b, Memory: 64 << 20, Threads: 2, Patience: 20 * time.Second, backoff: 20 * time.Millisecond}
}

// run extracts; the notes are kept.
func (w *world) run(ctx context.Context, o Options) (Result, error) {
	w.notes.t = w.t
	return Run(ctx, w.ws, o, &w.notes)
}

// seal is run that must end with a sealed generation.
func (w *world) seal(o Options) Result {
	w.t.Helper()
	res, err := w.run(w.t.Context(), o)
	w.must(err)
	if !res.Sealed {
		w.t.Fatalf("not sealed: %+v", res)
	}
	return res
}

// files returns the generation's files by name; those that readers lock or
// that are incomplete are refused.
func (w *world) files(g store.GenerationRow) map[string]string {
	w.t.Helper()
	dir := w.ws.GenerationDir(g)
	ents, err := os.ReadDir(dir)
	w.must(err)
	out := map[string]string{}
	for _, e := range ents {
		if strings.HasSuffix(e.Name(), fsx.TempSuffix) {
			w.t.Errorf("%s was left behind", e.Name())
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		w.must(err)
		out[e.Name()] = string(b)
	}
	return out
}

// verify reads the sealed generation back and compares every state with what
// the engine gives for the sample. It returns the quarantined samples.
func (w *world) verify(g store.GenerationRow) (absent []int) {
	w.t.Helper()
	dir := w.ws.GenerationDir(g)
	f, err := genindex.Open(filepath.Join(dir, indexName))
	w.must(err)
	defer f.Close()
	want := w.states()
	positions := map[uint64]bool{}
	for i := range f.Positions() {
		positions[f.Position(i).Sample] = true
	}
	for no := range f.Blobs() {
		r, err := blob.Open(filepath.Join(dir, blobName(no)))
		w.must(err)
		for i := range r.Entries() {
			sample := int(r.Entry(i).Sample)
			if _, gone := r.Absent(i); gone {
				absent = append(absent, sample)
				if positions[uint64(sample)] {
					w.t.Errorf("sample %d is quarantined and has a position", sample)
				}
				continue
			}
			if !positions[uint64(sample)] {
				w.t.Errorf("sample %d has no position", sample)
			}
			w.sameStates(r, i, want[sample])
		}
		w.must(r.Close())
	}
	return absent
}

func (w *world) sameStates(r *blob.Reader, i int, want []byte) {
	w.t.Helper()
	rb, rows, layers := r.Meta().RowBytes(), int(r.Entry(i).Rows), len(w.shape.capture)
	if source := r.Meta().Source; source != "" {
		q, err := codec.NewQuantizer(source, w.shape.hidden)
		w.must(err)
		want, _, err = q.Rows(nil, want)
		w.must(err)
	}
	got := make([]byte, rows*rb)
	for l := range layers {
		w.must(r.Layer(got, i, l, 0, rows))
		for t := range rows {
			if string(got[t*rb:][:rb]) != string(want[(t*layers+l)*rb:][:rb]) {
				w.t.Fatalf("sample %d token %d layer %d differs from what the engine gave", r.Entry(i).Sample, t, w.shape.capture[l])
			}
		}
	}
}

// states asks a fresh engine for every sample.
func (w *world) states() [][]byte {
	w.t.Helper()
	out := make([][]byte, len(w.samples))
	if w.rows != nil {
		for i, s := range w.samples {
			out[i] = w.rows(s.IDs)
		}
		return out
	}
	b := w.backend(1, "")
	in := make(chan backend.Request, len(w.samples))
	for i, s := range w.samples {
		in <- backend.Request{ID: uint64(i), Tokens: s.IDs}
	}
	close(in)
	w.must(b.Serve(w.t.Context(), 0, in, func(c backend.Chunk) error {
		out[c.ID] = append(out[c.ID], c.Data...)
		return c.Err
	}))
	return out
}

func (w *world) quarantine(g store.GenerationRow) []store.QuarantineRow {
	w.t.Helper()
	var q []store.QuarantineRow
	w.must(w.ws.View(func(r store.Reader) (err error) {
		q, err = r.Quarantine(g.ID)
		return err
	}))
	return q
}

// notes is a reporter that keeps what was said.
type notes struct {
	progress.Nop
	t     testing.TB
	mu    sync.Mutex
	lines []string
	units int64
	onAdd func(units int64)
}

func (n *notes) Note(f string, a ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(f, a...))
}

func (n *notes) Add(d progress.Delta) {
	n.mu.Lock()
	n.units += d.Units
	u, fn := n.units, n.onAdd
	n.mu.Unlock()
	if fn != nil {
		fn(u)
	}
}

func (n *notes) said(part string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lines {
		if strings.Contains(l, part) {
			return true
		}
	}
	return false
}

// lengths gives n lengths between 1 and most.
func lengths(n, most int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 1 + int(mix(uint64(i)+99))&0xffff%most
	}
	return out
}

// rated makes an engine of a set rate.
func (w *world) rated(slots int, rate float64, faults string) *synthetic.Backend {
	w.t.Helper()
	b, err := synthetic.New(synthetic.Options{Hidden: w.shape.hidden, Layers: w.shape.layers, Vocab: testVocab,
		Capture: w.shape.capture, DType: w.shape.dtype, Slots: slots, Faults: faults, Seed: 5, Rate: rate})
	w.must(err)
	return b
}

// seeded makes an engine with other values.
func (w *world) seeded(seed uint64) *synthetic.Backend {
	w.t.Helper()
	b, err := synthetic.New(synthetic.Options{Hidden: w.shape.hidden, Layers: w.shape.layers, Vocab: testVocab,
		Capture: w.shape.capture, DType: w.shape.dtype, Seed: seed})
	w.must(err)
	return b
}

// turning answers with another engine's values from request at on, within one
// session.
type turning struct {
	backend.Backend
	other backend.Backend
	at    int
}

func (t *turning) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	first := make(chan backend.Request)
	go func() {
		defer close(first)
		for range t.at {
			select {
			case rq, ok := <-in:
				if !ok {
					return
				}
				first <- rq
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := t.Backend.Serve(ctx, slot, first, emit); err != nil {
		return err
	}
	return t.other.Serve(ctx, slot, in, emit)
}
