package native

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// hfStates writes the states of samples as transformers computes them in
// float32: for each, [token][layer][hidden], the last layer before the norm.
const hfStates = `
import json, sys, numpy as np, torch, transformers
job = json.load(open(sys.argv[1]))
model = transformers.AutoModel.from_pretrained(job["dir"], gguf_file=job["file"], dtype=torch.float32).eval()
last = []
model.norm.register_forward_pre_hook(lambda m, x: last.append(x[0]))
with open(job["out"], "wb") as f, torch.no_grad():
    for ids in job["samples"]:
        last.clear()
        h = list(model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states)
        h[-1] = last[0]
        f.write(np.stack([h[k][0].numpy() for k in job["layers"]], 1).astype("<f4").tobytes())
`

// TestTransformers compares every layer of a real model with transformers
// reading the same files, where EAGLEBATCH_TEST_GGUF names a GGUF file or
// EAGLEBATCH_TEST_MODEL a directory, and EAGLEBATCH_TEST_PYTHON a Python with
// torch, transformers, accelerate and gguf.
func TestTransformers(t *testing.T) {
	for name, lengths := range map[string][]int{"EAGLEBATCH_TEST_GGUF": {300, 17}, "EAGLEBATCH_TEST_MODEL": {1500, 17}} {
		t.Run(name, func(t *testing.T) {
			path, python := os.Getenv(name), os.Getenv("EAGLEBATCH_TEST_PYTHON")
			if path == "" || python == "" {
				t.Skipf("%s names no model, or EAGLEBATCH_TEST_PYTHON no Python with transformers", name)
			}
			testTransformers(t, path, python, lengths)
		})
	}
}

func testTransformers(t *testing.T, path, python string, lengths []int) {
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{DType: "fp32", Capture: []int{0}}
	b, err := New(path, o)
	if err != nil {
		t.Fatal(err)
	}
	for k := range b.dec.Layers {
		o.Capture = append(o.Capture, k+1)
	}
	vocab, hidden := b.dec.Vocab, b.dec.Hidden
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	all := samples(vocab, lengths...)
	dir := t.TempDir()
	from, file := path, any(nil) // as from_pretrained wants them
	if filepath.Ext(path) == ".gguf" {
		from, file = filepath.Dir(path), filepath.Base(path)
	}
	job, err := json.Marshal(map[string]any{"dir": from, "file": file, "layers": o.Capture, "samples": all, "out": filepath.Join(dir, "states")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "job.json"), job, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), python, "-c", hfStates, filepath.Join(dir, "job.json")).CombinedOutput(); err != nil {
		t.Fatalf("transformers: %v\n%s", err, out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "states"))
	if err != nil {
		t.Fatal(err)
	}
	want := floats(raw)
	for i, rows := range serve(t, path, o, all...) {
		got := floats(rows)
		if len(want) < len(got) {
			t.Fatalf("sample %d: %d values from transformers, want %d or more", i, len(want), len(got))
		}
		cosine, rel, err := compare(got, want[:len(got)], hidden)
		t.Logf("sample of %d tokens: worst cosine %.8f, worst relative error %.2g", len(all[i]), cosine, rel)
		if err != nil {
			t.Errorf("sample of %d tokens: %v", len(all[i]), err)
		}
		want = want[len(got):]
	}
	if len(want) != 0 {
		t.Errorf("transformers gave %d values more", len(want))
	}
}
