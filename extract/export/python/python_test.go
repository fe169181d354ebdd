// Package python_test writes generations for the Python reader's tests and runs
// them.
package python_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// outVar names the directory that TestWriteGenerations writes to: how pytest
// asks for its test data. dataVar tells pytest that they are there.
const (
	outVar  = "EAGLEBATCH_WRITE_TESTDATA"
	dataVar = "EAGLEBATCH_TESTDATA"
)

// TestWriteGenerations writes one set of generations a codec and dtype, and
// reads nothing: what it wrote is the input of the Python tests.
func TestWriteGenerations(t *testing.T) {
	dir := os.Getenv(outVar)
	if dir == "" {
		dir = t.TempDir()
	}
	writeAll(t, dir)
	found, err := filepath.Glob(filepath.Join(dir, "*", "generations", "*", genindex.ManifestName))
	if err != nil || len(found) < 16 {
		t.Fatalf("%d sealed generations, %v", len(found), err)
	}
}

// TestPythonReader runs the pytest suite on them.
func TestPythonReader(t *testing.T) {
	python := os.Getenv("EAGLEBATCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import numpy, lz4, pytest").CombinedOutput(); err != nil {
		t.Skipf("%s has no numpy, lz4 and pytest (EAGLEBATCH_PYTHON names another): %v: %s", python, err, out)
	}
	dir := t.TempDir()
	writeAll(t, dir)
	cmd := exec.Command(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
	cmd.Env = append(os.Environ(), dataVar+"="+dir, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

func writeAll(t *testing.T, dir string) {
	t.Helper()
	for _, codec := range []string{"raw", "lz4", "lz4-planes", "dense"} {
		for _, dtype := range []string{"bf16", "fp16", "fp32", "fp8"} {
			m := meta(codec, dtype)
			newCase(t, dir, codec+"-"+dtype, m).sealed(1)
		}
	}
	for _, source := range []string{"bf16", "fp32"} {
		m := meta("lz4-planes", "fp8")
		m.Source = source
		newCase(t, dir, "fp8-from-"+source, m).sealed(1)
	}
	m := meta("lz4-planes", "bf16")
	c := newCase(t, dir, "older", m)
	c.sealed(3)
	c.pointing(4, 3)
	m.Rows = blob.RowsBoth
	newCase(t, dir, "selected", m).sealed(1)
	m.Rows, m.Synthetic = "", true
	newCase(t, dir, "synthetic", m).sealed(1)
	m.Synthetic = false
	newCase(t, dir, "building", m).building(1)
	writeExports(t, dir)
}

func meta(codec, dtype string) blob.Meta {
	return blob.Meta{
		Layers: []int{2, 5, 8}, Hidden: 40, DType: dtype, LastPreNorm: true, Codec: codec, ChunkBytes: 4096,
		Model: "model", Tokenizer: "tokenizer", Engine: "test 1", Datasets: []string{"alpha", "beta"},
	}
}

// sample is one entry; its ids, mask and states follow from seed.
type sample struct {
	dataset, seed uint32
	rows          int
	absent        bool
}

// blobs is what every case holds: several blocks a layer, one token, an absent
// entry, a blob of one sample.
func blobs() [][]sample {
	return [][]sample{
		{{0, 1, 130, false}, {1, 2, 1, false}, {0, 3, 57, true}, {1, 4, 64, false}},
		{{0, 5, 300, false}}, // the second window of its sample
		{{1, 6, 8, false}, {0, 7, 33, false}},
	}
}

// want is what a reader must find at a position.
type want struct {
	Split   string `json:"split"`
	Dataset string `json:"dataset"`
	Index   uint64 `json:"index"`
	Window  uint64 `json:"window"`
	Seed    uint32 `json:"seed"`
	Rows    int    `json:"rows"`
	IDs     []int  `json:"ids"`
	Mask    []int  `json:"mask"`
}

type testCase struct {
	t    *testing.T
	fs   *fsx.FS
	dir  string // of the generations
	meta blob.Meta
	hash map[uint32]string

	losses []blob.Loss // of the blobs written
}

func newCase(t *testing.T, dir, name string, m blob.Meta) *testCase {
	t.Helper()
	c := &testCase{t, &fsx.FS{}, filepath.Join(dir, name, "generations"), m, map[uint32]string{}, nil}
	return c
}

func (c *testCase) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCase) path(gen uint32, name string) string {
	return filepath.Join(c.dir, fmt.Sprintf("%06d", gen), name)
}

func (c *testCase) begin(gen uint32) {
	c.ok(c.fs.MkdirAll(c.path(gen, "")))
	c.ok(genindex.CreateLease(c.fs, c.path(gen, "")))
	c.meta.Generation = gen
}

func ids(s sample) []uint32 {
	out := make([]uint32, s.rows)
	for t := range out {
		out[t] = hash(s.seed, uint32(t), 0, 0) % 1000
	}
	return out
}

func mask(s sample) []byte {
	out := make([]byte, s.rows)
	for t := range out {
		if t > s.rows/3 && t < s.rows*4/5 {
			out[t] = 1
		}
	}
	return out
}

// number is the sample's index in its dataset and, above, its window.
func number(s sample) uint64 {
	n := uint64(s.seed) * 10
	if s.seed == 5 {
		n |= 1 << 40
	}
	return n
}

func entry(s sample) blob.Entry {
	e := blob.Entry{Dataset: s.dataset, Sample: number(s), Rows: uint32(s.rows)}
	binary.LittleEndian.PutUint32(e.Tokens[:], s.seed)
	binary.LittleEndian.PutUint32(e.Content[:], ^s.seed)
	return e
}

func (c *testCase) writeBlob(no int, samples []sample) genindex.ManifestFile {
	m, ctx := c.meta, context.Background()
	m.Blob = uint32(no)
	name := fmt.Sprintf("blob-%06d.ebb", no)
	w, err := blob.Create(c.path(m.Generation, name), m, blob.WriterOptions{FS: c.fs, Threads: 2})
	c.ok(err)
	for _, s := range samples {
		if s.absent {
			c.ok(w.Skip(entry(s), "engine gave NaN twice"))
			continue
		}
		c.ok(w.Begin(entry(s), ids(s), mask(s)))
		c.ok(w.Rows(ctx, states(m, s), s.rows))
		c.ok(w.End())
	}
	info, err := w.Commit(ctx)
	c.ok(err)
	for l, x := range info.Losses {
		if c.losses == nil {
			c.losses = make([]blob.Loss, len(m.Layers))
		}
		c.losses[l].Add(x)
	}
	return genindex.ManifestFile{Name: name, Bytes: info.Bytes, Hash: info.Hash}
}

// positions: all samples in an order of their own, one of them twice, the first
// time cut and with a mask of its own; two for eval.
func (c *testCase) index(name string, all [][]sample, older uint32, withAbsent bool) []want {
	gen, m := c.meta.Generation, genindex.Meta{Generation: c.meta.Generation, Datasets: []string{"beta", "alpha"}, Blob: c.meta}
	if name == "plan.ebi" {
		m.Generation, m.Blob.Generation = 0, 0 // a plan is made before the generation has a number
	}
	w, err := genindex.Create(c.fs, c.path(gen, name), m)
	c.ok(err)
	var out []want
	put := func(b, e, rows int, own []byte) {
		s := all[b][e]
		p := genindex.Position{
			Gen: older, Blob: uint32(b), Entry: uint32(e), Rows: uint32(rows), Dataset: 1 - s.dataset,
			Sample: number(s), Mask: genindex.NoMask,
		}
		x := want{Dataset: c.meta.Datasets[s.dataset], Index: p.Sample & (1<<40 - 1), Window: p.Sample >> 40, Seed: s.seed, Rows: rows}
		m := mask(s)[:rows]
		if own != nil {
			m, p.Mask = own, 0
		}
		for t, id := range ids(s)[:rows] {
			x.IDs, x.Mask = append(x.IDs, int(id)), append(x.Mask, int(m[t]))
		}
		c.ok(w.Position(p, own))
		out = append(out, x)
	}
	if older == 0 {
		for _, samples := range all {
			var es []blob.Entry
			for _, s := range samples {
				e := entry(s)
				e.Dataset = 1 - s.dataset
				es = append(es, e)
			}
			c.ok(w.Blob(es))
		}
	}
	if c.meta.Rows == "" {
		own := make([]byte, 200)
		own[0], own[199] = 1, 1
		put(1, 0, 200, own)
	}
	for _, at := range [][2]int{{0, 3}, {0, 0}, {0, 2}, {0, 1}, {1, 0}, {2, 1}, {2, 0}} {
		if s := all[at[0]][at[1]]; !s.absent || withAbsent {
			put(at[0], at[1], s.rows, nil)
		}
	}
	n := int64(len(out))
	w.Splits([]genindex.Split{{Name: "train", Count: n - 2}, {Name: "eval", First: n - 2, Count: 2}})
	for i := range out {
		out[i].Split = "train"
		if int64(i) >= n-2 {
			out[i].Split = "eval"
		}
	}
	c.ok(w.Finish())
	return out
}

func (c *testCase) sealed(gen uint32) {
	c.begin(gen)
	var files []genindex.ManifestFile
	for no, samples := range blobs() {
		files = append(files, c.writeBlob(no, samples))
	}
	c.seal(append(files, c.head()), nil, c.index("index.ebi", blobs(), 0, false))
}

// head writes a target_head.safetensors whose norm has the weights 0.5, 0.5625, …
func (c *testCase) head() genindex.ManifestFile {
	const name = "target_head.safetensors"
	var norm []byte
	for i := range c.meta.Hidden {
		norm = binary.LittleEndian.AppendUint32(norm, math.Float32bits(0.5+float32(i)/16))
	}
	embed := make([]byte, 4*2*c.meta.Hidden)
	c.ok(c.fs.WriteFileAtomic(c.path(c.meta.Generation, name), func(w io.Writer) error {
		return safetensors.Write(w, []tensor.Tensor{
			{Name: "model.embed_tokens.weight", Type: tensor.F32, Shape: []int{2, c.meta.Hidden}, Data: embed},
			{Name: "model.norm.weight", Type: tensor.F32, Shape: []int{c.meta.Hidden}, Data: norm},
		}, map[string]string{"format": "pt", "rms_norm_eps": "1e-05", "norm_adds_one": "false"})
	}))
	return c.file(name)
}

// file describes a file of the generation for its manifest.
func (c *testCase) file(name string) genindex.ManifestFile {
	path := c.path(c.meta.Generation, name)
	st, err := os.Stat(path)
	c.ok(err)
	hash, err := blob.HashFile(context.Background(), path)
	c.ok(err)
	return genindex.ManifestFile{Name: name, Bytes: st.Size(), Hash: hash}
}

// pointing writes a generation without blobs: a new order of an older one.
func (c *testCase) pointing(gen, older uint32) {
	c.begin(gen)
	expect := c.index("index.ebi", blobs(), older, false)
	c.seal([]genindex.ManifestFile{c.head()}, []genindex.Need{{Generation: older, Path: fmt.Sprintf("../%06d", older), Hash: c.hash[older]}}, expect)
}

func (c *testCase) seal(files []genindex.ManifestFile, needs []genindex.Need, expect []want) {
	gen := c.meta.Generation
	var err error
	files = append(files, c.file("index.ebi"))
	var lost []genindex.Quantization
	for l, x := range c.losses {
		lost = append(lost, genindex.Quantization{Layer: c.meta.Layers[l], Rows: x.Rows, Mean: x.Mean(), Max: x.Max})
	}
	c.hash[gen], err = genindex.WriteManifest(c.fs, c.path(gen, ""), genindex.Manifest{
		Generation: gen, Name: "test", Kind: "states", Meta: c.meta, Samples: int64(len(expect)), Files: files, Needs: needs, Quantization: lost,
	})
	c.ok(err)
	c.expect(gen, expect)
}

// building writes a generation whose second blob is still to come.
func (c *testCase) building(gen uint32) {
	c.begin(gen)
	all := blobs()
	c.expect(gen, c.index("plan.ebi", all, 0, true))
	c.writeBlob(0, all[0])
	c.writeBlob(2, all[2])
}

func (c *testCase) expect(gen uint32, w []want) {
	data, err := json.Marshal(w)
	c.ok(err)
	c.ok(os.WriteFile(filepath.Join(filepath.Dir(c.dir), fmt.Sprintf("expected-%06d.json", gen)), data, 0o644))
}

// states returns the rows of s; tests/conftest.py computes the same.
func states(m blob.Meta, s sample) []byte {
	var b []byte
	dtype := m.GivenDType()
	for t := range s.rows {
		for _, k := range m.Layers {
			if dtype == "fp8" {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1.5))
			}
			for col := range m.Hidden {
				b = appendValue(b, dtype, hash(s.seed, uint32(t), uint32(k), uint32(col)), s.seed)
			}
		}
	}
	return b
}

// appendValue makes a value of random bits: an exponent near the middle, any
// mantissa; fp32 values of odd seeds have bf16's precision.
func appendValue(b []byte, dtype string, h, seed uint32) []byte {
	sign, mantissa := h&1, h>>1&0x7fffff
	near := h >> 24 & 7 & (h >> 28)
	switch dtype {
	case "bf16":
		return binary.LittleEndian.AppendUint16(b, uint16(sign<<15|(120+near)<<7|mantissa&0x7f))
	case "fp16":
		return binary.LittleEndian.AppendUint16(b, uint16(sign<<15|(10+near)<<10|mantissa&0x3ff))
	case "fp32":
		if seed%2 == 1 {
			mantissa &= 0x7f0000
		}
		return binary.LittleEndian.AppendUint32(b, sign<<31|(120+near)<<23|mantissa)
	}
	return append(b, byte(sign<<7|(4+near)<<3|mantissa&7))
}

func hash(seed, t, layer, col uint32) uint32 {
	h := seed*2654435761 + t*40503 + layer*9973*65537 + col*69069*257 + 12345
	h ^= h >> 15
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
