package plan

import (
	"slices"

	"eaglebatch/store"
)

// use is what an alternative keeps and computes.
type use struct {
	samples, tokens, lost, touched int64 // positions
	fresh                          int64 // tokens to compute
	lastRows, otherRows            int64
	seconds                        float64
	budget                         bool // a dataset's budget was spent
	unseen                         bool // windows of samples that are split may be stored already
}

// planUse is what the plan in force keeps and computes.
func (rep *Report) planUse() use {
	p := rep.Plan
	return rep.use(p.MaxTokens, p.Drop, p.Rows, p.Overlong, rep.ownHolding())
}

// ownHolding is what generations of the plan's own identity hold.
func (rep *Report) ownHolding() *holding { return rep.study.holding(rep.options.Identity) }

func (st *study) holding(identity []store.Part) *holding {
	if h := st.holdings[identityKey(identity)]; h != nil {
		return h
	}
	return st.nothing
}

// holdingOf is what generations of an alternative's shape hold, and whether
// that is known: it takes somebody who says which identity a shape has.
func (rep *Report) holdingOf(row WhatIfRow, same bool) (h *holding, known bool) {
	switch {
	case same:
		return rep.ownHolding(), true
	case rep.identity != nil:
		return rep.study.holding(rep.identity(row.Layers, row.DType, row.Rows)), true
	}
	return rep.study.nothing, len(rep.study.holdings) == 0
}

// reclaimableBeside is what can be freed while the states in h are used.
func (rep *Report) reclaimableBeside(h *holding) int64 {
	n := rep.Room.Reclaimable
	for _, g := range rep.Room.From {
		if slices.Contains(h.from, g.ID) {
			n -= g.Bytes
		}
	}
	return n
}

// use adds up what a cap and drops leave, and what of it is to be computed
// beside what h holds.
func (rep *Report) use(limit int64, drop []string, rows, overlong string, h *holding) use {
	var u use
	part := make([]float64, len(rep.study.sets)) // of what a dataset's positions show
	for i := range rep.study.sets {
		s := &rep.study.sets[i]
		all, tokens := s.positions.length.all()
		if slices.Contains(drop, rep.study.names[i]) {
			u.lost += tokens
			u.touched += all
			continue
		}
		c := s.positions.at(limit, overlong)
		part[i] = rep.affordable(c.tokens)
		u.budget = u.budget || part[i] < 1
		samples := scale(part[i], c.samples)
		u.samples += samples
		u.tokens += scale(part[i], c.tokens)
		u.lost += tokens - scale(part[i], c.tokens)
		u.touched += c.truncated + c.emptied + c.skipped + c.samples - samples
	}
	for _, g := range h.groups {
		var most float64 // a sample that any dataset still shows is computed
		for _, set := range g.sets {
			most = max(most, part[set])
		}
		switch {
		case most == 0:
		case overlong != Split || limit == 0:
			if g.lacks(limit) {
				u.compute(&g.lengths, most, &rep.Basis, limit, overlong, rows)
			}
		default:
			u.computeSplit(g, most, &rep.Basis, limit, rows)
		}
	}
	u.unseen = u.unseen && len(h.from) > 0
	return u
}

// computeSplit adds a group of which those above the limit are cut into
// windows. Which of these are stored cannot be told without their tokens.
func (u *use) computeSplit(g *group, part float64, b *Basis, limit int64, rows string) {
	u.unseen = u.unseen || g.length.max() > limit
	u.compute(&g.lengths, part, b, limit, Split, rows)
	if g.held == whole {
		u.compute(&g.lengths, -part, b, limit, Skip, rows) // those that need no cutting
	}
}

// affordable is the share of a dataset's tokens that max_tokens_per_dataset
// lets in. Which samples those are depends on the order; they are taken to be
// like the others.
func (rep *Report) affordable(tokens int64) float64 {
	if most := rep.options.MaxDatasetTokens; most > 0 && tokens > most {
		return float64(most) / float64(tokens)
	}
	return 1
}

func scale(part float64, n int64) int64 {
	switch part {
	case 1:
		return n
	case -1:
		return -n
	}
	return int64(part * float64(n))
}

func (u *use) compute(l *lengths, part float64, b *Basis, limit int64, overlong, rows string) {
	last, others := l.rows(limit, overlong, selectionOf(rows))
	u.lastRows += scale(part, last)
	u.otherRows += scale(part, others)
	u.fresh += scale(part, l.at(limit, overlong).tokens)
	u.seconds += part * l.seconds(b, limit, overlong)
}

// seconds foretells the time for a set of samples under a cap.
func (l *lengths) seconds(b *Basis, limit int64, overlong string) float64 {
	c := l.at(limit, overlong)
	if len(b.Buckets) == 0 || b.Rate > 0 {
		return b.secondsFor(c.tokens, 1)
	}
	if limit == 0 {
		limit = noCap
	}
	var total float64
	var before int64
	for i, k := range b.Buckets {
		to := min(k.MaxTokens, limit)
		if i == len(b.Buckets)-1 {
			to = limit
		}
		_, sum := l.length.upTo(to)
		total += b.secondsFor(k.MaxTokens, 1) * float64(sum-before) / float64(k.MaxTokens)
		before = sum
	}
	if left := c.tokens - before; left > 0 && limit < noCap {
		total += b.secondsFor(limit, 1) * float64(left) / float64(limit) // those that the cap cut
	}
	return total
}
