package model

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/extract/model/tensor"
)

// Decoder is a model with everything that a forward pass needs, mapped. The
// small vectors are decoded.
type Decoder struct {
	Spec
	Embed  tensor.Matrix // [Vocab, Hidden]
	Blocks []Block
	w      weights
}

// Block is one decoder layer. Matrices are [out, in], as in nn.Linear; biases
// are nil where the model has none.
type Block struct {
	AttnNorm, MLPNorm       []float32 // [Hidden]
	QNorm, KNorm            []float32 // [HeadDim], or nil
	Q, K, V, O              tensor.Matrix
	QBias, KBias, VBias     []float32
	OBias                   []float32
	Gate, Up, Down          tensor.Matrix
	GateBias, UpBias, DBias []float32
}

// OpenDecoder maps the model at path. It fails with ErrUnsupported on what it
// does not know and with ErrNoWeights where there is nothing to map.
func OpenDecoder(path string) (*Decoder, error) {
	spec, err := ReadSpec(path)
	if err != nil {
		return nil, err
	}
	w, err := openWeights(path)
	if err != nil {
		return nil, err
	}
	d := &Decoder{Spec: spec, w: w}
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), w.Close())
	}
	return d, nil
}

// Bytes is the size of the mapped matrices.
func (d *Decoder) Bytes() int64 {
	n := int64(len(d.Embed.Data))
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, m := range []*tensor.Matrix{&b.Q, &b.K, &b.V, &b.O, &b.Gate, &b.Up, &b.Down} {
			n += int64(len(m.Data))
		}
	}
	return n
}

// Close unmaps the weights.
func (d *Decoder) Close() error { return d.w.Close() }

func (d *Decoder) load() error {
	l := loader{w: d.w}
	d.Embed = l.matrix("model.embed_tokens.weight", d.Vocab, d.Hidden)
	d.Blocks = make([]Block, d.Layers)
	for i := range d.Blocks {
		d.loadBlock(&l, &d.Blocks[i], fmt.Sprintf("model.layers.%d.", i))
	}
	if l.err != nil {
		return l.err
	}
	return d.checkNames()
}

// checkNames refuses a tensor of a layer that no layer here has, such as an
// adapter's or another norm: it would be left out in silence. Those of layers
// beyond the configuration's number are left out by other engines too.
func (d *Decoder) checkNames() error {
	known := []string{"self_attn.rotary_emb.inv_freq"} // frequencies that old files hold and everyone computes
	for _, part := range []string{
		"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "self_attn.q_proj",
		"self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
	} {
		known = append(known, part+".weight", part+".bias")
	}
	for _, name := range d.w.names() {
		rest, ok := strings.CutPrefix(name, "model.layers.")
		layer, part, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(layer); ok && err == nil && n < d.Layers && !slices.Contains(known, part) {
			return fmt.Errorf("tensor %q: %w (no layer of a %s model has it)", name, ErrUnsupported, d.ModelType)
		}
	}
	return nil
}

func (d *Decoder) loadBlock(l *loader, b *Block, at string) {
	q, kv := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	b.AttnNorm = l.vector(true, at+"input_layernorm.weight", d.Hidden)
	b.MLPNorm = l.vector(true, at+"post_attention_layernorm.weight", d.Hidden)
	b.QNorm = l.vector(d.QKNorm, at+"self_attn.q_norm.weight", d.HeadDim)
	b.KNorm = l.vector(d.QKNorm, at+"self_attn.k_norm.weight", d.HeadDim)
	b.Q = l.matrix(at+"self_attn.q_proj.weight", q, d.Hidden)
	b.K = l.matrix(at+"self_attn.k_proj.weight", kv, d.Hidden)
	b.V = l.matrix(at+"self_attn.v_proj.weight", kv, d.Hidden)
	b.O = l.matrix(at+"self_attn.o_proj.weight", d.Hidden, q)
	b.QBias = l.vector(d.QKVBias, at+"self_attn.q_proj.bias", q)
	b.KBias = l.vector(d.QKVBias, at+"self_attn.k_proj.bias", kv)
	b.VBias = l.vector(d.QKVBias, at+"self_attn.v_proj.bias", kv)
	b.OBias = l.vector(d.OBias, at+"self_attn.o_proj.bias", d.Hidden)
	b.Gate = l.matrix(at+"mlp.gate_proj.weight", d.FFN, d.Hidden)
	b.Up = l.matrix(at+"mlp.up_proj.weight", d.FFN, d.Hidden)
	b.Down = l.matrix(at+"mlp.down_proj.weight", d.Hidden, d.FFN)
	b.GateBias = l.vector(d.MLPBias, at+"mlp.gate_proj.bias", d.FFN)
	b.UpBias = l.vector(d.MLPBias, at+"mlp.up_proj.bias", d.FFN)
	b.DBias = l.vector(d.MLPBias, at+"mlp.down_proj.bias", d.Hidden)
	if d.Interleaved {
		b.QBias = deinterleave(b.QBias, d.HeadDim)
		b.KBias = deinterleave(b.KBias, d.HeadDim)
	}
}

// SourceRow is the stored row of a q or k matrix that is row i of the matrix
// as transformers has it.
func (d *Decoder) SourceRow(i int) int {
	if !d.Interleaved {
		return i
	}
	head, r := i/d.HeadDim, i%d.HeadDim
	return head*d.HeadDim + r%(d.HeadDim/2)*2 + r/(d.HeadDim/2)
}

func deinterleave(b []float32, dim int) []float32 {
	if b == nil {
		return nil
	}
	d := Decoder{Spec: Spec{HeadDim: dim, Interleaved: true}}
	out := make([]float32, len(b))
	for i := range out {
		out[i] = b[d.SourceRow(i)]
	}
	return out
}

// loader collects the first error, so that load reads as a list.
type loader struct {
	w   weights
	err error
}

func (l *loader) matrix(name string, rows, cols int) tensor.Matrix {
	if l.err != nil {
		return tensor.Matrix{}
	}
	t, ok, err := l.w.tensor(name)
	if err != nil {
		l.err = err
		return tensor.Matrix{}
	}
	if !ok {
		l.err = fmt.Errorf("tensor %q is missing", l.label(name))
		return tensor.Matrix{}
	}
	m, err := t.Matrix()
	if err != nil {
		l.err = fmt.Errorf("%w: %w", err, ErrUnsupported)
		return m
	}
	if want := shape(rows, cols); !slices.Equal(t.Shape, want) {
		l.err = fmt.Errorf("tensor %q has shape %v, the configuration says %v", t.Name, t.Shape, want)
	}
	return m
}

// label is the name of a tensor in the files.
func (l *loader) label(name string) string {
	if _, ok := l.w.(ggufWeights); ok {
		return ggufName(name)
	}
	return name
}

// shape is that of a matrix or, with rows 0, of a vector.
func shape(rows, cols int) []int {
	if rows == 0 {
		return []int{cols}
	}
	return []int{rows, cols}
}

// vector reads a vector if it is wanted. One that is not wanted must not be
// there: it would be left out of the sum in silence.
func (l *loader) vector(want bool, name string, n int) []float32 {
	if l.err != nil {
		return nil
	}
	if !want {
		_, ok, err := l.w.tensor(name)
		if l.err = err; ok && err == nil {
			l.err = fmt.Errorf("tensor %q is there, though the configuration has no such option", l.label(name))
		}
		return nil
	}
	m := l.matrix(name, 0, n)
	if l.err != nil {
		return nil
	}
	v := make([]float32, n)
	m.Row(0, v)
	return v
}
