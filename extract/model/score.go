package model

import (
	"context"
	"fmt"
	"math"

	"eaglebatch/extract/model/kernel"
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
	tally := make([]softmaxTally, 2*len(next))
	if err := h.logits(ctx, x, 2*len(next), func(v, i int, logit float32) {
		tally[i].add(float64(logit), v == int(next[i/2]))
	}); err != nil {
		return nil, err
	}
	out := make([]Score, len(next))
	for i := range out {
		n, r := tally[2*i], tally[2*i+1]
		out[i] = Score{Top1: n.first(), LogProb: n.logProb(), RawTop1: r.first(), RawLogProb: r.logProb()}
	}
	return out, nil
}

// logits calls fn with lm_head's row v times row i of x, for all v and the
// first n rows. x has rows of h.stride() values, padded with zeros.
func (h *Head) logits(ctx context.Context, x []float32, n int, fn func(v, i int, logit float32)) error {
	set, k := kernel.Best(), h.stride()
	buf := make([]float32, kernel.Panel*k)
	w, c := make([]float32, kernel.Panel*k), make([]float32, len(x)/k*kernel.Panel)
	for v := 0; v < h.lmHead.Rows; v += kernel.Panel {
		if v%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var rows [kernel.Panel][]float32
		count := min(kernel.Panel, h.lmHead.Rows-v)
		for j := range count {
			rows[j] = buf[j*k:][:k]
			if h.lmHead.Type == tensor.BF16 {
				set.FromBF16(rows[j][:h.hidden], h.lmHead.Raw(v+j))
			} else {
				h.lmHead.Row(v+j, rows[j])
			}
		}
		set.PackPanel(w, &rows, 0, kernel.Panel, k)
		set.Gemm(c, kernel.Panel, x, k, w, len(x)/k, kernel.Panel, k, false)
		for i := range n {
			for j, logit := range c[i*kernel.Panel:][:count] {
				fn(v+j, i, logit)
			}
		}
	}
	return nil
}

func (h *Head) stride() int { return kernel.Up(h.hidden, kernel.Lanes) }

// states decodes the rows: 2i of the result is row i after the norm, 2i+1 as
// it is, padded as the kernels want them.
func (h *Head) states(rows []byte, dtype string, n int) ([]float32, error) {
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
	k := h.stride()
	x := make([]float32, kernel.Up(2*n, kernel.RowTile)*k)
	for i := range n {
		normed, raw := x[2*i*k:][:h.hidden], x[(2*i+1)*k:][:h.hidden]
		tensor.Decode(t, rows[i*h.hidden*size:], raw)
		var ss float64
		for _, v := range raw {
			ss += float64(v) * float64(v)
		}
		inv := 1 / math.Sqrt(ss/float64(h.hidden)+h.eps)
		for j, v := range raw {
			normed[j] = float32(float64(v)*inv) * h.scale[j]
		}
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
