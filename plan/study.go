package plan

import (
	"context"
	"errors"

	"eaglebatch/internal/progress"
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
// of the order and every distinct sample, by dataset.
type study struct {
	names  []string
	sets   []setStudy
	merged []store.DatasetRow
}

type setStudy struct {
	positions lengths // each position of the order
	fresh     lengths // distinct samples that no sealed generation holds
	stored    lengths // distinct samples that one holds, as far as the plan's cap
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
	err = s.pass(ctx, func(at place, q piece) error {
		set := &st.sets[at.set]
		set.positions.add(at.row)
		if n := int64(at.row.Length); limit > 0 && n > limit && at.row.Supervised > 0 {
			set.splitLost += int64(at.row.First) / limit * limit
			set.splitLost += max(0, n-(int64(at.row.Last)+limit-1)/limit*limit)
		}
		return p.distinct.add(q)
	}, nil)
	if err != nil {
		return nil, err
	}
	p.distinct.seal()
	if limit > 0 && o.Overlong != Split {
		for i, n := range p.distinct.need {
			p.distinct.need[i] = uint32(min(int64(n), limit))
		}
	}
	if err := p.reuse(ctx, r, progress.Nop{}); err != nil {
		return nil, err
	}
	for i, source := range p.distinct.source {
		set, _ := p.c.locate(p.distinct.merged[i])
		if row := p.distinct.row(uint32(i)); source == 0 {
			st.sets[set].fresh.add(row)
		} else {
			st.sets[set].stored.add(row)
		}
	}
	for i := range st.sets {
		st.sets[i].positions.seal()
		st.sets[i].fresh.seal()
		st.sets[i].stored.seal()
	}
	return st, nil
}
