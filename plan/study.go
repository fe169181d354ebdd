package plan

import (
	"context"
	"errors"

	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// rowSelection is a row selection, taken apart.
type rowSelection struct{ supervised, tail bool }

func selectionOf(rows string) rowSelection {
	return rowSelection{
		supervised: rows == blob.RowsLastSupervised || rows == blob.RowsBoth,
		tail:       rows == blob.RowsCutTail || rows == blob.RowsBoth,
	}
}

// study is what the samples are, whatever a plan keeps of them: every position
// of the order by dataset, and the distinct samples by what is stored of them.
type study struct {
	names  []string
	sets   []setStudy
	merged []store.DatasetRow

	// holdings are what sealed generations hold, by their identity; nothing is
	// the holding of a shape that none of them has.
	holdings map[string]*holding
	nothing  *holding
}

type setStudy struct {
	positions lengths // each position of the order
	// splitLost is what splitting loses at the plan's cap: tokens of windows
	// before the first and after the last supervised token. Windows without
	// one in between are lost too, but cannot be seen without the masks.
	splitLost int64
}

// newStudy goes over the whole order, without drops, cap or budget.
func newStudy(ctx context.Context, ws *store.Workspace, r store.Reader, o Options) (st *study, err error) {
	limit := o.MaxTokens
	all := o
	all.Drop, all.MaxTokens, all.MaxDatasetTokens, all.Limit, all.Overlong = nil, 0, 0, 0, Truncate
	p, err := newPlanner(ws, r, all)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	st = &study{names: p.c.names(), sets: make([]setStudy, len(p.c.sets)), merged: p.c.sets}
	s, err := newSelector(p.c, all, p.w)
	if err != nil {
		return nil, err
	}
	in := newMembership()
	err = s.pass(ctx, func(at place, q piece) error {
		set := &st.sets[at.set]
		set.positions.add(at.row)
		if n := int64(at.row.Length); limit > 0 && n > limit && at.row.Supervised > 0 {
			set.splitLost += int64(at.row.First) / limit * limit
			set.splitLost += max(0, n-(int64(at.row.Last)+limit-1)/limit*limit)
		}
		number, err := p.distinct.add(q)
		if err == nil {
			in.add(number, at.set)
		}
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	for i := range st.sets {
		st.sets[i].positions.seal()
	}
	p.distinct.seal()
	return st, p.hold(ctx, r, st, in)
}
