package model

import (
	"context"
	"fmt"
	"math"

	"eaglebatch/extract/model/tensor"
)

// Score is how well one last-layer state predicts the next token.
type Score struct {
	Top1       bool    // lm_head(norm(x)) ranks it first
	LogProb    float64 // of lm_head(norm(x))
	RawTop1    bool    // the same without the norm: better than with it means post-norm states
	RawLogProb float64
}

// Score scores rows of last-layer states ([len(next), Hidden], dtype) against
// the tokens that follow them. It reads lm_head once, whatever the number of
// rows.
func (h *Head) Score(ctx context.Context, rows []byte, dtype string, next []uint32) ([]Score, error) {
	x, err := h.states(rows, dtype, len(next))
	if err != nil {
		return nil, err
	}
	for i, id := range next {
		if int64(id) >= int64(h.lmHead.Rows) {
			return nil, fmt.Errorf("token %d after row %d lies outside the vocabulary of %d", id, i, h.lmHead.Rows)
		}
	}
	tally := make([]softmaxTally, len(x))
	w := make([]float32, h.hidden)
	for v := range h.lmHead.Rows {
		if v%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h.lmHead.Row(v, w)
		for i := range x {
			tally[i].add(dot(w, x[i]), v == int(next[i/2]))
		}
	}
	out := make([]Score, len(next))
	for i := range out {
		n, r := tally[2*i], tally[2*i+1]
		out[i] = Score{Top1: n.first(), LogProb: n.logProb(), RawTop1: r.first(), RawLogProb: r.logProb()}
	}
	return out, nil
}

// states decodes the rows: x[2i] is row i after the norm, x[2i+1] as it is.
func (h *Head) states(rows []byte, dtype string, n int) ([][]float32, error) {
	var t tensor.Type
	switch dtype {
	case "bf16":
		t = tensor.BF16
	case "fp16":
		t = tensor.F16
	case "fp32":
		t = tensor.F32
	default:
		return nil, fmt.Errorf("states of type %q cannot be scored (bf16, fp16 and fp32 can)", dtype)
	}
	_, size := t.Block()
	if len(rows) != n*h.hidden*size {
		return nil, fmt.Errorf("%d rows of %d %s values take %d bytes, got %d", n, h.hidden, dtype, n*h.hidden*size, len(rows))
	}
	x := make([][]float32, 2*n)
	for i := range n {
		raw, normed := make([]float32, h.hidden), make([]float32, h.hidden)
		tensor.Decode(t, rows[i*h.hidden*size:], raw)
		var ss float64
		for _, v := range raw {
			ss += float64(v) * float64(v)
		}
		inv := 1 / math.Sqrt(ss/float64(h.hidden)+h.eps)
		for j, v := range raw {
			normed[j] = float32(float64(v)*inv) * h.scale[j]
		}
		x[2*i], x[2*i+1] = normed, raw
	}
	return x, nil
}

// softmaxTally sums exp over logits as they come, and keeps the one that counts.
type softmaxTally struct {
	max, sum float64
	best     float64 // of the others
	target   float64
	any      bool
}

func (t *softmaxTally) add(logit float64, target bool) {
	if target {
		t.target = logit
	} else if !t.any || logit > t.best {
		t.best, t.any = logit, true
	}
	switch {
	case t.sum == 0:
		t.max, t.sum = logit, 1
	case logit > t.max:
		t.sum = t.sum*math.Exp(t.max-logit) + 1
		t.max = logit
	default:
		t.sum += math.Exp(logit - t.max)
	}
}

func (t *softmaxTally) first() bool      { return !t.any || t.target > t.best }
func (t *softmaxTally) logProb() float64 { return t.target - t.max - math.Log(t.sum) }

func dot(a, b []float32) float64 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	for len(a) >= 4 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		s0 += v * b[i]
	}
	return float64(s0) + float64(s1) + float64(s2) + float64(s3)
}
