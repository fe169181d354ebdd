package permute_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/permute"
	"eaglebatch/store"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

// dataset says how many samples a made-up dataset has, and which contents.
type dataset struct {
	name  string
	first uint32 // content of its first sample; the following count up
	n     int64
}

// merged enters datasets into the ledger as merge does.
func merged(t testing.TB, ws *store.Workspace, sets ...dataset) {
	t.Helper()
	ctx := context.Background()
	w, err := samples.OpenWriter(ws.SamplesDir(1), 0, samples.Options{FS: ws.FS(), Memory: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range sets {
		row := store.DatasetRow{Name: d.name, ID: uint32(i + 1), Order: i, SamplesGen: 1, FirstRow: w.Rows(), Lines: d.n, Accepted: d.n, Done: true,
			Fingerprint: []store.Part{{Key: "rows", Value: fmt.Sprint(d.first, d.n)}}}
		var batch []samples.Sample
		for k := range d.n {
			batch = append(batch, samples.Sample{Dataset: row.ID, Index: uint64(k), IDs: []uint32{d.first + uint32(k)}, Mask: []byte{1}})
		}
		if err := w.Append(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if err := ws.Update(ctx, "test", func(tx *store.Tx) error { return tx.PutDataset(row) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Seal(ctx); err != nil {
		t.Fatal(err)
	}
}

func mustRun(t testing.TB, ws *store.Workspace, o permute.Options) (store.OrderRow, []uint32) {
	t.Helper()
	row, err := permute.Run(context.Background(), ws, o, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	var current store.OrderRow
	err = ws.View(func(r store.Reader) (err error) {
		current, _, err = r.Order()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(row, current); d != "" {
		t.Fatalf("order in force (-returned +ledger):\n%s", d)
	}
	order, err := ws.OpenOrder(row)
	if err != nil {
		t.Fatal(err)
	}
	defer order.Close()
	if err := order.Verify(); err != nil {
		t.Fatal(err)
	}
	out := make([]uint32, order.Len())
	for i := range out {
		out[i] = order.At(int64(i))
	}
	if int64(len(out)) != row.N+row.Eval {
		t.Fatalf("%d positions, the row says %d and %d", len(out), row.N, row.Eval)
	}
	return row, out
}

func TestOrderIsNumpys(t *testing.T) {
	ws := storetest.MustInit(t)
	merged(t, ws, dataset{"a", 0, 7}, dataset{"b", 100, 5})
	row, got := mustRun(t, ws, permute.Options{Seed: 42})
	// numpy.random.default_rng(42).permutation(12)
	want := []uint32{0, 7, 6, 9, 11, 3, 5, 2, 4, 10, 1, 8}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if row.Algorithm != permute.Numpy || row.Merged != 12 || row.Subsampled != 0 {
		t.Errorf("row %+v", row)
	}
	if _, again := mustRun(t, ws, permute.Options{Seed: 42, Algorithm: permute.Feistel}); !slices.Equal(again, want) {
		t.Errorf("feistel below its least size: %v, want numpy's order", again)
	}
	if _, other := mustRun(t, ws, permute.Options{Seed: 43}); slices.Equal(other, want) {
		t.Error("another seed gave the same order")
	}
}

func TestFeistelOrder(t *testing.T) {
	ws := storetest.MustInit(t)
	merged(t, ws, dataset{"a", 0, 10})
	row, got := mustRun(t, ws, permute.Options{Seed: 1, Algorithm: permute.Feistel, Weights: map[string]float64{"a": 7000.5}})
	if row.Algorithm != permute.Feistel || row.N != 70_005 {
		t.Fatalf("row %+v", row)
	}
	counts := map[uint32]int{}
	for _, r := range got {
		counts[r]++
	}
	for r, c := range counts {
		if r >= 10 || c < 7000 || c > 7001 {
			t.Errorf("row %d is there %d times", r, c)
		}
	}
}

func count(rows []uint32, from, to uint32) (each map[uint32]int, total int) {
	each = map[uint32]int{}
	for _, r := range rows {
		if r >= from && r < to {
			each[r]++
			total++
		}
	}
	return each, total
}

func TestWeights(t *testing.T) {
	ws := storetest.MustInit(t)
	merged(t, ws, dataset{"a", 0, 100}, dataset{"b", 1000, 50}, dataset{"c", 2000, 10}, dataset{"d", 3000, 20})
	o := permute.Options{Seed: 7, Weights: map[string]float64{"a": 0.3, "b": 2.5, "c": 0}}
	row, got := mustRun(t, ws, o)
	if row.N != 30+125+20 || row.Subsampled != 70+10 || row.Repeated != 75 || row.Eval != 0 || row.Merged != 180 {
		t.Fatalf("row %+v", row)
	}
	a, n := count(got, 0, 100)
	if n != 30 || len(a) != 30 {
		t.Errorf("a: %d positions of %d rows, want 30 of 30", n, len(a))
	}
	b, n := count(got, 100, 150)
	for r, c := range b {
		if c != 2 && c != 3 {
			t.Errorf("b: row %d is there %d times", r, c)
		}
	}
	if n != 125 || len(b) != 50 {
		t.Errorf("b: %d positions of %d rows, want 125 of 50", n, len(b))
	}
	if _, n := count(got, 150, 160); n != 0 {
		t.Errorf("c: %d positions, its weight is 0", n)
	}
	if _, n := count(got, 160, 180); n != 20 {
		t.Errorf("d: %d positions, want 20", n)
	}
	// What is drawn of a does not depend on the weights of the others.
	_, other := mustRun(t, ws, permute.Options{Seed: 7, Weights: map[string]float64{"a": 0.3, "d": 4}})
	if again, _ := count(other, 0, 100); !cmp.Equal(a, again) {
		t.Error("another weight of d changed what is drawn of a")
	}
	_, seeded := mustRun(t, ws, permute.Options{Seed: 8, Weights: map[string]float64{"a": 0.3}})
	if again, _ := count(seeded, 0, 100); cmp.Equal(a, again) {
		t.Error("another seed draws the same of a")
	}
}

func TestEval(t *testing.T) {
	ws := storetest.MustInit(t)
	// c repeats the contents of a and of half of b.
	merged(t, ws, dataset{"a", 0, 40}, dataset{"b", 40, 20}, dataset{"c", 0, 50})
	row, got := mustRun(t, ws, permute.Options{Seed: 3, Eval: map[string]int64{"a": 8, "b": 5}, Weights: map[string]float64{"a": 2}})
	if row.Eval != 13 {
		t.Fatalf("row %+v", row)
	}
	train, eval := got[:row.N], got[row.N:]
	content := func(r uint32) uint32 {
		if r >= 60 {
			return r - 60
		}
		return r
	}
	held := map[uint32]bool{}
	for _, r := range eval {
		held[content(r)] = true
	}
	_, fromA := count(eval, 0, 40)
	_, fromB := count(eval, 40, 60)
	if fromA != 8 || fromB != 5 || len(held) != 13 {
		t.Errorf("eval has %d of a, %d of b, %d contents", fromA, fromB, len(held))
	}
	twins := int64(0)
	for c := range uint32(50) {
		if held[c] {
			twins++
		}
	}
	if row.EvalTwins != twins {
		t.Errorf("%d twins counted, want %d", row.EvalTwins, twins)
	}
	for _, r := range train {
		if held[content(r)] {
			t.Errorf("row %d is in training, its content %d in eval", r, content(r))
		}
	}
	if want := int64(2*32+15+50) - twins; row.N != want {
		t.Errorf("%d training positions, want %d", row.N, want)
	}
}

func TestRefusals(t *testing.T) {
	ws := storetest.MustInit(t)
	if _, err := permute.Run(context.Background(), ws, permute.Options{}, progress.Nop{}); err == nil || !strings.Contains(err.Error(), "run merge first") {
		t.Errorf("nothing merged: %v", err)
	}
	merged(t, ws, dataset{"a", 0, 4})
	for _, c := range []struct {
		o    permute.Options
		want string
	}{
		{permute.Options{Algorithm: "torch"}, `"torch"`},
		{permute.Options{Weights: map[string]float64{"x": 1}}, "there are a"},
		{permute.Options{Weights: map[string]float64{"a": -1}}, "-1"},
		{permute.Options{Weights: map[string]float64{"a": 0}}, "nothing to shuffle"},
		{permute.Options{Eval: map[string]int64{"x": 1}}, "there are a"},
		{permute.Options{Eval: map[string]int64{"a": 5}}, "has 4"},
	} {
		if _, err := permute.Run(context.Background(), ws, c.o, progress.Nop{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.o, err, c.want)
		}
	}
}

func TestDamagedRowsAreDamage(t *testing.T) {
	ws := storetest.MustInit(t)
	merged(t, ws, dataset{"a", 0, 40})
	storetest.FlipBit(t, filepath.Join(ws.SamplesDir(1), "index.rows"), 300)
	_, err := permute.Run(context.Background(), ws, permute.Options{Eval: map[string]int64{"a": 2}}, progress.Nop{})
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("error %v, want damage", err)
	}
}

func TestFingerprint(t *testing.T) {
	ws := storetest.MustInit(t)
	merged(t, ws, dataset{"a", 0, 4}, dataset{"b", 10, 3})
	got, err := permute.Fingerprint(context.Background(), ws, permute.Options{Seed: 5, Weights: map[string]float64{"b": 0.5, "a": 1}, Eval: map[string]int64{"a": 1}})
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Part{
		{Key: "shuffle.seed", Value: "5"}, {Key: "shuffle.algorithm", Value: "numpy"},
		{Key: "samples of a", Value: "4, 0 4"}, {Key: "eval of a", Value: "1"},
		{Key: "samples of b", Value: "3, 10 3"}, {Key: "weight of b", Value: "0.5"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestCrash fails before and behind the order file; the next run makes the
// same order under a new number.
func TestCrash(t *testing.T) {
	for _, p := range []fault.Point{fault.ShuffleBeforeOrder, fault.ShuffleAfterOrder} {
		dir := filepath.Join(t.TempDir(), "work")
		faults := fault.New(p, 1)
		ws := storetest.MustInitFS(t, dir, &fsx.FS{Faults: faults})
		merged(t, ws, dataset{"a", 0, 30})
		if _, err := permute.Run(context.Background(), ws, permute.Options{Seed: 9}, progress.Nop{}); !errors.Is(err, fault.ErrInjected) {
			t.Fatalf("%s: error %v", p, err)
		}
		err := ws.View(func(r store.Reader) error {
			_, ok, err := r.Order()
			if ok {
				t.Errorf("%s: an order is in force", p)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		row, got := mustRun(t, ws, permute.Options{Seed: 9})
		if row.ID != 2 || len(got) != 30 {
			t.Errorf("%s: order %d of %d positions", p, row.ID, len(got))
		}
		if _, err := os.Stat(ws.OrderPath(row.ID)); err != nil {
			t.Error(err)
		}
	}
}
