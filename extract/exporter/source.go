package exporter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"eaglebatch/extract/export"
	"eaglebatch/extract/export/trainer"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
	"eaglebatch/store/blob"
	"eaglebatch/store/codec"
	"eaglebatch/store/genindex"
	"eaglebatch/store/states"
)

// headName is where a generation keeps the target's final norm.
const headName = "target_head.safetensors"

// source is a split of a sealed generation. A lease on it and on all that its
// index points into keeps gc away.
type source struct {
	dir      string
	manifest genindex.Manifest
	hash     string
	gen      *states.Generation
	split    genindex.Split
	others   string
	target   *trainer.Target
	leases   []*genindex.Lease
}

var errSynthetic = errors.New("the states are made up (backend synthetic): --synthetic exports them all the same")

func openSource(o StatesOptions) (_ *source, err error) {
	s := &source{dir: o.Generation}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.manifest, s.hash, err = genindex.ReadManifest(s.dir); errors.Is(err, os.ErrNotExist) {
		return s, fmt.Errorf("%s: not sealed: there is no %s", s.dir, states.ManifestName)
	} else if err != nil {
		return s, err
	}
	dirs := []string{s.dir}
	for _, n := range s.manifest.Needs {
		dirs = append(dirs, filepath.Join(s.dir, n.Path))
	}
	for _, dir := range dirs {
		l, err := genindex.Hold(dir)
		if err != nil {
			return s, fmt.Errorf("%s: %w", dir, err)
		}
		s.leases = append(s.leases, l)
	}
	if s.gen, err = states.Open(s.dir, false); err != nil {
		return s, err
	}
	m := s.manifest.Meta
	if m.Synthetic && !o.Synthetic {
		return s, fmt.Errorf("%s: %w", s.dir, errSynthetic)
	}
	if s.split, s.others, err = splitNamed(s.gen.Index().Meta().Splits, cmp.Or(o.Split, "train")); err != nil {
		return s, fmt.Errorf("%s: %w", s.dir, err)
	}
	s.target = &trainer.Target{DType: m.DType, Hidden: m.Hidden, Layers: m.Layers, Prenorm: m.LastPreNorm}
	if m.DType == "fp8" {
		s.target.DType = "bf16" // no trainer reads rows with scales
	}
	s.target.Norm, err = finalNorm(filepath.Join(s.dir, headName), m.Hidden)
	return s, err
}

// Close gives everything back.
func (s *source) Close() error {
	var err error
	if s.gen != nil {
		err = s.gen.Close()
	}
	for _, l := range s.leases {
		err = errors.Join(err, l.Close())
	}
	return err
}

func (s *source) position(i int64) genindex.Position {
	return s.gen.Index().Position(s.split.First + i)
}

// stored is an open sample.
type stored struct {
	*trainer.Sample
	s     *states.Sample
	layer [][]uint32 // the rows that each layer holds; nil: all
	buf   []byte     // of fp8 rows
}

// Close lets go of its blob.
func (s *stored) Close() { s.s.Close() }

// open opens the i-th sample of the split.
func (s *source) open(ctx context.Context, i int64) (_ *stored, err error) {
	p, err := s.gen.At(s.split.First + i)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	out := &stored{s: p}
	n := 0
	for k := range s.target.Layers {
		rows, err := p.Reader.LayerRows(int(p.Position.Entry), k)
		if err != nil {
			return nil, err
		}
		out.layer = append(out.layer, rows)
		switch {
		case rows == nil:
			n = len(p.IDs)
		case len(rows) > 0:
			n = max(n, min(len(p.IDs), int(rows[len(rows)-1])+1))
		}
	}
	index, window := blob.SplitSample(p.Position.Sample)
	row := &export.Row{
		Position: s.split.First + i, Dataset: s.gen.Index().Meta().Datasets[p.Position.Dataset], Sample: index, Window: window,
		IDs: p.IDs[:n], Mask: p.Mask[:n], // rows after the last that any layer keeps serve nobody
	}
	out.Sample = &trainer.Sample{Row: row, Target: s.target, Rows: func(dst []byte, layer, first, n int) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		return out.rows(dst, layer, first, n)
	}}
	return out, nil
}

// rows reads tokens [first, first+n) of a layer; those that it does not hold
// are zero.
func (s *stored) rows(dst []byte, layer, first, n int) error {
	held := s.layer[layer]
	if held == nil {
		return s.read(dst, layer, first, n)
	}
	clear(dst)
	lo := sort.Search(len(held), func(i int) bool { return int(held[i]) >= first })
	hi := sort.Search(len(held), func(i int) bool { return int(held[i]) >= first+n })
	if lo == hi {
		return nil
	}
	rb := len(dst) / n
	got := make([]byte, (hi-lo)*rb)
	if err := s.read(got, layer, lo, hi-lo); err != nil {
		return err
	}
	for k := lo; k < hi; k++ {
		copy(dst[(int(held[k])-first)*rb:], got[(k-lo)*rb:(k-lo+1)*rb])
	}
	return nil
}

// read reads rows as they are stored, fp8 ones as the values that they stand for.
func (s *stored) read(dst []byte, layer, first, n int) error {
	m := s.s.Reader.Meta()
	if m.DType != "fp8" {
		return s.s.Layer(dst, layer, first, n)
	}
	if need := n * m.RowBytes(); cap(s.buf) < need {
		s.buf = make([]byte, need)
	}
	raw := s.buf[:n*m.RowBytes()]
	if err := s.s.Layer(raw, layer, first, n); err != nil {
		return err
	}
	_, err := codec.DequantizeRows(dst[:0], raw, s.Target.DType, m.Hidden)
	return err
}

// finalNorm reads the norm that a generation keeps; nil where it keeps none or
// one that is no plain RMS norm.
func finalNorm(path string, hidden int) (_ *trainer.RMSNorm, err error) {
	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	t, ok := f.Tensor("model.norm.weight")
	if !ok || f.Metadata["norm_adds_one"] == "true" {
		return nil, nil
	}
	eps, err := strconv.ParseFloat(f.Metadata["rms_norm_eps"], 64)
	if err != nil {
		return nil, fmt.Errorf("%s: rms_norm_eps: %w", path, err)
	}
	if len(t.Shape) != 1 || t.Shape[0] != hidden {
		return nil, fmt.Errorf("%s: the final norm has shape %v, states have %d values", path, t.Shape, hidden)
	}
	w, err := values(t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &trainer.RMSNorm{Weight: w, Eps: eps}, nil
}

func values(t tensor.Tensor) ([]float32, error) {
	if !t.Type.Plain() {
		return nil, fmt.Errorf("the final norm is of type %s", strings.ToLower(string(t.Type)))
	}
	t.Shape = []int{1, t.Shape[0]}
	m, err := t.Matrix()
	if err != nil {
		return nil, err
	}
	out := make([]float32, m.Cols)
	m.Row(0, out)
	return out, nil
}
