package extract

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/storetest"
)

// lossy makes a plan that stores what the engine gives as fp8.
func lossy(p planned, source string) planned {
	p.shape.dtype = source
	p.meta = func(m *blob.Meta) { m.DType, m.Source = "fp8", source }
	return p
}

// TestFP8 stores fp8 of everything that engines give: the values are those of
// the quantizer, and ledger, blobs and manifest agree on what that cost.
func TestFP8(t *testing.T) {
	for _, source := range []string{"bf16", "fp16", "fp32"} {
		t.Run(source, func(t *testing.T) {
			p := lossy(planned{shape: smallShape(), lengths: lengths(30, 200), repeats: 3}, source)
			w := newWorld(t, p)
			g := w.seal(w.options(w.backend(2, ""))).Generation
			if absent := w.verify(g); len(absent) > 0 {
				t.Errorf("absent: %v", absent)
			}
			w.costs(g)
			other := newWorld(t, p)
			sameFiles(t, w.files(g), other.files(other.seal(other.options(other.backend(3, "nan@15"))).Generation))
		})
	}
}

// costs holds what the ledger says of errors to blobs, manifest and bounds.
func (w *world) costs(g store.GenerationRow) {
	w.t.Helper()
	dir := w.ws.GenerationDir(g)
	var rows []store.BlobRow
	w.must(w.ws.View(func(r store.Reader) (err error) {
		rows, err = r.Blobs(g.ID)
		return err
	}))
	var sum []store.LayerLoss
	var tokens int64
	for _, b := range rows {
		r, err := blob.Open(filepath.Join(dir, blobName(int(b.No))))
		w.must(err)
		got, err := r.Losses()
		w.must(errors.Join(err, r.Close()))
		var said []blob.Loss
		for i, x := range b.Losses {
			if x.Layer != w.shape.capture[i] {
				w.t.Errorf("blob %d: layer %d", b.No, x.Layer)
			}
			said = append(said, blob.Loss{Rows: x.Rows, Sum: x.Sum, Max: x.Max})
		}
		if d := cmp.Diff(said, got); d != "" {
			w.t.Errorf("blob %d: %s", b.No, d)
		}
		sum, tokens = store.AddLosses(sum, b.Losses), tokens+b.Tokens
	}
	if d := cmp.Diff(sum, g.Losses); d != "" || len(sum) != len(w.shape.capture) {
		w.t.Errorf("the generation has %v: %s", g.Losses, d)
	}
	m, _, err := genindex.ReadManifest(dir)
	w.must(err)
	for i, x := range m.Quantization {
		if l := g.Losses[i]; x.Layer != l.Layer || x.Rows != tokens || x.Rows != l.Rows || x.Mean != l.Sum/float64(l.Rows) || x.Max != l.Max {
			w.t.Errorf("manifest %+v, ledger %+v of %d tokens", x, l, tokens)
		}
		if x.Mean < 0.005 || x.Mean > x.Max || x.Max > 1.0/16 {
			w.t.Errorf("%+v is not what fp8 costs", x)
		}
	}
	if len(m.Quantization) != len(sum) || m.Meta.Source != w.shape.dtype {
		w.t.Errorf("manifest: %+v from %q", m.Quantization, m.Meta.Source)
	}
}

// TestFP8Resume fails at every hit of the points around blobs and the seal: the
// files, the manifest's errors included, are those of an undisturbed run. After
// the rename the blob is taken over, and its errors come from the file.
func TestFP8Resume(t *testing.T) {
	p := lossy(planned{shape: smallShape(), lengths: lengths(12, 60)}, "bf16")
	failAtPoints(t, p, []fault.Point{fault.BlobBeforeRename, fault.BlobAfterRename, fault.LedgerAfterAppend, fault.SealAfterManifest})
	t.Run("taken over", func(t *testing.T) {
		w := newWorld(t, p)
		dir := w.ws.Dir()
		w.must(w.ws.Close())
		w.ws = storetest.MustInitFS(t, dir, &fsx.FS{Faults: fault.New(fault.BlobAfterRename, 2)})
		res, err := w.run(t.Context(), w.options(w.backend(1, "")))
		if !errors.Is(err, fault.ErrInjected) {
			t.Fatal(err)
		}
		w.uncounted(res.Generation)
		w.must(w.ws.Close())
		w.ws = storetest.MustOpen(t, dir)
		g := w.seal(w.options(w.backend(1, ""))).Generation
		if w.notes.said("made anew") {
			t.Error("a whole blob was made anew")
		}
		w.costs(g)
	})
}

// TestFP8LongSample streams a sample larger than the memory, also when it has to
// be begun anew.
func TestFP8LongSample(t *testing.T) {
	sh := shape{hidden: 512, layers: 8, capture: []int{2, 4, 6, 8}}
	p := lossy(planned{shape: sh, lengths: []int{100, 8000, 50}, perBlob: 2}, "bf16")
	want := reference(t, p)
	for _, faults := range []string{"", "nan@3"} {
		t.Run("faults "+faults, func(t *testing.T) {
			w := newWorld(t, p)
			o := w.options(w.backend(1, faults))
			o.Memory = 32 << 20
			g := w.seal(o).Generation
			sameFiles(t, want, w.files(g))
			w.costs(g)
		})
	}
}

// TestFP8Looks: what the engine gives is looked at as before.
func TestFP8Looks(t *testing.T) {
	for _, mode := range []string{"", "swapped"} {
		t.Run(fmt.Sprintf("sense %q", mode), func(t *testing.T) {
			w := oracleWorldWith(t, func(m *blob.Meta) { m.DType, m.Source = "fp8", "bf16" })
			o := w.options(&oracle{hidden: 32, capture: w.shape.capture, mode: mode})
			o.Head, o.MinTop1 = oracleHead(t, 32), 0.5
			res, err := w.run(t.Context(), o)
			if mode == "" {
				w.must(err)
				tallied(t, w, res.Generation)
			} else if !errors.Is(err, ErrNonsense) || !strings.Contains(err.Error(), "swapped") {
				t.Errorf("%v, want nonsense", err)
			}
		})
	}
	t.Run("canary", func(t *testing.T) {
		w := newWorld(t, lossy(planned{shape: smallShape(), lengths: lengths(40, 50)}, "fp32"))
		if _, err := w.run(t.Context(), w.options(w.backend(1, "drift@20"))); !errors.Is(err, ErrNonsense) {
			t.Errorf("%v, want nonsense", err)
		}
	})
}
