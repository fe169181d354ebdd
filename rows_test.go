package main

import (
	"encoding/json"
	"slices"
	"testing"

	"eaglebatch/store/states"
)

// TestRowSelections goes through every selection: planned bytes are close to
// those written, the rows kept are those of FORMAT.md and hold the states that an
// extraction of all rows has, and a new seed points to them.
func TestRowSelections(t *testing.T) {
	whole, dir := manyBlobs(t)
	eagle(t, "run", "-q", "-c", whole).want(t, 0)
	all := openStates(t, dir)
	for _, c := range []struct {
		rows             string
		supervised, tail bool
	}{
		{"last-supervised", true, false},
		{"cut-tail", false, true},
		{"last-supervised+cut-tail", true, true},
	} {
		if testing.Short() && !(c.supervised && c.tail) {
			continue // the one that is both
		}
		t.Run(c.rows, func(t *testing.T) {
			config, gen := manyBlobs(t)
			edit(t, config, "dtype: bf16", "dtype: bf16, rows: "+c.rows)
			eagle(t, "run", "-q", "-c", config).want(t, 0)
			g := openStates(t, gen)
			kept := int64(0)
			for i := range g.Index().Positions() {
				kept += sameRows(t, all, g, i, c.supervised, c.tail)
			}
			s := statOf(t, config)
			// The plan knows no masks: with several supervised runs in a sample their neighbours are estimated.
			if want := kept * 64 * 2; s.Plan.RawBytes > want || s.Plan.RawBytes < want-want/100 || !c.supervised && s.Plan.RawBytes != want {
				t.Errorf("planned %d raw bytes, kept %d", s.Plan.RawBytes, want)
			}
			eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
			eagle(t, "compare", "2", "2", "-q", "-c", config).want(t, 0)
			eagle(t, "run", "-q", "-c", config, "--seed", "5", "--redo", "shuffle").want(t, 0)
			if s := statOf(t, config); s.Plan.NewSamples != 0 {
				t.Errorf("a new seed computes %d samples", s.Plan.NewSamples)
			}
			eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--seed", "5", "--rows", "all", "--limit", "1").want(t, 5)
			if s := statOf(t, config); s.Plan.Reused != 0 {
				t.Errorf("%d samples of a selection pass for whole ones", s.Plan.Reused)
			}
		})
	}
}

// sameRows compares a position of a selection with that of all rows, and counts
// the rows kept.
func sameRows(t *testing.T, all, some *states.Generation, i int64, supervised, tail bool) (kept int64) {
	t.Helper()
	a, err := all.At(i)
	must(t, err)
	defer a.Close()
	b, err := some.At(i)
	must(t, err)
	defer b.Close()
	m := b.Reader.Meta()
	rb := m.RowBytes()
	for l := range m.Layers {
		want := rowsOf(b.Mask, supervised && l == len(m.Layers)-1, tail)
		got, err := b.Reader.LayerRows(int(b.Position.Entry), l)
		must(t, err)
		if got == nil {
			got = rowsOf(b.Mask, false, false)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("position %d layer index %d has rows %v, want %v of mask %v", i, l, got, want, b.Mask)
		}
		n, err := b.LayerRows(l)
		must(t, err)
		kept += int64(n)
		x, y := make([]byte, n*rb), make([]byte, len(b.IDs)*rb)
		must(t, b.Layer(x, l, 0, n))
		must(t, a.Layer(y, l, 0, len(b.IDs)))
		for k, row := range got {
			if !slices.Equal(x[k*rb:][:rb], y[int(row)*rb:][:rb]) {
				t.Fatalf("position %d layer index %d token %d has another state", i, l, row)
			}
		}
	}
	return kept
}

// rowsOf is FORMAT.md in other words.
func rowsOf(mask []byte, supervised, tail bool) (out []uint32) {
	at := func(t int) bool { return t >= 0 && t < len(mask) && mask[t] == 1 }
	last := len(mask) - 1
	for tail && last >= 0 && !at(last) {
		last--
	}
	for t := range mask {
		beyond := tail && last >= 0 && t > last+1
		lonely := supervised && !at(t-1) && !at(t) && !at(t+1)
		if !beyond && !lonely {
			out = append(out, uint32(t))
		}
	}
	return out
}

// TestCat: everything that is known of one sample.
func TestCat(t *testing.T) {
	config, _ := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	var d struct {
		Generation, Position, Line int64
		Dataset, Source, Split     string
		Sample                     uint64
		Tokens                     []uint32
		Mask                       []int
		Layers                     []struct {
			Layer, Rows    int
			Norm, Min, Max float64
			First          []float64
			Finite         bool
		}
	}
	r := eagle(t, "cat", "gen-000002:7", "--json", "--values", "3", "-q", "-c", config).want(t, 0)
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		t.Fatal(err)
	}
	if d.Generation != 2 || d.Position != 7 || d.Line < 1 || d.Source == "" || d.Split != "train" || len(d.Tokens) == 0 || len(d.Mask) != len(d.Tokens) || len(d.Layers) != 4 {
		t.Errorf("%+v", d)
	}
	for _, l := range d.Layers {
		if l.Rows != len(d.Tokens) || l.Norm <= 0 || l.Min >= l.Max || len(l.First) != 3 || !l.Finite {
			t.Errorf("%+v", l)
		}
	}
	for _, bad := range []string{"2", "2:x", "9:0", "2:363"} {
		if r := eagle(t, "cat", bad, "-q", "-c", config); r.code == 0 || r.err == "" {
			t.Errorf("cat %s: %+v", bad, r)
		}
	}
}
