package native

import (
	"math"

	"eaglebatch/extract/model/kernel"
)

// packKeys packs the batch's keys and values for the products of attention:
// for each head and sample, keys as columns, 32 a panel, and, for each block
// of keyBlock keys, values as columns over the block's keys.
func (e *engine) packKeys(b *batch) {
	type unit struct{ s, block int }
	var units []unit
	for i := range b.seqs {
		for k := 0; k < len(b.seqs[i].Tokens); k += keyBlock {
			units = append(units, unit{i, k})
		}
	}
	parallel(e.threads, len(units)*e.kvHeads, func(w, i int) {
		u := units[i/e.kvHeads]
		e.packBlock(&e.workers[w], b, &b.seqs[u.s], i%e.kvHeads, u.block)
	})
}

// keyOffset places a block of keys, or of values, from key k of a sample in
// the packed buffers of head g.
func (e *engine) keyOffset(b *batch, s *seq, g, k int) int { return (g*b.keys + s.keys + k) * e.headP }

// blockKeys is the padded number of keys of the block at k of a sample.
func blockKeys(s *seq, k int) int {
	return min(keyBlock, kernel.Up(len(s.Tokens)-k, kernel.Panel))
}

func (e *engine) packBlock(w *worker, b *batch, s *seq, g, k int) {
	n, have := blockKeys(s, k), len(s.Tokens)-k
	keys := e.keys.at(e.keyOffset(b, s, g, k), n, e.headP)
	for p := 0; p < n; p += kernel.Panel {
		var rows [kernel.Panel][]float32
		for j := range rows {
			if p+j < have {
				rows[j] = w.rows[j*e.maxK:][:e.headP]
				clear(rows[j][copy(rows[j], e.kv[(s.first+k+p+j)*2*e.kvW+g*e.headDim:][:e.headDim]):])
			}
		}
		e.panel(keys.at(p*e.headP, kernel.Panel, e.headP), &rows, 0)
	}
	values := e.values.at(e.keyOffset(b, s, g, k), e.headP, n)
	x := e.kv[(s.first+k)*2*e.kvW+e.kvW+g*e.headDim:]
	have = min(have, n)
	for c := 0; c < e.headP; c += kernel.Panel {
		if c+kernel.Panel <= e.headDim {
			e.keyRows(values, x[c:], 2*e.kvW, have, c, e.zero)
			continue
		}
		// A last panel that the head does not fill.
		clear(w.score[:have*kernel.Panel])
		for i := range have {
			copy(w.score[i*kernel.Panel:], x[i*2*e.kvW+c:][:e.headDim-c])
		}
		e.keyRows(values, w.score, kernel.Panel, have, c, e.zero)
	}
}

// attend computes attention of the whole batch, in place of the queries.
func (e *engine) attend(b *batch, window int) {
	type unit struct{ s, block int }
	var units []unit
	for i := range b.seqs {
		for q := 0; q < len(b.seqs[i].Tokens); q += queryBlock {
			units = append(units, unit{i, q})
		}
	}
	parallel(e.threads, len(units)*e.heads, func(w, i int) {
		u := units[len(units)-1-i/e.heads] // the long ones of a sample first
		e.attendBlock(&e.workers[w], b, &b.seqs[u.s], i%e.heads, u.block, window)
	})
}

// attendBlock computes one head of the queries from q on.
func (e *engine) attendBlock(w *worker, b *batch, s *seq, h, q, window int) {
	g := h / (e.heads / e.kvHeads)
	n := min(queryBlock, len(s.Tokens)-q)
	for i := range n {
		copy(w.qt[i*e.headS:][:e.headDim], e.q[(s.first+q+i)*e.qS+h*e.headDim:])
		w.state[i] = kernel.SoftmaxState{Max: kernel.NoMax}
	}
	clear(w.acc)
	start := 0
	if window > 0 {
		start = max(0, q-window+1) / keyBlock * keyBlock
	}
	qt := e.left(w.qt, e.headS, n, e.headP, w.operand)
	for k := start; k < q+n; k += keyBlock {
		m := min(blockKeys(s, k), kernel.Up(q+n-k, kernel.Panel))
		e.mul(w.score, scoreS, qt, e.keys.at(e.keyOffset(b, s, g, k), m, e.headP), false)
		e.softmaxRows(w, m, q-k, n, window)
		values := e.values.at(e.keyOffset(b, s, g, k), e.headP, blockKeys(s, k))
		p := e.left(w.score, scoreS, n, m, w.scores)
		for c := 0; c < e.headP; c += kernel.Panel {
			e.mul(w.acc[c:], e.headP, p, values.at(c*values.k, kernel.Panel, m), true)
		}
	}
	for i := range n {
		row := w.acc[i*e.headP:][:e.headDim]
		e.set.Scale(row, 1/w.state[i].Sum)
		copy(e.q[(s.first+q+i)*e.qS+h*e.headDim:], row)
	}
}

// softmaxRows turns n rows of scores of m keys into weights. Row i belongs to
// the query at position at+i counted from the first key.
func (e *engine) softmaxRows(w *worker, m, at, n, window int) {
	scale := float32(1 / math.Sqrt(float64(e.headDim)))
	for i := range n {
		row := w.score[i*scoreS:][:m]
		hi := min(max(0, at+i+1), m)
		lo := 0
		if window > 0 {
			lo = min(max(0, at+i-window+1), hi)
		}
		mask(row, lo, hi)
		st := &w.state[i]
		e.set.Softmax(row, scale, st)
		if st.Alpha != 1 {
			e.set.Scale(w.acc[i*e.headP:][:e.headP], st.Alpha)
		}
	}
}

// mask hides the scores outside [lo, hi).
func mask(row []float32, lo, hi int) {
	inf := float32(math.Inf(-1))
	for i := range row[:lo] {
		row[i] = inf
	}
	for i := hi; i < len(row); i++ {
		row[i] = inf
	}
}
