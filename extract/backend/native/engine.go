package native

import (
	"context"
	"slices"

	"eaglebatch/extract/model"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/extract/model/tensor"
)

// engine holds the buffers of forward passes. It computes one batch at a time.
type engine struct {
	dims
	arith
	dec     *model.Decoder
	threads int
	capture []int
	dtype   string
	table   rotation

	layer             arena // all of a packed layer
	qkv, o, down      packed
	gateUp            []packed  // for each block of the MLP: its columns of gate, then of up
	attnNorm, mlpNorm []float32 // padded
	qNorm, kNorm      []float32
	x                 []float32 // [rows, hiddenS]: the residual stream
	q                 []float32 // [rows, qS]: queries, then what attention gives
	kv                []float32 // [rows, 2·kvW]: keys, values
	keys, values      packed    // [kvHeads][keys of the batch]
	zero              []float32 // a panel's row of zeros
	workers           []worker
}

// worker is a thread's scratch memory.
type worker struct {
	norm, wide, out []float32  // [rowBlock, …]
	operand, inner  operandBuf // of what a product multiplies; of what the MLP's last one does
	scores          operandBuf
	rows            []float32 // rows being packed
	qt, score, acc  []float32 // attention: [queryBlock, …]
	state           []kernel.SoftmaxState
}

func (b *Backend) newEngine() *engine {
	e := &engine{
		dims: b.dims, arith: arith{b.set, b.bf16}, dec: b.dec, threads: b.o.Threads,
		capture: b.o.Capture, dtype: b.o.DType, zero: make([]float32, kernel.Panel),
	}
	e.layer = e.newArena(e.layerLen())
	a := e.layer
	e.qkv = a.take(e.qkvP, e.hiddenP)
	e.o = a.take(e.hiddenP, e.qP)
	for f := 0; f < e.ffnP; f += e.ffnB {
		e.gateUp = append(e.gateUp, a.take(2*min(e.ffnB, e.ffnP-f), e.hiddenP))
	}
	e.down = a.take(e.hiddenP, e.ffnP)
	e.workers = make([]worker, e.threads)
	for i := range e.workers {
		e.workers[i] = worker{
			norm:    make([]float32, rowBlock*e.hiddenS),
			wide:    make([]float32, rowBlock*e.wideS),
			out:     make([]float32, rowBlock*e.hiddenS),
			operand: e.newOperand(rowBlock * e.inS),
			inner:   e.newOperand(rowBlock * stride(e.ffnB)),
			scores:  e.newOperand(queryBlock * scoreS),
			rows:    make([]float32, kernel.Panel*e.maxK),
			qt:      make([]float32, queryBlock*e.headS),
			score:   make([]float32, queryBlock*scoreS),
			acc:     make([]float32, queryBlock*e.headP),
			state:   make([]kernel.SoftmaxState, queryBlock),
		}
	}
	return e
}

// grow makes the batch buffers fit; the padding rows stay zero or stale.
func (e *engine) grow(b *batch) {
	rows := kernel.Up(b.rows, rowBlock)
	if rows*e.hiddenS > len(e.x) {
		e.x, e.q, e.kv = nil, nil, nil // so that old and new need not exist at once
		e.x = make([]float32, rows*e.hiddenS)
		e.q = make([]float32, rows*e.qS)
		e.kv = make([]float32, rows*2*e.kvW)
	}
	if b.keys > e.keys.n {
		e.keys, e.values = packed{}, packed{}
		a := e.newArena(e.kvHeads * b.keys * 2 * e.headP)
		e.keys = a.take(b.keys, e.kvHeads*e.headP)
		e.values = a.take(b.keys, e.kvHeads*e.headP)
	}
}

// forward computes the batch and leaves the captured rows in b.out:
// [rows, len(capture), hidden] in the engine's dtype.
func (e *engine) forward(ctx context.Context, b *batch) error {
	e.grow(b)
	e.rotations(b)
	blocks := (b.rows + rowBlock - 1) / rowBlock
	parallel(e.threads, blocks, func(_, i int) { e.embed(b, i) })
	last := e.capture[len(e.capture)-1]
	for l := range last {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.packLayer(&e.dec.Blocks[l])
		parallel(e.threads, blocks, func(w, i int) { e.project(&e.workers[w], b, l, i) })
		e.packKeys(b)
		e.attend(b, e.dec.Windows[l])
		parallel(e.threads, blocks, func(w, i int) { e.finish(&e.workers[w], b, l, i) })
	}
	return ctx.Err()
}

// blockRows returns the rows of block i.
func (b *batch) blockRows(i int) (from, to int) {
	return i * rowBlock, min((i+1)*rowBlock, b.rows)
}

func (e *engine) embed(b *batch, i int) {
	from, to := b.blockRows(i)
	b.each(from, to, func(s *seq, pos, row, n int) {
		for j := range n {
			x := e.x[(row+j)*e.hiddenS:][:e.hiddenP]
			e.dec.Embed.Row(int(s.Tokens[pos+j]), x)
			clear(x[e.hidden:])
			e.save(b, 0, row+j)
		}
	})
}

// save stores a row of the residual stream if layer k is captured.
func (e *engine) save(b *batch, k, row int) {
	at, ok := slices.BinarySearch(e.capture, k)
	if !ok {
		return
	}
	n := e.hidden * dtypeSize(e.dtype)
	e.encode(b.out[(row*len(e.capture)+at)*n:][:n], e.x[row*e.hiddenS:][:e.hidden])
}

// project computes norm, q, k, v and the rotation of a block of rows.
func (e *engine) project(w *worker, b *batch, l, i int) {
	blk := &e.dec.Blocks[l]
	from, to := b.blockRows(i)
	e.normRows(w, e.attnNorm, from, to)
	e.mul(w.wide, e.wideS, e.left(w.norm, e.hiddenS, to-from, e.hiddenP, w.operand), e.qkv, false)
	b.each(from, to, func(s *seq, pos, row, n int) {
		for j := range n {
			y := w.wide[(row+j-from)*e.wideS:]
			q, k, v := y[:e.qW], y[e.qW:][:e.kvW], y[e.qW+e.kvW:][:e.kvW]
			addBias(q, blk.QBias)
			addBias(k, blk.KBias)
			addBias(v, blk.VBias)
			cos, sin := s.table.at(pos + j)
			e.headRows(q, e.qNorm, cos, sin)
			e.headRows(k, e.kNorm, cos, sin)
			copy(e.q[(row+j)*e.qS:], q)
			copy(e.kv[(row+j)*2*e.kvW:], k)
			copy(e.kv[(row+j)*2*e.kvW+e.kvW:], v)
		}
	})
}

func addBias(x, bias []float32) {
	for i, v := range bias {
		x[i] += v
	}
}

// headRows normalises, where the model does, and rotates each head of x.
func (e *engine) headRows(x, norm, cos, sin []float32) {
	half := e.headDim / 2
	for h := 0; h < len(x); h += e.headDim {
		head := x[h : h+e.headDim]
		if norm != nil {
			e.set.RMSNorm(head, head, norm, e.headDim, e.dec.Eps)
		}
		e.set.Rotate(head[:half], head[half:], cos, sin)
	}
}

func (e *engine) normRows(w *worker, weight []float32, from, to int) {
	for r := from; r < to; r++ {
		e.set.RMSNorm(w.norm[(r-from)*e.hiddenS:][:e.hiddenP], e.x[r*e.hiddenS:][:e.hiddenP], weight, e.hidden, e.dec.Eps)
	}
}

// finish computes the output projection and the MLP of a block of rows.
func (e *engine) finish(w *worker, b *batch, l, i int) {
	blk := &e.dec.Blocks[l]
	from, to := b.blockRows(i)
	n := to - from
	e.mul(w.out, e.hiddenS, e.left(e.q[from*e.qS:], e.qS, n, e.qP, w.operand), e.o, false)
	e.addRows(w, blk.OBias, from, to)
	e.normRows(w, e.mlpNorm, from, to)
	e.mlp(w, blk, n)
	e.addRows(w, blk.DBias, from, to)
	for r := from; r < to; r++ {
		e.save(b, l+1, r)
	}
}

// mlp computes the MLP of n rows of w.norm into w.out, by blocks of its inner
// width: what lies between the products stays in the cache. The blocks are
// those in which the last product sums over k anyway, so bytes are the same.
func (e *engine) mlp(w *worker, blk *model.Block, n int) {
	in := e.left(w.norm, e.hiddenS, n, e.hiddenP, w.operand)
	for i, p := range e.gateUp {
		f, width := i*e.ffnB, p.n/2
		e.mul(w.wide, e.wideS, in, p, false)
		for r := range n {
			gate, up := w.wide[r*e.wideS:][:width], w.wide[r*e.wideS+width:][:width]
			addBias(gate, part(blk.GateBias, f, width))
			addBias(up, part(blk.UpBias, f, width))
			e.set.SiLUMul(gate, up)
		}
		e.mul(w.out, e.hiddenS, e.left(w.wide, e.wideS, n, width, w.inner), e.down.at(f*e.down.n, e.down.n, width), i > 0)
	}
}

// part returns up to n values of x from the one at i on.
func part(x []float32, i, n int) []float32 { return x[min(i, len(x)):min(i+n, len(x))] }

// addRows adds what a product gave, and its bias, to the residual stream.
func (e *engine) addRows(w *worker, bias []float32, from, to int) {
	for r := from; r < to; r++ {
		y := w.out[(r-from)*e.hiddenS:][:e.hiddenP]
		addBias(y, bias)
		e.set.Add(e.x[r*e.hiddenS:][:e.hiddenP], y)
	}
}

// segment is a run of rows of a weight matrix within a packed one.
type segment struct {
	tensor.Matrix
	source func(int) int // stored row of row i; nil: i itself
	first  int           // row of the matrix
	rows   int           // with padding
}

// packLayer packs a layer's weights.
func (e *engine) packLayer(blk *model.Block) {
	e.attnNorm, e.mlpNorm = padded(blk.AttnNorm, e.hiddenP), padded(blk.MLPNorm, e.hiddenP)
	e.qNorm, e.kNorm = blk.QNorm, blk.KNorm
	e.packMatrix(e.qkv, segment{blk.Q, e.dec.SourceRow, 0, e.qW}, segment{blk.K, e.dec.SourceRow, 0, e.kvW}, segment{blk.V, nil, 0, e.kvW})
	e.packMatrix(e.o, segment{blk.O, nil, 0, e.hiddenP})
	for i, p := range e.gateUp {
		e.packMatrix(p, segment{blk.Gate, nil, i * e.ffnB, p.n / 2}, segment{blk.Up, nil, i * e.ffnB, p.n / 2})
	}
	e.packMatrix(e.down, segment{blk.Down, nil, 0, e.hiddenP})
}

func padded(x []float32, n int) []float32 {
	return append(slices.Clip(x), make([]float32, n-len(x))...)
}

// packMatrix packs the segments, one below the other, as p.
func (e *engine) packMatrix(p packed, segs ...segment) {
	parallel(e.threads, p.n/kernel.Panel, func(w, i int) {
		buf := e.workers[w].rows
		var rows [kernel.Panel][]float32
		for j := range rows {
			r := i*kernel.Panel + j
			for _, s := range segs {
				if r >= s.rows {
					r -= s.rows
					continue
				}
				if r += s.first; r < s.Rows {
					if s.source != nil {
						r = s.source(r)
					}
					rows[j] = buf[j*e.maxK:][:p.k]
					e.decode(s.Matrix, r, rows[j])
				}
				break
			}
		}
		e.roundedPanel(p, &rows, i*kernel.Panel)
	})
}
