package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// digests prints what the Python reader finds at each position: a hash of ids,
// mask and the bits of every layer, rows that are not stored left out.
const digests = `
import hashlib, json, sys
import numpy as np
from eaglebatch import Dataset
ds = Dataset(sys.argv[1], split=None, partial=sys.argv[2] == "partial", synthetic=True)
out = []
for s in ds:
    h = hashlib.sha256(s.ids.astype("<u4").tobytes() + s.mask.tobytes())
    for k, bits in zip(s.layers, s.read()):
        h.update(np.ascontiguousarray(bits[s.stored(k)]).tobytes())
    out.append([s.metadata["dataset"], s.metadata["index"], h.hexdigest()])
json.dump(out, sys.stdout)
`

func pythonReads(t *testing.T, dir, how string) (out [][3]any) {
	t.Helper()
	python := os.Getenv("EAGLEBATCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	if b, err := exec.Command(python, "-c", "import numpy, lz4").CombinedOutput(); err != nil {
		t.Skipf("%s has no numpy and lz4 (EAGLEBATCH_PYTHON names another): %v: %s", python, err, b)
	}
	cmd := exec.Command(python, "-c", digests, dir, how)
	cmd.Env = append(os.Environ(), "PYTHONPATH=extract/export/python", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("the Python reader: %v", err)
	}
	must(t, json.Unmarshal(b, &out))
	return out
}

// goReads is the same by the Go reader, which must be able to read so many.
func goReads(t *testing.T, dir string) (out [][3]any) {
	t.Helper()
	g := openStates(t, dir)
	m := g.Index().Meta()
	for i := range g.Index().Positions() {
		s, err := g.At(i)
		must(t, err)
		var ids []byte
		for _, id := range s.IDs {
			ids = binary.LittleEndian.AppendUint32(ids, id)
		}
		s.Close()
		h := sha256.Sum256(append(ids, bitsAt(t, g, i)...))
		out = append(out, [3]any{m.Datasets[s.Position.Dataset], float64(s.Position.Sample), fmt.Sprintf("%x", h)})
	}
	return out
}

// TestPythonReadsWhatRunMade: the Python reader and the Go reader find the same
// in generations as run makes them, and the committed prefix of one that is
// still being built is the beginning of the sealed one.
func TestPythonReadsWhatRunMade(t *testing.T) {
	for _, shape := range []string{"dtype: bf16", "dtype: fp8", "dtype: fp16, rows: last-supervised+cut-tail"} {
		t.Run(shape, func(t *testing.T) {
			config, gen := manyBlobs(t)
			edit(t, config, "dtype: bf16", shape)
			eagle(t, "run", "-q", "-c", config, "--limit", "100").want(t, 5)
			part := pythonReads(t, gen, "partial")
			if len(part) < 100 || len(part) >= 363 {
				t.Errorf("%d positions of the building generation", len(part))
			}
			eagle(t, "run", "-q", "-c", config).want(t, 0)
			want := goReads(t, gen)
			same(t, want, pythonReads(t, gen, "sealed"))
			same(t, want[:len(part)], part)
			// A new order points into the older generation.
			eagle(t, "run", "-q", "-c", config, "--seed", "9", "--redo", "shuffle").want(t, 0)
			next := filepath.Join(filepath.Dir(gen), "000003")
			same(t, goReads(t, next), pythonReads(t, next, "sealed"))
		})
	}
}

func same(t *testing.T, want, got [][3]any) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%d positions, want %d", len(got), len(want))
	}
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("position %d: %v, want %v", i, got[i], want[i])
		}
	}
}
