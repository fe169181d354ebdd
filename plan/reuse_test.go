package plan

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/storetest"
)

// seal makes a sealed generation of a plan, without its states.
func seal(t testing.TB, ws *store.Workspace, o Options, plan store.PlanRow, change func(*store.GenerationRow)) store.GenerationRow {
	t.Helper()
	var g store.GenerationRow
	update(t, ws, func(tx *store.Tx) error {
		id, err := tx.Next("generation")
		if err != nil {
			return err
		}
		g = store.GenerationRow{ID: id, Name: genName(id), Origin: "made", State: store.GenSealed, Kind: "states", Path: "generations/" + numbered(id),
			Plan: plan.ID, Identity: o.Identity, Bytes: plan.RawBytes * 3 / 4, RawBytes: plan.RawBytes, Seconds: 10, Created: time.Now(), Sealed: time.Now()}
		if change != nil {
			change(&g)
		}
		return tx.PutGeneration(g)
	})
	mustWrite(t, ws.GenerationDir(g)+"/"+indexName, mustRead(t, ws.PlanPath(plan.ID)))
	if _, err := genindex.WriteManifest(ws.FS(), ws.GenerationDir(g), genindex.Manifest{Generation: g.ID, Name: g.Name}); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestPlanReusesSealedStates(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	o := testOptions()
	o.MaxTokens = 350
	first := mustPlan(t, ws, o)
	g := seal(t, ws, o, first, nil)

	shuffle(t, ws, []uint32{28, 3, 2, 1, 0, 11}, nil)
	again := mustPlan(t, ws, o)
	if again.NewSamples != 0 || again.RawBytes != 0 || again.Reused != 6 || again.Decision != store.Fits || again.Blobs != 0 {
		t.Errorf("a new seed computes something: %+v", again)
	}
	f := openIndex(t, ws.PlanPath(again.ID))
	old := openIndex(t, ws.PlanPath(first.ID))
	for i := range f.Positions() {
		p := f.Position(i)
		if e := old.Entry(int(p.Blob), int(p.Entry)); p.Gen != g.ID || e.Rows < p.Rows {
			t.Errorf("position %d = %+v points at %+v", i, p, e)
		}
	}
	if again.Ratio != 0.75 || again.Rate == 0 {
		t.Errorf("ratio %v, rate %v: a sealed generation of the shape was measured", again.Ratio, again.Rate)
	}

	dense := o
	dense.Meta.Codec = "dense"
	if p := mustPlan(t, ws, dense); p.NewSamples != 0 || p.Ratio != 0 {
		t.Errorf("states are reused whatever their codec, but it gives no ratio for another: %d new, ratio %v", p.NewSamples, p.Ratio)
	}
	lower, higher := o, o
	lower.MaxTokens, higher.MaxTokens = 200, 0
	if p := mustPlan(t, ws, lower); p.NewSamples != 0 {
		t.Errorf("a lower cap computes %d samples", p.NewSamples)
	}
	shuffle(t, ws, upTo(29), nil)
	if p := mustPlan(t, ws, higher); p.NewSamples != 5 { // 360 to 440 tokens were cut
		t.Errorf("a higher cap computes %d samples, want the 5 that were cut", p.NewSamples)
	}
	for name, change := range map[string]func(o *Options){
		"identity": func(o *Options) { o.Identity = []store.Part{{Key: "model", Value: "other"}} },
		"decision": func(o *Options) { o.GCNames = []string{g.Name} },
	} {
		x := o
		change(&x)
		if p := mustPlan(t, ws, x); p.Reused != 0 {
			t.Errorf("%s: %d positions reused from a generation that must not serve", name, p.Reused)
		}
	}
	update(t, ws, func(tx *store.Tx) error {
		return tx.PutQuarantine(store.QuarantineRow{Gen: g.ID, Blob: 0, Entry: 0, Reason: "test"})
	})
	if p := mustPlan(t, ws, o); p.NewSamples != 1 {
		t.Errorf("%d new samples: the quarantined one has no states to reuse", p.NewSamples)
	}
}

// TestLostBlobsAreNotReused: a plan points to no blob whose file is not there
// in full, and into no generation without its manifest.
func TestLostBlobsAreNotReused(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	o := testOptions()
	o.BlobSize = 256 << 10
	g := seal(t, ws, o, mustPlan(t, ws, o), nil)
	f := openIndex(t, ws.GenerationDir(g)+"/"+indexName)
	if f.Blobs() < 2 {
		t.Fatalf("%d blobs are too few to lose one", f.Blobs())
	}
	all := int64(0)
	update(t, ws, func(tx *store.Tx) error {
		for no := range f.Blobs() {
			all += int64(f.BlobEntries(no))
			if err := tx.PutBlob(store.BlobRow{Gen: g.ID, No: uint32(no), Bytes: 3}); err != nil {
				return err
			}
		}
		return nil
	})
	path := func(no int) string { return filepath.Join(ws.GenerationDir(g), blob.FileName(uint32(no))) }
	for no := range f.Blobs() {
		mustWrite(t, path(no), []byte("abc"))
	}
	if p := mustPlan(t, ws, o); p.NewSamples != 0 {
		t.Fatalf("%d new samples while every blob is there", p.NewSamples)
	}
	one := int64(f.BlobEntries(1))
	mustWrite(t, path(1), []byte("ab"))
	if p := mustPlan(t, ws, o); p.NewSamples != one {
		t.Errorf("%d new samples, want the %d of the blob that was cut", p.NewSamples, one)
	}
	if err := os.Remove(path(1)); err != nil {
		t.Fatal(err)
	}
	if p := mustPlan(t, ws, o); p.NewSamples != one {
		t.Errorf("%d new samples, want the %d of the blob that is gone", p.NewSamples, one)
	}
	if err := os.Remove(filepath.Join(ws.GenerationDir(g), genindex.ManifestName)); err != nil {
		t.Fatal(err)
	}
	if p := mustPlan(t, ws, o); p.NewSamples != all {
		t.Errorf("%d new samples of %d: the generation has no manifest", p.NewSamples, all)
	}
}

// TestPlanReusesByLength: where states depend on a sample's length beyond some
// tokens, a longer sample's serve no prefix of it.
func TestPlanReusesByLength(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	o := testOptions()
	o.MaxTokens = 350
	first := mustPlan(t, ws, o)
	g := seal(t, ws, o, first, nil)
	old := openIndex(t, ws.PlanPath(first.ID))

	o.MaxTokens = 200
	fewest := uint32(0)
	for _, from := range []int64{0, 1000, 100} {
		o.LengthFrom = from
		again := mustPlan(t, ws, o)
		if from != 100 && again.NewSamples != 0 {
			t.Errorf("from %d tokens on: %d samples are computed, all are stored", from, again.NewSamples)
		}
		f := openIndex(t, ws.PlanPath(again.ID))
		fresh := uint32(0)
		for i := range f.Positions() {
			p := f.Position(i)
			if p.Gen != g.ID {
				fresh++
				continue
			}
			if e := old.Entry(int(p.Blob), int(p.Entry)); from == 100 && e.Rows != p.Rows && e.Rows > 100 {
				t.Errorf("position %d of %d tokens takes its states from %d tokens", i, p.Rows, e.Rows)
			}
		}
		if from == 100 {
			fewest = fresh
		}
	}
	if fewest == 0 {
		t.Error("no sample is longer: nothing was tried")
	}
}
