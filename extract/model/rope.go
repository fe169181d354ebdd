package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Rope is a model's rotary position embedding.
type Rope struct {
	Type      string // default, linear, dynamic, yarn, llama3
	Theta     float64
	Factor    float64
	Attention float64 // multiplies cos and sin; 0: 1
	LowFreq   float64 // llama3
	HighFreq  float64
	BetaFast  float64 // yarn
	BetaSlow  float64
	Truncate  bool // yarn: round the ramp's ends
	Original  int  // positions before scaling
	MaxPos    int
	// Divisors divide the frequencies one by one (rope_freqs of a GGUF); nil: none.
	Divisors []float32
}

// DependsOnLength reports whether the frequencies of a sample of n tokens
// depend on n: rows of its prefix then differ from rows of the prefix alone.
func (r Rope) DependsOnLength(n int) bool { return r.Type == "dynamic" && n > r.MaxPos }

// Frequencies returns the dim/2 angles a position, for a sample of n tokens,
// and the factor of cos and sin. They are rounded to float32 where transformers
// rounds them.
func (r Rope) Frequencies(dim, n int) ([]float32, float32) {
	theta := r.Theta
	if r.DependsOnLength(n) {
		// In float32 throughout: the last bits of theta turn the last of many
		// positions visibly.
		scale := float32(float32(r.Factor)*float32(n))/float32(r.MaxPos) - float32(r.Factor-1)
		theta = float64(float32(theta) * float32(math.Pow(float64(scale), float64(dim)/float64(dim-2))))
	}
	f := make([]float32, dim/2)
	for i := range f {
		f[i] = 1 / periodOf(theta, i, dim)
	}
	switch r.Type {
	case "linear":
		for i := range f {
			f[i] /= float32(r.Factor)
		}
	case "llama3":
		r.llama3(f)
	case "yarn":
		r.yarn(f, dim)
	}
	for i, d := range r.Divisors {
		f[i] /= d
	}
	if r.Attention == 0 {
		return f, 1
	}
	return f, float32(r.Attention)
}

// The scalings below round to float32 where transformers does, operation by
// operation: at position 30000 the last bit of a frequency is seen in a state.

func (r Rope) llama3(f []float32) {
	original, factor, low, high := float32(r.Original), float32(r.Factor), float32(r.LowFreq), float32(r.HighFreq)
	for i, v := range f {
		wavelength := float32(2*math.Pi) / v
		switch {
		case wavelength < float32(float64(r.Original)/r.HighFreq):
		case wavelength > float32(float64(r.Original)/r.LowFreq):
			f[i] = v / factor
		default:
			smooth := (float32(original/wavelength) - low) / float32(high-low)
			f[i] = float32(float32((1-smooth)*v)/factor) + float32(smooth*v)
		}
	}
}

func (r Rope) yarn(f []float32, dim int) {
	correction := func(rotations float64) float64 {
		return float64(dim) * math.Log(float64(r.Original)/(rotations*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := correction(r.BetaFast), correction(r.BetaSlow)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i := range f {
		period := periodOf(r.Theta, i, dim)
		ramp := min(1, max(0, (float32(i)-float32(low))/float32(high-low)))
		keep := 1 - ramp
		f[i] = float32(1/float32(float32(r.Factor)*period)*(1-keep)) + float32(1/period*keep)
	}
}

// periodOf is the inverse of frequency i.
func periodOf(theta float64, i, dim int) float32 {
	return float32(math.Pow(theta, float64(float32(2*i)/float32(dim))))
}

// hfRope is rope_scaling, or rope_parameters of transformers 5.
type hfRope struct {
	RopeType  string   `json:"rope_type"`
	Type      string   `json:"type"`
	Theta     float64  `json:"rope_theta"`
	Partial   *float64 `json:"partial_rotary_factor"`
	Factor    float64  `json:"factor"`
	Attention *float64 `json:"attention_factor"`
	LowFreq   float64  `json:"low_freq_factor"`
	HighFreq  float64  `json:"high_freq_factor"`
	BetaFast  float64  `json:"beta_fast"`
	BetaSlow  float64  `json:"beta_slow"`
	MScale    float64  `json:"mscale"`
	MScaleAll float64  `json:"mscale_all_dim"`
	Truncate  *bool    `json:"truncate"`
	Original  int      `json:"original_max_position_embeddings"`
}

func ropeKeys() []string {
	return []string{
		"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "attention_factor", "low_freq_factor",
		"high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "original_max_position_embeddings",
	}
}

// rope reads the rotation from the keys of both generations of transformers.
func (j jsonConfig) rope(s Spec) (Rope, error) {
	var h hfRope
	var theta, partial float64
	var original int
	err := errors.Join(
		j.read(j.text, "rope_theta", &theta),
		j.read(j.text, "partial_rotary_factor", &partial),
		j.read(j.text, "original_max_position_embeddings", &original),
	)
	var given map[string]json.RawMessage
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var raw map[string]json.RawMessage
		err = errors.Join(err, j.read(j.text, key, &raw))
		if len(raw) > 0 && len(given) > 0 && !maps.EqualFunc(raw, given, sameJSON) {
			return Rope{}, errors.New("rope_scaling and rope_parameters differ, and engines read only one of them: remove the one that is not meant")
		}
		given = raw
		for _, k := range sortedKeys(raw) {
			if !slices.Contains(ropeKeys(), k) {
				return Rope{}, fmt.Errorf("%s: option %q: %w", key, k, ErrUnsupported)
			}
		}
		err = errors.Join(err, j.read(j.text, key, &h))
	}
	if err != nil {
		return Rope{}, err
	}
	if h.Theta == 0 {
		h.Theta = theta
	}
	if h.Theta == 0 {
		h.Theta = 10000
	}
	if h.Partial != nil && *h.Partial != 1 || partial != 0 && partial != 1 {
		return Rope{}, fmt.Errorf("partial_rotary_factor: %w", ErrUnsupported)
	}
	if original > 0 {
		h.Original = original
	}
	if h.Original == 0 {
		h.Original = s.MaxPos
	}
	return h.resolve(s)
}

func sameJSON(a, b json.RawMessage) bool { return string(a) == string(b) }

func (h hfRope) resolve(s Spec) (Rope, error) {
	r := Rope{Type: h.RopeType, Theta: h.Theta, Factor: h.Factor, Original: h.Original, MaxPos: s.MaxPos, Truncate: true}
	if r.Type == "" {
		r.Type = h.Type
	}
	if !(r.Theta > 1) {
		return r, fmt.Errorf("rope_theta %g is not above 1", r.Theta)
	}
	if h.Attention != nil && !(*h.Attention > 0) {
		return r, fmt.Errorf("rope_scaling: attention_factor %g is not positive", *h.Attention)
	}
	switch r.Type {
	case "", "default":
		r.Type = "default"
		return r, nil
	case "linear", "dynamic":
	case "llama3":
		r.LowFreq, r.HighFreq = h.LowFreq, h.HighFreq
		if !(r.LowFreq > 0 && r.HighFreq > r.LowFreq) {
			return r, fmt.Errorf("rope_scaling: low_freq_factor %g and high_freq_factor %g are no range", r.LowFreq, r.HighFreq)
		}
	case "yarn":
		h.resolveYarn(&r)
	default:
		return r, fmt.Errorf("rope_scaling: rope_type %q: %w (default, linear, dynamic, yarn and llama3 are)", r.Type, ErrUnsupported)
	}
	if !(r.Factor >= 1) || r.Original <= 0 || r.MaxPos <= 0 {
		return r, fmt.Errorf("rope_scaling: rope_type %q needs a factor of 1 or more (is %g), max_position_embeddings (is %d) and the original ones (are %d)", r.Type, r.Factor, r.MaxPos, r.Original)
	}
	return r, nil
}

func (h hfRope) resolveYarn(r *Rope) {
	mscale := func(m float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(r.Factor) + 1
	}
	if r.Factor == 0 && r.Original > 0 {
		r.Factor = float64(r.MaxPos) / float64(r.Original)
	}
	switch {
	case h.Attention != nil:
		r.Attention = *h.Attention
	case h.MScale != 0 && h.MScaleAll != 0:
		r.Attention = mscale(h.MScale) / mscale(h.MScaleAll)
	default:
		r.Attention = mscale(1)
	}
	r.BetaFast, r.BetaSlow = h.BetaFast, h.BetaSlow
	if r.BetaFast == 0 {
		r.BetaFast = 32
	}
	if r.BetaSlow == 0 {
		r.BetaSlow = 1
	}
	if h.Truncate != nil {
		r.Truncate = *h.Truncate
	}
}
