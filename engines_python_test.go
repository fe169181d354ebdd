package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// python returns a Python that has what the shipped worker and its checks need.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("EAGLEBATCH_TEST_PYTHON")
	if path == "" {
		t.Skip("set EAGLEBATCH_TEST_PYTHON to a Python with torch, transformers, gguf, numpy and lz4 to run it")
	}
	if out, err := exec.Command(path, "-c", "import torch, transformers, gguf, numpy, lz4").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("EAGLEBATCH_TEST_PYTHON=%s: %v: %s", path, err, lines[len(lines)-1])
	}
	return path
}

// script runs one of the scripts in fixtures/engines.
func script(t *testing.T, python string, args ...string) string {
	t.Helper()
	args[0] = filepath.Join("fixtures", "engines", args[0])
	out, err := exec.Command(python, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestWorkerNight: the shipped worker through the command line. It dies once
// without a reason and each time of one sample; that one is quarantined, the log
// says what it died of, and the rest are the states that transformers gives.
func TestWorkerNight(t *testing.T) {
	py := python(t)
	config, work := quickstart(t)
	const poison = 990 // of no other sample
	data := filepath.Join(t.TempDir(), "tokenized_data.jsonl")
	var lines strings.Builder
	for i := range 40 {
		var ids []string
		for k := range 20 + i {
			ids = append(ids, fmt.Sprint(10+(i*37+k*k*11)%900))
		}
		if i == 25 {
			ids[7] = fmt.Sprint(poison)
		}
		fmt.Fprintf(&lines, `{"input_ids": [%s], "loss_mask": [%s1]}`+"\n", strings.Join(ids, ","), strings.Repeat("1,", len(ids)-1))
	}
	if err := os.WriteFile(data, []byte(lines.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	edit(t, config, "  - {name: A_chat, path: data/A_chat/tokenized_data.jsonl}\n  - {name: B_code, path: data/B_code/*.jsonl.gz}\n  - {name: C_tools, path: data/C_tools}\n",
		fmt.Sprintf("  - {name: T, path: %s}\n", data))
	poisoned, err := filepath.Abs("fixtures/engines/poison_worker.py")
	if err != nil {
		t.Fatal(err)
	}
	edit(t, config, "{backend: native}", fmt.Sprintf("{backend: worker, device: cpu, min_top1: 0, max_quarantined: 1, command: [%s, %s, '{script}', '%d', '12', %s, --threads, '1', --batch-tokens, '200']}",
		py, poisoned, poison, filepath.Join(t.TempDir(), "died")))
	eagle(t, "run", "-c", config).want(t, 3)
	s := statOf(t, config)
	if g := s.Generations[0]; g.State != "sealed" || g.Samples != 39 || g.Quarantined != 1 {
		t.Errorf("%+v", g)
	}
	log, err := os.ReadFile(filepath.Join(work, "logs", "worker-0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "in flight: T sample 25 (45 tokens, 0 rows answered)\n") {
		t.Errorf("the log does not name the sample that it died of, alone:\n%s", log)
	}
	script(t, py, "real.py", "against", filepath.Join(work, "generations", "000002"), filepath.Join(filepath.Dir(config), "..", "models", "tiny-llama"),
		"--dtype", "fp32", "--least", "0.99999")
}

// TestKimiThroughWorker: DeepSeek-V3 within the configuration of Kimi-K2.5, sizes
// taken from the nested part, at the four layers that a drafter wants.
func TestKimiThroughWorker(t *testing.T) {
	py := python(t)
	dir := t.TempDir()
	script(t, py, "tiny_kimi.py", dir, "--layers", "8")
	config := filepath.Join(dir, "eaglebatch.yaml")
	text := fmt.Sprintf("datasets: [{name: K, path: tokenized_data.jsonl}]\nmodel: model\nplan: {dtype: fp32}\n"+
		"extract: {backend: worker, device: cpu, min_top1: 0, command: [%s, '{script}', --threads, '1']}\n", py)
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-c", config).want(t, 0)
	out := eagle(t, "plan", "-c", config, "--json").want(t, 0).out
	if want := `"layers": [2, 4, 5, 8]`; !strings.Contains(strings.Join(strings.Fields(out), ""), strings.ReplaceAll(want, " ", "")) {
		t.Errorf("the plan lacks %s:\n%s", want, out)
	}
	got := script(t, py, "real.py", "against", filepath.Join(dir, "work", "generations", "000002"), filepath.Join(dir, "model"), "--dtype", "fp32", "--least", "0.99999")
	if !strings.Contains(got, "12 samples") {
		t.Errorf("not all samples were compared:\n%s", got)
	}
}
