package model

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"eaglebatch/extract/model/gguf"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
)

// Head is a model's final norm and lm_head (and embeddings), mapped.
type Head struct {
	w      weights
	hidden int
	tied   bool
	eps    float64
	one    bool // the norm multiplies by 1+weight
	embed  tensor.Tensor
	norm   tensor.Tensor
	lm     tensor.Tensor
	scale  []float32 // of the norm, decoded
	lmHead tensor.Matrix
}

// OpenHead opens the head of the model at path; ErrNoWeights where it has none.
func OpenHead(path string) (*Head, error) {
	c, err := ReadConfig(path)
	if err != nil {
		return nil, err
	}
	w, err := openWeights(path)
	if err != nil {
		return nil, err // before what only weights need: sizes alone are a model too
	}
	opts, err := readHeadOptions(path)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	h := &Head{w: w, hidden: c.Hidden, eps: opts.eps, one: opts.one}
	if err := h.load(c, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), w.Close())
	}
	return h, nil
}

type headOptions struct {
	eps  float64
	one  bool  // the norm multiplies by 1+weight
	tied *bool // nil: the config does not say
}

func readHeadOptions(path string) (headOptions, error) {
	var o headOptions
	if isGGUF(path) {
		f, err := gguf.Open(path)
		if err != nil {
			return o, err
		}
		arch := f.KV["general.architecture"].Str
		o.eps = f.KV[arch+".attention.layer_norm_rms_epsilon"].Float
		err = f.Close()
		if o.eps <= 0 {
			err = errors.Join(err, fmt.Errorf("%s: %s.attention.layer_norm_rms_epsilon is missing: only models with a final RMS norm can be scored: %w", path, arch, ErrUnsupported))
		}
		return o, err
	}
	j, err := readJSONConfig(path)
	if err != nil {
		return o, err
	}
	var kind string
	err = errors.Join(
		j.read(j.text, "rms_norm_eps", &o.eps),
		j.read(j.text, "model_type", &kind),
		j.read(j.top, "tie_word_embeddings", &o.tied),
	)
	if err == nil && o.tied == nil {
		err = j.read(j.text, "tie_word_embeddings", &o.tied)
	}
	if _, given := j.text["rms_norm_eps"]; err == nil && !given {
		o.eps = defaultEps(kind)
	}
	if err == nil && o.eps <= 0 {
		err = fmt.Errorf("%s: %s is missing or not positive, and without it only models whose type is known to have a final RMS norm can be scored, which %q is not: write the norm's epsilon there: %w", j.path, j.name("rms_norm_eps"), kind, ErrUnsupported)
	}
	// Gemma stores the norm's weight less one.
	o.one = strings.HasPrefix(kind, "gemma")
	return o, err
}

// defaultEps is the epsilon of the final RMS norm that transformers takes for a
// model type where the configuration gives none; 0: not known here.
func defaultEps(modelType string) float64 {
	switch modelType {
	case "llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3_text":
		return 1e-6
	case "mixtral", "phi3", "llama4_text", "gpt_oss", "glm4_moe", "olmo2":
		return 1e-5
	}
	return 0
}

// prefixes are what stands before "embed_tokens.weight", and before "lm_head"
// in the same model, in the layouts that HF directories have.
func prefixes() [][2]string {
	return [][2]string{
		{"model.", ""},
		{"language_model.model.", "language_model."}, // Kimi-K2.5 and older multimodal models
		{"model.language_model.", ""},
		{"model.language_model.", "model.language_model."},
	}
}

func (h *Head) load(c Config, o headOptions) error {
	var lmName string
	for _, p := range prefixes() {
		embed, ok, err := h.w.tensor(p[0] + "embed_tokens.weight")
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		h.embed, lmName = embed, p[1]+"lm_head.weight"
		if h.norm, ok, err = h.w.tensor(p[0] + "norm.weight"); err != nil || !ok {
			return errors.Join(fmt.Errorf("tensor %q is missing", p[0]+"norm.weight"), err)
		}
		// A tied model has no lm_head under any prefix.
		lm, ok, err := h.w.tensor(lmName)
		if err != nil {
			return err
		}
		if ok {
			h.lm = lm
			break
		}
	}
	if h.embed.Data == nil {
		return fmt.Errorf("tensor %q is missing, under this and every known prefix", "model.embed_tokens.weight")
	}
	if h.lm.Data == nil {
		if o.tied != nil && !*o.tied {
			return fmt.Errorf("tensor %q is missing, and the configuration does not tie it to the embeddings", lmName)
		}
		h.lm, h.tied = h.embed, true
	}
	return h.check(c, o)
}

func (h *Head) check(c Config, o headOptions) error {
	for _, t := range []tensor.Tensor{h.embed, h.lm} {
		if len(t.Shape) != 2 || t.Shape[0] < c.Vocab || t.Shape[1] != c.Hidden {
			return fmt.Errorf("tensor %q has shape %v, expected [%d, %d]", t.Name, t.Shape, c.Vocab, c.Hidden)
		}
	}
	norm, err := h.norm.Matrix()
	if err != nil {
		return err
	}
	if norm.Rows != 1 || norm.Cols != c.Hidden {
		return fmt.Errorf("tensor %q has shape %v, expected [%d]", h.norm.Name, h.norm.Shape, c.Hidden)
	}
	h.scale = make([]float32, c.Hidden)
	norm.Row(0, h.scale)
	if o.one {
		for i := range h.scale {
			h.scale[i]++
		}
	}
	h.lmHead, err = h.lm.Matrix()
	return err
}

// Vocab is the number of rows of lm_head.
func (h *Head) Vocab() int { return h.lmHead.Rows }

// Hidden is the width of a state.
func (h *Head) Hidden() int { return h.hidden }

// Size is about how long WriteSafetensors's file is.
func (h *Head) Size() (n int64) {
	for i, t := range []tensor.Tensor{h.embed, h.norm, h.lm} {
		switch {
		case i == 2 && h.tied:
		case t.Type.Plain():
			n += int64(len(t.Data))
		default:
			values := int64(4)
			for _, d := range t.Shape {
				values *= int64(d)
			}
			n += values
		}
	}
	return n
}

// Close unmaps the weights.
func (h *Head) Close() error { return h.w.Close() }

// WriteSafetensors writes embeddings, final norm and lm_head as a safetensors
// file (target_head.safetensors): what trainers need of the target model. The
// names are model.embed_tokens.weight, model.norm.weight and lm_head.weight,
// whatever the model calls them; the types are the model's, F32 for quantised
// ones. A tied lm_head is left out, and the metadata says so; it also says how the
// norm is computed.
func (h *Head) WriteSafetensors(w io.Writer) error {
	embed, norm, lm := h.embed, h.norm, h.lm
	embed.Name, norm.Name, lm.Name = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
	out := []tensor.Tensor{embed, norm}
	if !h.tied {
		out = append(out, lm)
	}
	for i, t := range out {
		var err error
		if out[i], err = plain(t); err != nil {
			return err
		}
	}
	return safetensors.Write(w, out, map[string]string{
		"format":              "pt",
		"tie_word_embeddings": fmt.Sprint(h.tied),
		"rms_norm_eps":        fmt.Sprint(h.eps),
		"norm_adds_one":       fmt.Sprint(h.one),
	})
}

// plain returns t with its values stored one by one.
func plain(t tensor.Tensor) (tensor.Tensor, error) {
	if t.Type.Plain() {
		return t, nil
	}
	m, err := t.Matrix()
	if err != nil {
		return t, err
	}
	t.Type, t.Data = tensor.F32, make([]byte, 0, 4*m.Rows*m.Cols)
	row := make([]float32, m.Cols)
	for i := range m.Rows {
		m.Row(i, row)
		t.Data = appendF32(t.Data, row)
	}
	return t, nil
}

func appendF32(b []byte, x []float32) []byte {
	for _, v := range x {
		u := math.Float32bits(v)
		b = append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
	}
	return b
}
