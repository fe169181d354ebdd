package plan

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sort"

	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// corpus is the merged rows in the shuffled order, mapped: nothing of it is
// held in memory.
type corpus struct {
	ws     *store.Workspace
	row    store.OrderRow
	sets   []store.DatasetRow
	starts []int64 // starts[i] is the merged number of the first row of sets[i]
	total  int64
	rows   map[uint32]*samples.Rows // by samples generation
	order  *store.Order
}

func openCorpus(ws *store.Workspace, r store.Reader) (c *corpus, err error) {
	c = &corpus{ws: ws, rows: map[uint32]*samples.Rows{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	var ok bool
	if c.row, ok, err = r.Order(); err != nil {
		return c, err
	}
	if !ok {
		return c, errNoOrder
	}
	if c.sets, err = r.Datasets(); err != nil {
		return c, err
	}
	ends := map[uint32]int64{}
	for _, d := range c.sets {
		c.starts = append(c.starts, c.total)
		c.total += d.Accepted
		ends[d.SamplesGen] = max(ends[d.SamplesGen], d.FirstRow+d.Accepted)
	}
	if c.total != c.row.Merged {
		return c, fmt.Errorf("the order permutes %d merged rows but %d are merged: shuffle again", c.row.Merged, c.total)
	}
	for gen, n := range ends {
		if c.rows[gen], err = samples.OpenRows(ws.SamplesDir(gen), n); err != nil {
			delete(c.rows, gen)
			return c, err
		}
	}
	if c.order, err = ws.OpenOrder(c.row); err != nil {
		return c, err
	}
	if n := c.row.N + c.row.Eval; c.order.Len() != n {
		return c, fmt.Errorf("the order file holds %d positions, its row says %d", c.order.Len(), n)
	}
	return c, nil
}

// Close unmaps everything.
func (c *corpus) Close() error {
	var err error
	for _, r := range c.rows {
		err = errors.Join(err, r.Close())
	}
	if c.order != nil {
		err = errors.Join(err, c.order.Close())
	}
	return err
}

// locate returns the dataset of a merged row and the row's number within it.
func (c *corpus) locate(merged uint32) (set int, index int64) {
	n := int64(merged)
	set = sort.Search(len(c.starts), func(i int) bool { return c.starts[i] > n }) - 1
	return set, n - c.starts[set]
}

// at returns the row index entry of a merged row.
func (c *corpus) at(set int, index int64) samples.Row {
	d := &c.sets[set]
	return c.rows[d.SamplesGen].At(d.FirstRow + index)
}

func (c *corpus) atMerged(merged uint32) samples.Row { return c.at(c.locate(merged)) }

// place is one position of the order.
type place struct {
	merged uint32
	set    int
	index  int64 // sample within its dataset
	row    samples.Row
	eval   bool
}

// places yields the positions in order: training ones, then eval.
func (c *corpus) places(ctx context.Context, fail *error) iter.Seq[place] {
	return func(yield func(place) bool) {
		n := c.order.Len()
		for i := range n {
			if i&0xfff == 0 && ctx.Err() != nil {
				*fail = context.Cause(ctx)
				return
			}
			m := c.order.At(i)
			if int64(m) >= c.total {
				*fail = &store.CorruptError{Path: c.ws.OrderPath(c.row.ID), Offset: i * 4,
					Err: fmt.Errorf("position %d names merged row %d of %d", i, m, c.total)}
				return
			}
			p := place{merged: m, eval: i >= c.row.N}
			p.set, p.index = c.locate(m)
			p.row = c.at(p.set, p.index)
			if !yield(p) {
				return
			}
		}
	}
}

// names returns the datasets' names in the configured order.
func (c *corpus) names() []string {
	out := make([]string, len(c.sets))
	for i, d := range c.sets {
		out[i] = d.Name
	}
	return out
}
