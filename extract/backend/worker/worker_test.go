package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
	"eaglebatch/extract/backend/enginetest"
	"eaglebatch/extract/backend/worker"
)

func TestMain(m *testing.M) {
	enginetest.RunWorker()
	os.Exit(m.Run())
}

var layers = []int{0, 2, 6, 12}

// fake gives a backend whose workers follow the script.
func fake(t *testing.T, script string, change ...func(*worker.Options)) *worker.Backend {
	t.Helper()
	t.Setenv(enginetest.WorkerEnv, script)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := worker.Options{
		Command: []string{exe}, Workers: 2, Model: "fake", Capture: layers, LogDir: t.TempDir(),
		MaxBody: 40 << 10, Grace: 200 * time.Millisecond,
	}
	for _, c := range change {
		c(&o)
	}
	b, err := worker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Factory{
		New: func(t *testing.T) backend.Backend { return fake(t, "chatty") },
		WithCapture: func(t *testing.T, layers []int) backend.Backend {
			return fake(t, "", func(o *worker.Options) { o.Capture = layers })
		},
		Faulty: func(t *testing.T, f backendtest.Fault) backend.Backend {
			return fake(t, map[backendtest.Fault]string{
				backendtest.Dies:    "die@3,FILE=" + filepath.Join(t.TempDir(), "died"),
				backendtest.Refuses: "refuse@3",
				backendtest.Down:    "dead",
			}[f])
		},
		MaxChunk: 40 << 10,
	})
}

// serve asks slot 0 for samples of the given lengths.
func serve(t *testing.T, b backend.Backend, samples ...[]uint32) (map[uint64][]byte, map[uint64]error, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := make(chan backend.Request, len(samples))
	for i, s := range samples {
		in <- backend.Request{ID: uint64(i), Tokens: s, Name: fmt.Sprintf("set sample %d", i)}
	}
	close(in)
	rows, errs := map[uint64][]byte{}, map[uint64]error{}
	err := b.Serve(ctx, 0, in, func(c backend.Chunk) error {
		rows[c.ID] = append(rows[c.ID], c.Data...)
		if c.Err != nil {
			errs[c.ID] = c.Err
		}
		return nil
	})
	return rows, errs, err
}

func closing(t *testing.T, b backend.Backend) {
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFaults: what is out of step ends the call as an engine's failure, with
// its reason; no wrong row is handed on; and the next call works.
func TestFaults(t *testing.T) {
	a, z := []uint32{1, 2, 3}, []uint32{4, 5, 6, 7}
	for script, want := range map[string]string{
		"die@2":      "set sample 1",
		"badmagic@2": "broken frame",
		"short@2":    "broken frame",
		"layers@2":   "broken frame",
		"rows@2":     "broken frame",
		"stray@2":    "not in flight",
		"hang@2":     "silent",
	} {
		t.Run(script, func(t *testing.T) {
			b := fake(t, script, func(o *worker.Options) {
				if script == "hang@2" { // a worker that starts has as long
					o.Quiet, o.Dead = 50*time.Millisecond, 5*time.Second
				}
			})
			closing(t, b)
			rows, errs, err := serve(t, b, a, z)
			if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Fatalf("serve: %v, want one that is unavailable and says %q", err, want)
			}
			if len(errs) != 0 || len(rows[1]) != 0 {
				t.Errorf("%d bytes and errors %v for the request that broke", len(rows[1]), errs)
			}
			if r := rows[0]; r != nil && !bytes.Equal(r, enginetest.Rows(a, layers, enginetest.WorkerHidden)) {
				t.Error("the good request has other rows")
			}
			rows, _, err = serve(t, b, z)
			if err != nil || !bytes.Equal(rows[0], enginetest.Rows(z, layers, enginetest.WorkerHidden)) {
				t.Errorf("the next call: %v, %d bytes", err, len(rows[0]))
			}
		})
	}
}

func TestWrongIDs(t *testing.T) {
	b := fake(t, "wrongids@1")
	closing(t, b)
	rows, errs, err := serve(t, b, []uint32{1, 2})
	var se *backend.SampleError
	if err != nil || !errors.As(errs[0], &se) || len(rows[0]) != 0 {
		t.Errorf("%v, %v, %d bytes", err, errs, len(rows[0]))
	}
}

func TestSlowIsNotDead(t *testing.T) {
	b := fake(t, "", func(o *worker.Options) { o.Quiet, o.Dead = 20*time.Millisecond, 3*time.Second })
	closing(t, b)
	in := make(chan backend.Request, 1)
	in <- backend.Request{Tokens: []uint32{1}}
	close(in)
	err := b.Serve(t.Context(), 0, in, func(backend.Chunk) error {
		time.Sleep(4 * time.Second) // the host is slow, and the worker cannot be heard
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSetup: what a worker cannot do is no reason to try again.
func TestSetup(t *testing.T) {
	for script, want := range map[string]string{
		"setup": "torch is not installed",
		"other": "asked were",
	} {
		b := fake(t, script)
		closing(t, b)
		if _, err := b.Describe(t.Context()); err == nil || errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a lasting error that says %q", script, err, want)
		}
	}
	b := fake(t, "dead")
	closing(t, b)
	if _, err := b.Describe(t.Context()); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "no such GPU") {
		t.Errorf("dead: %v, want its last words", err)
	}
	b = fake(t, "", func(o *worker.Options) { o.Command = []string{"/nowhere/python"} })
	closing(t, b)
	if _, err := b.Describe(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

// TestLoads: one that does not get ready says how long it was waited for.
func TestLoads(t *testing.T) {
	for _, c := range []struct {
		script, says string
		change       func(*worker.Options)
	}{
		{"mute", "while it loaded: silent for 60ms", func(o *worker.Options) { o.Quiet, o.Dead = 20*time.Millisecond, 40*time.Millisecond }},
		{"loading", "not ready within 50ms", func(o *worker.Options) { o.Load = 50 * time.Millisecond }},
	} {
		b := fake(t, c.script, c.change)
		closing(t, b)
		if _, err := b.Describe(t.Context()); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that is unavailable and says %q", c.script, err, c.says)
		}
	}
}

// TestGroupDies: Close leaves neither a worker that stays nor its children.
func TestGroupDies(t *testing.T) {
	b := fake(t, "stay,child=3600")
	if _, err := b.Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- b.Close() }()
	select {
	case err := <-done: // which waits until nobody has the output open
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the worker or its child is still there")
	}
	if _, err := b.Describe(t.Context()); err == nil {
		t.Error("a closed backend describes itself")
	}
}

func TestLog(t *testing.T) {
	dir := t.TempDir()
	b := fake(t, "chatty,poison=77", func(o *worker.Options) { o.LogDir = dir })
	closing(t, b)
	if _, _, err := serve(t, b, []uint32{1}, []uint32{5, 77}); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("serve: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "worker-0.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"greets on stdout", "on stderr", "Segmentation fault", "signal: killed", "in flight: set sample 1 (2 tokens, 0 rows answered)"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]worker.Options{
		"no layers":  {},
		"descending": {Capture: []int{2, 1}},
		"twice":      {Capture: []int{1, 1}},
		"dtype":      {Capture: []int{1}, DType: "fp8"},
	} {
		if _, err := worker.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
