package plan

import (
	"slices"

	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// WhatIfOptions says which alternatives are computed and at what price. The
// zero value computes the usual ones.
type WhatIfOptions struct {
	Caps         []int64    // 0 is no cap; nil: none, 16384, 8192, 4096, 2048 and the plan's
	Drops        [][]string // nil: nothing, each dataset with at least a tenth of the tokens, and what the plan drops
	Layers       [][]int    // nil: the plan's, without its last, and its last alone
	DTypes       []string
	Rows         []string
	Codecs       []string
	GPUs         int     // 0: no GPU hours
	GPUHourPrice float64 // 0: no cost
	ExpandTo     int64   // size of the volume, bytes; 0: as it is
}

// WhatIfRow is one alternative.
type WhatIfRow struct {
	MaxTokens int64    `json:"max_tokens"` // 0: no cap
	Drop      []string `json:"drop"`
	Layers    []int    `json:"layers"`
	DType     string   `json:"dtype"`
	Rows      string   `json:"rows"`
	Codec     string   `json:"codec"`

	Samples        int64    `json:"samples"`         // positions planned
	Tokens         int64    `json:"tokens"`          // at those
	LostTokens     int64    `json:"lost_tokens"`     // to the cap and to drops
	TouchedSamples int64    `json:"touched_samples"` // cut, emptied, skipped or dropped
	NewTokens      int64    `json:"new_tokens"`      // to compute, repeats and what is stored already apart
	ReuseCounted   bool     `json:"reuse_counted"`   // false: NewTokens may be fewer, since older generations may hold some of them
	RawBytes       int64    `json:"raw_bytes"`
	ExpectedBytes  *int64   `json:"expected_bytes"` // null where the codec's ratio is not known for the dtype
	Seconds        *float64 `json:"seconds"`        // null without a rate
	GPUHours       *float64 `json:"gpu_hours"`
	Cost           *float64 `json:"cost"`

	Decision store.Decision `json:"decision"`
	ShortBy  int64          `json:"short_by"`
	Current  bool           `json:"current"`     // the plan in force
	Best     bool           `json:"best"`        // fits, perhaps after gc, with the least loss at the plan's shape
	Approx   bool           `json:"approximate"` // masks that were not read, or a budget spent in an order not gone over, decide
}

// WhatIf computes every combination of the alternatives, from the lengths
// alone. Samples above a cap are treated as the plan treats them; of those that
// are split, windows before the first supervised token count as lost, and
// later ones without any do not.
func WhatIf(rep Report, o WhatIfOptions) []WhatIfRow {
	o = o.withDefaults(rep)
	var out []WhatIfRow
	for _, drop := range o.Drops {
		for _, limit := range o.Caps {
			for _, layers := range o.Layers {
				for _, dtype := range o.DTypes {
					for _, rows := range o.Rows {
						for _, codec := range o.Codecs {
							row := WhatIfRow{MaxTokens: limit, Drop: drop, Layers: layers, DType: dtype, Rows: rows, Codec: codec}
							out = append(out, rep.evaluate(row, o))
						}
					}
				}
			}
		}
	}
	markBest(rep, out)
	return out
}

func (o WhatIfOptions) withDefaults(rep Report) WhatIfOptions {
	p := rep.Plan
	if o.Caps == nil {
		o.Caps = []int64{0, 16384, 8192, 4096, 2048}
		if !slices.Contains(o.Caps, p.MaxTokens) {
			o.Caps = append(o.Caps, p.MaxTokens)
		}
	}
	if o.Drops == nil {
		o.Drops = [][]string{{}}
		for _, d := range rep.Datasets {
			if d.Share >= 0.1 && len(rep.Datasets) > 1 {
				o.Drops = append(o.Drops, []string{d.Name})
			}
		}
		if !slices.ContainsFunc(o.Drops, func(d []string) bool { return slices.Equal(d, p.Drop) }) {
			o.Drops = append(o.Drops, p.Drop)
		}
	}
	if o.Layers == nil {
		n := len(p.Layers)
		o.Layers = [][]int{p.Layers}
		if n > 1 {
			o.Layers = append(o.Layers, p.Layers[:n-1], p.Layers[n-1:])
		}
	}
	if o.DTypes == nil {
		o.DTypes = []string{"fp32", "bf16", "fp16", "fp8"}
	}
	if o.Rows == nil {
		o.Rows = []string{blob.RowsAll, blob.RowsLastSupervised, blob.RowsCutTail, blob.RowsBoth}
	}
	if o.Codecs == nil {
		o.Codecs = []string{"raw", "lz4", "lz4-planes", "dense"}
		if !slices.Contains(o.Codecs, p.Codec) {
			o.Codecs = append(o.Codecs, p.Codec)
		}
	}
	return o
}

// evaluate fills in one row.
func (rep *Report) evaluate(row WhatIfRow, o WhatIfOptions) WhatIfRow {
	p := rep.Plan
	same := slices.Equal(row.Layers, p.Layers) && row.DType == p.DType && row.Rows == p.Rows
	h, counted := rep.holdingOf(row, same)
	u := rep.use(row.MaxTokens, row.Drop, row.Rows, p.Overlong, h)
	row.ReuseCounted = counted && !u.unseen
	row.Samples, row.Tokens, row.LostTokens, row.TouchedSamples, row.NewTokens = u.samples, u.tokens, u.lost, u.touched, u.fresh
	rowBytes := int64(blob.Meta{Hidden: p.Hidden, DType: row.DType}.RowBytes())
	row.RawBytes = rowBytes * (u.lastRows + int64(len(row.Layers)-1)*u.otherRows)
	need := row.RawBytes
	switch {
	case row.Codec == "raw":
		row.ExpectedBytes = &need
	case row.Codec == p.Codec && row.DType == p.DType && p.Ratio > 0:
		n := int64(p.Ratio * float64(row.RawBytes))
		row.ExpectedBytes, need = &n, n
	}
	if u.seconds > 0 || u.fresh == 0 {
		row.Seconds = &u.seconds
	}
	row.Approx = selects(row.Rows) || selects(p.Rows) || u.budget
	reclaimable := rep.reclaimableBeside(h)
	if row.Current = same && row.MaxTokens == p.MaxTokens && slices.Equal(row.Drop, p.Drop) && row.Codec == p.Codec; row.Current {
		row.exact(rep)
		need, reclaimable = rep.left, rep.Room.Reclaimable
	}
	row.price(o)
	row.Decision, row.ShortBy = decide(need, rep.room(o.ExpandTo), reclaimable)
	return row
}

// price fills in what the time costs.
func (row *WhatIfRow) price(o WhatIfOptions) {
	if row.Seconds == nil || o.GPUs == 0 {
		return
	}
	h := *row.Seconds / 3600 * float64(o.GPUs)
	row.GPUHours = &h
	if o.GPUHourPrice > 0 {
		c := h * o.GPUHourPrice
		row.Cost = &c
	}
}

// exact fills in what the plan in force counted sample by sample.
func (row *WhatIfRow) exact(rep *Report) {
	p, bytes := rep.Plan, rep.Plan.ExpectedBytes
	row.Samples, row.Tokens, row.NewTokens, row.RawBytes, row.Approx = p.Samples, p.Tokens, p.NewTokens, p.RawBytes, false
	row.ReuseCounted = true
	if p.NewTokens > 0 { // what is extracted by now counts as it was planned
		row.Seconds = nil
		if p.Seconds > 0 {
			row.Seconds = &p.Seconds
		}
	}
	row.LostTokens = rep.Total.Tokens - p.Tokens
	if row.ExpectedBytes != nil {
		row.ExpectedBytes = &bytes
	}
}

// room is what may be written, on the volume as it is or expanded. A reserve
// that is a share of the volume grows with it.
func (rep *Report) room(expandTo int64) int64 {
	m := rep.Room
	if expandTo == 0 {
		return m.spare()
	}
	return m.spare() + m.Reserve + expandTo - m.Total - rep.options.Reserve.Of(expandTo)
}

// markBest marks the row with the least loss among those of the plan's shape
// and codec that fit, if need be after gc.
func markBest(rep Report, rows []WhatIfRow) {
	best := -1
	p := rep.Plan
	for i, r := range rows {
		if r.Decision == store.Short || r.Codec != p.Codec || r.DType != p.DType || r.Rows != p.Rows || !slices.Equal(r.Layers, p.Layers) {
			continue
		}
		if best < 0 || r.LostTokens < rows[best].LostTokens {
			best = i
		}
	}
	if best >= 0 {
		rows[best].Best = true
	}
}
