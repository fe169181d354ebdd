package worker_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
	"eaglebatch/extract/backend/worker"
	"eaglebatch/fixtures"
)

// python returns a Python that has torch and transformers. Looking takes seconds.
func python(t *testing.T) string {
	t.Helper()
	path, why := lookForPython()
	if why != "" {
		t.Skip(why)
	}
	return path
}

var lookForPython = sync.OnceValues(func() (path, why string) {
	name := os.Getenv("EAGLEBATCH_TEST_PYTHON")
	if name == "" {
		name = "python3"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Sprintf("no %s here: set EAGLEBATCH_TEST_PYTHON to a Python with torch and transformers", name)
	}
	if out, err := exec.Command(path, "-c", "import torch, transformers").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Sprintf("%s lacks torch or transformers (%s): set EAGLEBATCH_TEST_PYTHON to a Python that has them", path, lines[len(lines)-1])
	}
	return path, ""
})

func shipped(t *testing.T, model string, layers []int, dtype string, args ...string) *worker.Backend {
	t.Helper()
	b, err := worker.New(worker.Options{
		Command: append([]string{python(t), worker.ScriptArg, "--threads", "1"}, args...), Model: model, Capture: layers, DType: dtype,
		Device: "cpu", LogDir: t.TempDir(), MaxBody: 16 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden: the shipped worker's rows are the goldens', sample by sample and
// in batches, at any subset of layers; DeepSeek-V3 in the Kimi-K2.5 wrapper too.
func TestGolden(t *testing.T) {
	for _, name := range []string{"tiny-llama", "kimi-k2.5-tiny", "qwen3", "mistral-window"} {
		t.Run(name, func(t *testing.T) {
			dir, err := fixtures.Copy(t.TempDir(), "models/"+name)
			if err != nil {
				t.Fatal(err)
			}
			g, err := fixtures.LoadGolden(name)
			if err != nil {
				t.Fatal(err)
			}
			n := len(g.Layers) - 1
			layers := []int{0, 2, n}
			b := shipped(t, dir, layers, "fp32")
			closing(t, b)
			info, err := b.Describe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if info.Hidden != g.Hidden || info.Layers != n || !info.LastPreNorm || info.Engine != "worker:hf" {
				t.Errorf("%+v", info)
			}
			var samples [][]uint32
			for _, s := range g.Samples[:min(len(g.Samples), 6)] {
				samples = append(samples, s.IDs)
			}
			rows, errs, err := serve(t, b, samples...)
			if err != nil || len(errs) > 0 {
				t.Fatal(err, errs)
			}
			worst := 0.0
			for i := range samples {
				s := g.Samples[i]
				if len(rows[uint64(i)]) != len(s.IDs)*len(layers)*g.Hidden*4 {
					t.Fatalf("sample %d: %d bytes", i, len(rows[uint64(i)]))
				}
				for tok := range s.IDs {
					for k, l := range layers {
						got := rows[uint64(i)][(tok*len(layers)+k)*g.Hidden*4:]
						worst = max(worst, distance(got, g.Row(s.States, tok, slices.Index(g.Layers, l))))
					}
				}
			}
			if !(worst < 2e-4) {
				t.Errorf("worst relative error of a row: %g", worst)
			}
			t.Logf("worst relative error of a row: %.2g", worst)
		})
	}
}

// distance is |got - want| / |want|.
func distance(got []byte, want []float32) float64 {
	var d, n float64
	for i, w := range want {
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))) - float64(w)
		d, n = d+v*v, n+float64(w)*float64(w)
	}
	return math.Sqrt(d / n)
}

func TestShippedConformance(t *testing.T) {
	dir, err := fixtures.Copy(t.TempDir(), "models/tiny-llama")
	if err != nil {
		t.Fatal(err)
	}
	py := python(t)
	open := func(t *testing.T, layers []int) backend.Backend {
		b, err := worker.New(worker.Options{
			Command: []string{py, worker.ScriptArg, "--threads", "1"}, Model: dir, Capture: layers, Device: "cpu", MaxBody: 64 << 10, LogDir: t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if testing.Short() {
		t.Skip("-short: it starts Python some twenty times")
	}
	backendtest.Run(t, backendtest.Factory{
		New:         func(t *testing.T) backend.Backend { return open(t, []int{1, 4}) },
		WithCapture: open,
		Long:        300,
		MaxChunk:    64 << 10,
		Cosine:      0.995, // bf16 in batches of other shapes
		Timeout:     3 * time.Minute,
	})
}

// TestMissing: what is missing is said, with the command that cures it.
func TestMissing(t *testing.T) {
	py := python(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte("raise ImportError('No module named torch')\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", dir)
	b := shipped(t, dir, []int{1}, "bf16")
	closing(t, b)
	_, err := b.Describe(t.Context())
	if err == nil || errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), py+" -m pip install torch") {
		t.Errorf("without torch: %v", err)
	}
	t.Setenv("PYTHONPATH", "")
	b = shipped(t, dir, []int{1}, "bf16")
	closing(t, b)
	if _, err := b.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot load "+dir) {
		t.Errorf("without a model: %v", err)
	}
	model, err := fixtures.Copy(t.TempDir(), "models/tiny-llama")
	if err != nil {
		t.Fatal(err)
	}
	b = shipped(t, model, []int{1, 99}, "bf16")
	closing(t, b)
	if _, err := b.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "99") {
		t.Errorf("a layer that is not there: %v", err)
	}
}
