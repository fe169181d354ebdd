package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/extract/backend/enginetest"
)

// doctor runs the command and returns its findings, a line each.
func doctor(t *testing.T, config string, code int) string {
	t.Helper()
	return eagle(t, "doctor", "-c", config).want(t, code).out
}

// finds fails unless a line has all parts.
func finds(t *testing.T, out string, parts ...string) {
	t.Helper()
	for line := range strings.Lines(out) {
		missing := false
		for _, p := range parts {
			missing = missing || !strings.Contains(line, p)
		}
		if !missing {
			return
		}
	}
	t.Errorf("no finding has all of %q:\n%s", parts, out)
}

// TestDoctorSense: with samples merged, doctor asks the engine's states whether
// they speak for the next token.
func TestDoctorSense(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "merge", "-c", config).want(t, 0)
	finds(t, doctor(t, config, 0), "ok ", "sense of the states", "after the final norm")
}

// TestDoctorVLLM: what a server tells of itself is held to the configuration, and
// a run does not begin with one that was started for other layers.
func TestDoctorVLLM(t *testing.T) {
	config, _ := quickstart(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("sesame\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hs := t.TempDir()
	v := &enginetest.VLLM{
		Dir: hs, Layers: []int{2, 4, 5, 8}, Hidden: 64, Vocab: 1000, MaxLen: 8193, Key: "sesame",
		Info: `{"vllm_config":{"model_config":{"dtype":"torch.bfloat16"},"cache_config":{"enable_prefix_caching":true},` +
			`"speculative_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[1,3,4,8]}}}}`,
	}
	url := v.Start()
	t.Cleanup(v.Close)
	edit(t, config, "dtype: fp32}", "dtype: bf16}")
	edit(t, config, "{backend: native}", fmt.Sprintf("{backend: vllm, endpoints: [%q], shared_dir: %s, api_key_file: %s}", url, hs, key))
	out := doctor(t, config, 1)
	finds(t, out, "warn ", "api key", "0644", "chmod 600")
	finds(t, out, "fail ", "vllm settings", "layers [1 3 4 8]", "--no-enable-prefix-caching")
	finds(t, out, "eagle_aux_hidden_state_layer_ids\":[2,4,5,8]")
	finds(t, out, "vllm serve", "--dtype bfloat16")
	finds(t, out, "--max-model-len 385 --max-num-batched-tokens 8192")
	edit(t, config, "max_tokens: 384", "max_tokens: 2048")
	finds(t, doctor(t, config, 1), "--max-model-len 2048 ") // the model has no more positions
	edit(t, config, "max_tokens: 2048", "max_tokens: 384")
	eagle(t, "run", "-c", config).want(t, 20).says(t, "it captures layers [1 3 4 8], wanted are [2 4 5 8]", "doctor")
	if strings.Contains(out, "sesame") {
		t.Error("the key is shown")
	}

	// The fake's states are random: a run ends with 20, and nothing is left.
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	sound := &enginetest.VLLM{Dir: hs, Layers: v.Layers, Hidden: v.Hidden, Vocab: v.Vocab, MaxLen: v.MaxLen, Key: v.Key}
	edit(t, config, url, sound.Start())
	t.Cleanup(sound.Close)
	eagle(t, "merge", "-c", config).want(t, 0)
	out = doctor(t, config, 1)
	finds(t, out, "ok ", "api key")
	finds(t, out, "ok ", "vllm settings", "VLLM_SERVER_DEV_MODE=1")
	finds(t, out, "fail ", "sense of the states", "of another model")
	r := eagle(t, "run", "-c", config).want(t, 20)
	r.says(t, "states make no sense")
	if left, err := filepath.Glob(filepath.Join(hs, "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the shared directory: %v, %v", left, err)
	}
}

// TestPatienceForAServerThatStarts: a run whose server is not there yet says so and
// goes on once it is; it gives up when patience ends, or when told to.
func TestPatienceForAServerThatStarts(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := free.Addr().String()
	must(t, free.Close())
	s := newSite(t, t.TempDir())
	hs := t.TempDir()
	configure := func(patience string) {
		s.configure(t, strings.Replace(drillConfig, "{backend: synthetic, ",
			fmt.Sprintf("{backend: vllm, endpoints: [%q], shared_dir: %s, min_top1: 0, patience: %s, ", "http://"+addr, hs, patience), 1))
	}
	configure("300ms")
	if r := s.run(t, nil, "run"); r.code != 20 || !strings.Contains(r.err, "preflight: no engine for 0.3s (extract.patience)") ||
		!strings.Contains(r.err, "connection refused") || !strings.Contains(r.err, "hint: ") {
		t.Errorf("nobody there: %v", r)
	}
	configure("1h")
	if r := s.run(t, nil, "run", "--max-duration", "300ms"); r.code != 5 || !strings.Contains(r.err, "while waiting for the engine") {
		t.Errorf("nobody there before the time is up: %v", r)
	}
	v := &enginetest.VLLM{Dir: hs, Layers: []int{2, 4, 8}, Hidden: 64, Vocab: 1000, MaxLen: 2049, Addr: addr}
	for _, c := range []struct {
		then func(*os.Process)
		code int
	}{
		{func(p *os.Process) { must(t, p.Signal(os.Interrupt)) }, 130},
		{func(*os.Process) { v.Start(); t.Cleanup(v.Close) }, 0},
	} {
		cmd := s.command(t.Context(), nil, "run")
		lines, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		var said strings.Builder
		for in := bufio.NewScanner(lines); in.Scan(); {
			said.WriteString(in.Text() + "\n")
			if c.then != nil && strings.Contains(in.Text(), "looking again, for ") {
				c.then(cmd.Process)
				c.then = nil
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code || c.then != nil {
			t.Errorf("%v, exit code %d wanted:\n%s", err, c.code, said.String())
		}
	}
}
