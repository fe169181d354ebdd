package plan

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

// sample makes a sample of n tokens of which those from first on are
// supervised; equal seeds give equal tokens.
func sample(seed uint64, n, first int) samples.Sample {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := samples.Sample{IDs: make([]uint32, n), Mask: make([]byte, n)}
	for i := range n {
		s.IDs[i] = rng.Uint32() // so wide that only samples of one seed are equal
		if i >= first {
			s.Mask[i] = 1
		}
	}
	return s
}

type dataset struct {
	name    string
	samples []samples.Sample
}

// merge puts datasets into a new samples generation and their rows into the
// ledger, as a finished merge does.
func merge(t testing.TB, ws *store.Workspace, sets []dataset) {
	t.Helper()
	ctx := t.Context()
	w, err := samples.OpenWriter(ws.SamplesDir(1), 0, samples.Options{FS: ws.FS(), Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var rows []store.DatasetRow
	var first int64
	for i, d := range sets {
		r := store.DatasetRow{Name: d.name, ID: uint32(i + 1), Order: i, SamplesGen: 1, FirstRow: first, Done: true}
		for k := range d.samples {
			d.samples[k].Dataset, d.samples[k].Index = r.ID, uint64(k)
			r.Accepted++
			r.Tokens += int64(len(d.samples[k].IDs))
		}
		if len(d.samples) > 0 {
			if err := w.Append(ctx, d.samples); err != nil {
				t.Fatal(err)
			}
		}
		r.Lines = r.Accepted
		first += r.Accepted
		rows = append(rows, r)
	}
	if err := errors.Join(w.Seal(ctx), w.Close()); err != nil {
		t.Fatal(err)
	}
	update(t, ws, func(tx *store.Tx) error {
		for _, r := range rows {
			if err := tx.PutDataset(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// shuffle records an order: n training positions, then eval ones.
func shuffle(t testing.TB, ws *store.Workspace, train, eval []uint32) {
	t.Helper()
	var merged int64
	var id uint32
	update(t, ws, func(tx *store.Tx) (err error) {
		sets, err := tx.Datasets()
		for _, d := range sets {
			merged += d.Accepted
		}
		if err == nil {
			id, err = tx.Next("order")
		}
		return err
	})
	h, _, err := ws.WriteOrder(t.Context(), id, slices.Values(slices.Concat(train, eval)))
	if err != nil {
		t.Fatal(err)
	}
	update(t, ws, func(tx *store.Tx) error {
		return tx.PutOrder(store.OrderRow{ID: id, Algorithm: "numpy", N: int64(len(train)), Eval: int64(len(eval)), Merged: merged, Hash: h})
	})
}

func update(t testing.TB, ws *store.Workspace, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := ws.Update(context.Background(), "test", fn); err != nil {
		t.Fatal(err)
	}
}

func upTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func testOptions() Options {
	return Options{
		Model:    "m",
		Meta:     blob.Meta{Layers: []int{2, 4, 6, 8}, Hidden: 64, DType: "bf16", Codec: "lz4-planes", ChunkBytes: blob.DefaultChunkBytes, Model: "m", Engine: "test"},
		Identity: []store.Part{{Key: "model", Value: "m"}, {Key: "engine", Value: "test"}},
		Reserve:  human.Share{Absolute: 0},
	}
}

func mustPlan(t testing.TB, ws *store.Workspace, o Options) store.PlanRow {
	t.Helper()
	row, err := Run(t.Context(), ws, o, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func openIndex(t testing.TB, path string) *genindex.File {
	t.Helper()
	f, err := genindex.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := f.Verify(); err != nil {
		t.Fatal(err)
	}
	return f
}

// mixed is two datasets with lengths, twins and prompts of every interesting
// kind.
func mixed() []dataset {
	a := dataset{name: "A1_long"}
	for i := range 8 {
		a.samples = append(a.samples, sample(uint64(100+i), 300+20*i, 10+30*i))
	}
	b := dataset{name: "B1_short"}
	for i := range 20 {
		b.samples = append(b.samples, sample(uint64(200+i), 20+i, 5))
	}
	twin := sample(203, 23, 5) // the tokens of B1_short's fourth, masked otherwise
	twin.Mask[5], twin.Mask[9] = 0, 0
	b.samples = append(b.samples, twin)
	return []dataset{a, b}
}

func TestPlanAccounts(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	train := append(upTo(27), 3, 3, 10) // repeats, as weights make them
	shuffle(t, ws, train, []uint32{27, 28})
	for _, tc := range []struct {
		name string
		set  func(*Options)
		want store.PlanRow
	}{
		{"plain", func(o *Options) {}, store.PlanRow{Samples: 32, NewSamples: 28, Repeated: 4}},
		{"truncate", func(o *Options) { o.MaxTokens = 100 }, store.PlanRow{Samples: 25, Emptied: 7, Truncated: 3, NewSamples: 23, Repeated: 2}},
		{"skip", func(o *Options) { o.MaxTokens, o.Overlong = 100, Skip }, store.PlanRow{Samples: 22, OverLength: 10, NewSamples: 20, Repeated: 2}},
		{"drop", func(o *Options) { o.Drop = []string{"A1_long"} }, store.PlanRow{Samples: 22, Dropped: 10, NewSamples: 20, Repeated: 2}},
		{"limit", func(o *Options) { o.Limit = 5 }, store.PlanRow{Samples: 5, NewSamples: 5}},
		{"budget", func(o *Options) { o.MaxDatasetTokens = 700 }, store.PlanRow{Samples: 24, Dropped: 8, NewSamples: 22, Repeated: 2}},
		{"rows by mask", func(o *Options) { o.Rows = blob.RowsCutTail }, store.PlanRow{Samples: 32, NewSamples: 29, Repeated: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions()
			tc.set(&o)
			row := mustPlan(t, ws, o)
			got := store.PlanRow{Samples: row.Samples, Emptied: row.Emptied, Truncated: row.Truncated, OverLength: row.OverLength,
				Dropped: row.Dropped, NewSamples: row.NewSamples, Repeated: row.Repeated}
			if got.Samples != tc.want.Samples || got.Emptied != tc.want.Emptied || got.Truncated != tc.want.Truncated || got.OverLength != tc.want.OverLength ||
				got.Dropped != tc.want.Dropped || got.NewSamples != tc.want.NewSamples || got.Repeated != tc.want.Repeated {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if o.Limit == 0 && row.Samples+row.Emptied+row.OverLength+row.Dropped != 32 {
				t.Errorf("positions do not add up to 32: %+v", row)
			}
			checkIndex(t, ws, o, row)
		})
	}
}

// checkIndex holds a plan's index against the samples themselves.
func checkIndex(t *testing.T, ws *store.Workspace, o Options, row store.PlanRow) {
	t.Helper()
	f := openIndex(t, ws.PlanPath(row.ID))
	if f.Positions() != row.Samples || int64(f.Blobs()) != row.Blobs {
		t.Fatalf("index has %d positions, %d blobs; row %d, %d", f.Positions(), f.Blobs(), row.Samples, row.Blobs)
	}
	c, err := samples.Open(ws.SamplesDir(1), 29, samples.Options{FS: ws.FS(), Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	get := func(dataset uint32, number uint64) (ids []uint32, mask []byte) {
		index, w := blob.SplitSample(number)
		s, err := c.Get(t.Context(), dataset+1, index)
		if err != nil {
			t.Fatal(err)
		}
		if o.Overlong == Split && o.MaxTokens > 0 {
			from := int(w) * int(o.MaxTokens)
			to := min(len(s.IDs), from+int(o.MaxTokens))
			return s.IDs[from:to], s.Mask[from:to]
		}
		return s.IDs, s.Mask
	}
	var tokens, raw int64
	for i := range f.Positions() {
		p := f.Position(i)
		tokens += int64(p.Rows)
		ids, mask := get(p.Dataset, p.Sample)
		if p.Gen != 0 {
			continue
		}
		e := f.Entry(int(p.Blob), int(p.Entry))
		eids, emask := get(e.Dataset, e.Sample)
		n := int(p.Rows)
		if e.Rows < p.Rows || !slices.Equal(ids[:n], eids[:n]) {
			t.Errorf("position %d: entry %+v does not hold its tokens", i, e)
		}
		if p.Mask != genindex.NoMask {
			emask = f.Mask(p.Mask, n)
		}
		if !slices.Equal(mask[:n], emask[:n]) {
			t.Errorf("position %d: its mask is lost", i)
		}
	}
	raw = checkBlobs(t, f, row)
	if tokens != row.Tokens || !selects(o.Rows) && raw != row.RawBytes {
		t.Errorf("index holds %d tokens and %d new bytes, row %d and %d", tokens, raw, row.Tokens, row.RawBytes)
	}
	checkSplits(t, f)
}

// checkBlobs looks at the order of entries and the size of blobs, and returns
// the raw bytes of all, where all rows are stored.
func checkBlobs(t *testing.T, f *genindex.File, row store.PlanRow) (raw int64) {
	t.Helper()
	for no := range f.Blobs() {
		var bytes int64
		last := ^uint32(0)
		for _, e := range f.Entries(no) {
			if e.Rows > last {
				t.Errorf("blob %d: entries are not sorted by length", no)
			}
			last = e.Rows
			bytes += int64(e.Rows) * row.BytesPerToken
		}
		raw += bytes
		if bytes > row.BlobBytes && f.BlobEntries(no) > 1 {
			t.Errorf("blob %d: %d bytes in %d entries, blobs are of %d", no, bytes, f.BlobEntries(no), row.BlobBytes)
		}
	}
	return raw
}

func checkSplits(t *testing.T, f *genindex.File) {
	t.Helper()
	var n int64
	for _, s := range f.Meta().Splits {
		if s.First != n {
			t.Errorf("split %s begins at %d, not %d", s.Name, s.First, n)
		}
		n += s.Count
	}
	if n != f.Positions() {
		t.Errorf("splits cover %d of %d positions", n, f.Positions())
	}
}

func TestPlanSplits(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, append(upTo(29), 7, 2), nil)
	o := testOptions()
	o.MaxTokens, o.Overlong = 100, Split
	row := mustPlan(t, ws, o)
	// 8 long samples of 300..440 tokens and two repeats make 4 or 5 windows each.
	windows, empty := int64(0), int64(0)
	for _, i := range append(upTo(8), 7, 2) {
		n, first := 300+20*int(i), 10+30*int(i)
		windows += int64((n + 99) / 100)
		empty += int64(first / 100)
	}
	if row.Samples+row.Emptied != windows+21 || row.Emptied != empty || row.OverLength != 0 {
		t.Errorf("planned %d, emptied %d; want %d windows and 21 short samples, %d emptied", row.Samples, row.Emptied, windows, empty)
	}
	if row.LostTokens != 100*empty {
		t.Errorf("lost %d tokens, want %d", row.LostTokens, 100*empty)
	}
	checkIndex(t, ws, o, row)
}

func TestPlanIsDeterministic(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, append(upTo(27), 3, 3), []uint32{28})
	o := testOptions()
	o.MaxTokens, o.BlobSize = 120, 64<<10
	a, b := mustPlan(t, ws, o), mustPlan(t, ws, o)
	if a.Blobs < 3 {
		t.Errorf("%d blobs of 64 KiB", a.Blobs)
	}
	checkBlobs(t, openIndex(t, ws.PlanPath(a.ID)), a)
	read := func(id uint32) []byte { return mustRead(t, ws.PlanPath(id)) }
	if !slices.Equal(read(a.ID), read(b.ID)) {
		t.Error("the same plan twice gave different bytes")
	}
}
