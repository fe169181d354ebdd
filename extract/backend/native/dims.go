package native

import (
	"eaglebatch/extract/model"
	"eaglebatch/extract/model/kernel"
)

const (
	// rowBlock is how many rows a thread takes through the products at once.
	rowBlock = 192
	// queryBlock and keyBlock tile attention. Keys are cut at multiples of
	// keyBlock from the sample's start, so that a row's sums do not depend on
	// the sample's length.
	queryBlock = 96
	keyBlock   = 256 // at most kernel.KBlock
	scoreS     = keyBlock + 16
)

// dims are a model's sizes: P padded for the kernels, S the stride of rows in
// memory, kept off multiples that would put a tile's rows into the same cache
// sets.
type dims struct {
	hidden, hiddenP, hiddenS int
	heads, kvHeads           int
	headDim, headP, headS    int
	qW, qP, qS               int // all query heads
	kvW                      int // k or v of one row
	qkvP                     int // q, k and v of one row
	ffn, ffnP                int
	ffnB                     int // a block of it: engine.mlp
	wideS                    int // widest result of a product: q|k|v or gate|up
	inS                      int // widest operand that is a whole row of the model
	maxK                     int // widest row that is packed
	vocab                    int
}

func newDims(s model.Spec, a arith) dims {
	d := dims{
		hidden: s.Hidden, hiddenP: kernel.Up(s.Hidden, kernel.Panel),
		heads: s.Heads, kvHeads: s.KVHeads,
		headDim: s.HeadDim, headP: kernel.Up(s.HeadDim, kernel.Panel),
		qW: s.Heads * s.HeadDim, kvW: s.KVHeads * s.HeadDim,
		ffn: s.FFN, ffnP: kernel.Up(s.FFN, kernel.Panel),
		vocab: s.Vocab,
	}
	d.qP = kernel.Up(d.qW, kernel.Panel)
	d.qkvP = kernel.Up(d.qW+2*d.kvW, kernel.Panel)
	d.hiddenS, d.qS, d.headS = stride(d.hiddenP), stride(d.qP), stride(d.headP)
	d.ffnB = d.ffnP
	if !a.bf16.Half() {
		d.ffnB = kernel.KSplit(d.ffnP)
	}
	d.wideS = stride(max(d.qkvP, 2*d.ffnB))
	d.inS = max(d.hiddenS, d.qS)
	d.maxK = max(d.inS, stride(d.ffnP), stride(keyBlock))
	return d
}

func stride(n int) int {
	if n%128 == 0 {
		return n + 16
	}
	return n
}

// layerLen is the number of values of a packed layer.
func (d dims) layerLen() int {
	return d.hiddenP*(d.qkvP+2*d.ffnP) + d.hiddenP*d.qP + d.hiddenP*d.ffnP
}
