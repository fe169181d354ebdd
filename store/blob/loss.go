package blob

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// Loss is what storing rows of a layer as fp8 cost. The relative error of a row
// is the length of what was lost over the length of the row that was given.
type Loss struct {
	Rows int64
	Sum  float64 // of the relative errors
	Max  float64
}

// Mean is the mean relative error of a row.
func (l Loss) Mean() float64 {
	if l.Rows == 0 {
		return 0
	}
	return l.Sum / float64(l.Rows)
}

// Add takes the rows of o in.
func (l *Loss) Add(o Loss) {
	l.Rows += o.Rows
	l.Sum += o.Sum
	l.Max = max(l.Max, o.Max)
}

const (
	lossBytes = 8  // of a layer: fp32 mean and fp32 maximum
	lossChunk = -1 // in place of a block's number
)

// putLosses submits the chunk that ends an entry.
func (w *Writer) putLosses() {
	j, err := w.pipe.get(context.Background(), lossBytes*w.lay.layers)
	if err != nil {
		_ = w.fail(err)
		return
	}
	j.kind = ofLosses
	w.pipe.put(j)
}

// count keeps what quantizing a chunk cost; chunks come in order. At the end of
// the entry the sums become its last chunk. What the blob cost in all is added up
// from what the chunk says, so that a reader comes to the same numbers.
func (w *Writer) count(j *job) error {
	if w.meta.Source == "" || j.kind == ofAux {
		return nil
	}
	if w.losses == nil {
		w.losses = make([]Loss, w.lay.layers)
	}
	if j.kind == ofStates {
		w.losses[j.layer].Add(Loss(j.loss))
		return nil
	}
	if w.info.Losses == nil {
		w.info.Losses = make([]Loss, w.lay.layers)
	}
	for l, x := range w.losses {
		j.raw = binary.LittleEndian.AppendUint32(j.raw, math.Float32bits(float32(x.Mean())))
		j.raw = binary.LittleEndian.AppendUint32(j.raw, math.Float32bits(float32(x.Max)))
		x, err := parseLoss(j.raw[l*lossBytes:], x.Rows)
		if err != nil {
			return err
		}
		w.info.Losses[l].Add(x)
	}
	clear(w.losses)
	j.sum()
	return nil
}

// parseLoss reads what one layer of an entry cost.
func parseLoss(b []byte, rows int64) (Loss, error) {
	mean := float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	most := float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4:])))
	// A mean that was rounded may be the greater by that.
	if !(mean >= 0 && most >= 0 && mean <= most*(1+0x1p-20) && most <= 1) || rows == 0 && most != 0 {
		return Loss{}, fmt.Errorf("mean error %v, greatest %v, of %d rows", mean, most, rows)
	}
	return Loss{Rows: rows, Sum: mean * float64(rows), Max: most}, nil
}

func (r *Reader) parseLosses(e *entryRec, b []byte) ([]Loss, error) {
	out := make([]Loss, r.lay.layers)
	for l := range out {
		var rows int64
		for block := range r.lay.blocks(e.Rows) {
			rows += int64(r.stored(e, l, block))
		}
		var err error
		if out[l], err = parseLoss(b[l*lossBytes:], rows); err != nil {
			return nil, fmt.Errorf("layer %d: %w", r.meta.Layers[l], err)
		}
	}
	return out, nil
}

// EntryLosses returns what quantizing an entry cost, by layer, or nil where it
// was not quantized here.
func (r *Reader) EntryLosses(i int) ([]Loss, error) {
	e, err := r.present(i)
	if err != nil || e.flags&flagLosses == 0 {
		return nil, err
	}
	chunk := int(e.first+e.chunks) - 1
	b := make([]byte, lossBytes*r.lay.layers)
	if err := r.decode(b, i, chunk); err != nil {
		return nil, err
	}
	out, err := r.parseLosses(e, b)
	if err != nil {
		return nil, r.corrupt(i, chunk, err)
	}
	return out, nil
}

// Losses returns what quantizing the blob cost, by layer, as Info has it.
func (r *Reader) Losses() ([]Loss, error) {
	var all []Loss
	for i := range r.entries {
		if r.entries[i].flags&flagLosses == 0 {
			continue
		}
		one, err := r.EntryLosses(i)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = make([]Loss, r.lay.layers)
		}
		for l := range one {
			all[l].Add(one[l])
		}
	}
	return all, nil
}
