package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"eaglebatch/fixtures"
	"eaglebatch/store/states"
)

// TestQuickstartEqualsTransformers runs the quickstart and holds the stored
// states to those that HF transformers computed, row by row.
func TestQuickstartEqualsTransformers(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	g := openStates(t, filepath.Join(work, "generations", "000002"))
	golden, err := fixtures.LoadGolden("tiny-llama")
	if err != nil {
		t.Fatal(err)
	}
	for i := range golden.Samples {
		s := &golden.Samples[i]
		got := storedStates(t, g, s.Dataset, uint64(s.Index), s.IDs)
		for layer, rows := range got {
			if err := agree(rows, golden, s.States, layer); err != nil {
				t.Errorf("%s %d layer %d: %v", s.Dataset, s.Index, layer, err)
			}
			for _, k := range []int{layer - 1, layer + 1} {
				if k >= 0 && k < len(golden.Layers) && agree(rows, golden, s.States, k) == nil {
					t.Errorf("%s %d: layer %d passes for layer %d", s.Dataset, s.Index, layer, k)
				}
			}
		}
		last := golden.Layers[len(golden.Layers)-1]
		for name, wrong := range s.Wrong {
			if agree(got[last], golden, wrong, last) == nil {
				t.Errorf("%s %d: states pass for those with %s wrong", s.Dataset, s.Index, name)
			}
		}
	}
}

func openStates(t *testing.T, dir string) *states.Generation {
	t.Helper()
	g, err := states.Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// storedStates finds a sample of a dataset and returns its rows by layer id.
func storedStates(t *testing.T, g *states.Generation, dataset string, sample uint64, ids []uint32) map[int][][]float32 {
	t.Helper()
	index := g.Index()
	for i := range index.Positions() {
		p := index.Position(i)
		if index.Meta().Datasets[p.Dataset] != dataset || p.Sample != sample {
			continue
		}
		s, err := g.At(i)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if n := min(len(s.IDs), len(ids)); !slices.Equal(s.IDs[:n], ids[:n]) {
			t.Fatalf("%s %d has other ids than its golden states", dataset, sample)
		}
		m := s.Reader.Meta()
		out := map[int][][]float32{}
		buf := make([]byte, len(s.IDs)*m.RowBytes())
		for l, id := range m.Layers {
			if err := s.Layer(buf, l, 0, len(s.IDs)); err != nil {
				t.Fatal(err)
			}
			for r := range s.IDs {
				row := make([]float32, m.Hidden)
				for c := range row {
					row[c] = math.Float32frombits(binary.LittleEndian.Uint32(buf[r*m.RowBytes()+4*c:]))
				}
				out[id] = append(out[id], row)
			}
		}
		return out
	}
	t.Fatalf("%s %d is not in the generation", dataset, sample)
	return nil
}

// agree holds rows to golden ones of a layer: cosine over 0.99999 and relative
// error under 1e-4, also without the 8 largest channels, which would otherwise
// hide what the others do.
func agree(rows [][]float32, g *fixtures.Golden, states []float32, layer int) error {
	for t, row := range rows {
		want := g.Row(states, t, layer)
		all := make([]int, len(want))
		for i := range all {
			all[i] = i
		}
		slices.SortFunc(all, func(a, b int) int {
			return -1 * cmpFloat(math.Abs(float64(want[a])), math.Abs(float64(want[b])))
		})
		for _, channels := range [][]int{all, all[8:]} {
			var dot, nn, ww, ee float64
			for _, c := range channels {
				x, y := float64(row[c]), float64(want[c])
				dot, nn, ww, ee = dot+x*y, nn+x*x, ww+y*y, ee+(x-y)*(x-y)
			}
			cos, rel := dot/math.Sqrt(nn*ww), math.Sqrt(ee/ww)
			if !(cos > 0.99999 && rel < 1e-4) {
				return fmt.Errorf("row %d, %d channels: cosine %.7f, relative error %.2g", t, len(channels), cos, rel)
			}
		}
	}
	return nil
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// TestNewSeedComputesNothing: a new order of sealed samples is a second
// generation without an engine call and with next to no new bytes.
func TestNewSeedComputesNothing(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	first := statOf(t, config)
	eagle(t, "run", "-q", "-c", config, "--seed", "7").want(t, 4).says(t, "shuffle.seed changed from 42 to 7", "run --redo shuffle")
	eagle(t, "run", "-q", "-c", config, "--seed", "7", "--redo", "shuffle").want(t, 0)
	s := statOf(t, config)
	if s.Plan.NewSamples != 0 || s.Plan.Reused != first.Plan.Samples {
		t.Errorf("%d new and %d reused of %d", s.Plan.NewSamples, s.Plan.Reused, first.Plan.Samples)
	}
	g := s.Generations[len(s.Generations)-1]
	if g.State != "sealed" || g.Blobs != 0 || g.Samples != first.Plan.Samples || !slices.Equal(g.Needs, []uint32{2}) {
		t.Errorf("generation %+v", g)
	}
	if old := first.Generations[0].Bytes; g.Bytes > old/20 {
		t.Errorf("%d new bytes beside %d", g.Bytes, old)
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
}

// TestFourthDataset: a dataset added later costs its own samples only.
func TestFourthDataset(t *testing.T) {
	config, _ := quickstart(t)
	whole, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	const line = "  - {name: C_tools, path: data/C_tools}\n"
	edit(t, config, line, "")
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	before := statOf(t, config)
	if err := os.WriteFile(config, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 4).says(t, "C_tools")
	eagle(t, "run", "-q", "-c", config, "--redo", "shuffle").want(t, 0)
	s := statOf(t, config)
	if s.Plan.Reused != before.Plan.Samples || s.Plan.NewSamples == 0 || s.Plan.NewSamples != s.Datasets[2].Samples {
		t.Errorf("%d reused of %d, %d new of %d", s.Plan.Reused, before.Plan.Samples, s.Plan.NewSamples, s.Datasets[2].Samples)
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
}

// TestChangesAreRefused: what was done with other settings is never mixed.
func TestChangesAreRefused(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"seed", []string{"--seed", "1"}, []string{"shuffle.seed changed from 42 to 1", "--redo shuffle"}},
		{"cap", []string{"--max-tokens", "100"}, []string{"max_tokens changed from 384 to 100", "--redo plan", "redoing it:"}},
		{"dtype", []string{"--dtype", "bf16"}, []string{"dtype changed from fp32 to bf16", "--redo plan"}},
		{"model", []string{"--set", "model=" + filepath.Join(filepath.Dir(config), "..", "models", "tiny-llama", "..", "tiny-llama-2")}, []string{"model"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "model" {
				dir := filepath.Join(filepath.Dir(config), "..", "models")
				if err := os.CopyFS(filepath.Join(dir, "tiny-llama-2"), os.DirFS(filepath.Join(dir, "tiny-llama"))); err != nil {
					t.Fatal(err)
				}
				edit(t, filepath.Join(dir, "tiny-llama-2", "config.json"), "{", "{\n  \"note\": \"another\",")
			}
			eagle(t, append([]string{"run", "-q", "-c", config}, c.args...)...).want(t, 4).says(t, c.says...)
		})
	}
	for _, same := range [][]string{{"--memory", "512MiB"}, {"--threads", "1"}, {"--endpoints", "[http://127.0.0.1:1]"}, {"--patience", "1s"}} {
		eagle(t, append([]string{"run", "-q", "-c", config}, same...)...).want(t, 0)
	}
	src := filepath.Join(filepath.Dir(config), "data", "A_chat", "tokenized_data.jsonl")
	edit(t, src, `"id"`, `"ID"`)
	eagle(t, "run", "-q", "-c", config).want(t, 4).says(t, "A_chat", "--redo merge")
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	// A finished merge no longer needs its sources.
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	if _, err := os.Stat(filepath.Join(work, "generations", "000003")); err == nil {
		t.Error("a refused run made a generation")
	}
}

// TestOddCasesAccounted: every line of the odd cases is in stat.
func TestOddCasesAccounted(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "eaglebatch.yaml")
	src, err := filepath.Abs("ingest/testdata/tokenized_odd.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("datasets: [{name: odd, path: %q}]\nmerge: {vocab_size: 1000, max_rejects: 100%%}\n", src)
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, "merge", "-q", "-c", config).want(t, 0)
	d := statOf(t, config).Datasets[0]
	if d.Lines != 45 || d.Lines != d.Accepted+d.Duplicates+d.Blank+d.Rejected {
		t.Errorf("%+v", d)
	}
	if d.Duplicates != 1 || d.Blank != 2 {
		t.Errorf("%+v", d)
	}
	// With the usual bound the run waits for a decision and shows the first.
	edit(t, config, "max_rejects: 100%", "max_rejects: 1%")
	eagle(t, "merge", "-q", "-c", config, "--work", filepath.Join(dir, "w2")).want(t, 4).says(t, "shifted_labels", "accept-rejects")
}

// TestLowerCapReusesPrefixes: states are causal, so that a stored sample serves
// every shorter one.
func TestLowerCapReusesPrefixes(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--max-tokens", "64").want(t, 0)
	s := statOf(t, config)
	if s.Plan.NewSamples != 0 || s.Plan.Reused != s.Plan.Samples || s.Plan.Samples == 0 {
		t.Errorf("%d new and %d reused of %d", s.Plan.NewSamples, s.Plan.Reused, s.Plan.Samples)
	}
	whole, cut := openStates(t, filepath.Join(work, "generations", "000002")), openStates(t, filepath.Join(work, "generations", "000003"))
	shortened := 0
	for i := range cut.Index().Positions() {
		p := cut.Index().Position(i)
		if p.Rows > 64 {
			t.Fatalf("position %d has %d rows", i, p.Rows)
		}
		if p.Rows == 64 {
			shortened++
		}
	}
	if shortened == 0 {
		t.Error("no sample is at the cap")
	}
	c, err := cut.At(0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := cut.Index().Meta().Datasets[c.Position.Dataset]
	full := storedStates(t, whole, name, c.Position.Sample, c.IDs)
	got := storedStates(t, cut, name, c.Position.Sample, c.IDs)
	for layer, rows := range got {
		if len(rows) != len(c.IDs) {
			t.Fatalf("layer %d has %d rows, want %d", layer, len(rows), len(c.IDs))
		}
		for r, row := range rows {
			if !slices.Equal(row, full[layer][r]) {
				t.Fatalf("layer %d row %d is not the stored one", layer, r)
			}
		}
	}
}

// TestWaitEndsAtTheTime: an engine that stays away is not waited for beyond
// the time given.
func TestWaitEndsAtTheTime(t *testing.T) {
	config, _ := quickstart(t)
	r := eagle(t, "run", "-q", "-c", config, "--wait", "--max-duration", "2s", "--backend", "vllm", "--endpoints", "[http://127.0.0.1:1]",
		"--set", "extract.shared_dir="+t.TempDir(), "--patience", "100ms").want(t, 5)
	r.says(t, "while waiting", "connection refused")
}
