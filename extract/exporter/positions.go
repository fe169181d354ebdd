package exporter

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sort"

	"eaglebatch/extract/export"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
)

// place is where a position's tokens lie in the samples store.
type place struct {
	set    int // index into positions.sets
	index  uint64
	window uint32
	rows   int // tokens taken; -1: all
}

// positions is the order of a workspace over its samples store: that of the
// plan in force, or, before there is one, of the shuffle.
type positions struct {
	ws      *store.Workspace
	order   store.OrderRow
	plan    *store.PlanRow // nil: the shuffled order
	window  int            // tokens of a window where the plan splits; 0: it does not
	sets    []store.DatasetRow
	bySet   []int // plan: its dataset number -> sets
	starts  []int64
	total   int64
	index   *genindex.File // plan
	shuffle *store.Order   // no plan
	splits  []genindex.Split
	rows    map[uint32]*samples.Rows
	stores  *samples.Set
}

var errNotShuffled = errors.New("the merged samples are not shuffled yet")

// openPositions opens the order in force with all that it needs.
func openPositions(ws *store.Workspace, fail func(error)) (_ *positions, err error) {
	p := &positions{ws: ws, rows: map[uint32]*samples.Rows{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err := ws.View(p.read); err != nil {
		return p, err
	}
	sizes := map[uint32]int64{}
	for _, d := range p.sets {
		p.starts = append(p.starts, p.total)
		p.total += d.Accepted
		sizes[d.SamplesGen] = max(sizes[d.SamplesGen], d.FirstRow+d.Accepted)
	}
	for gen, n := range sizes {
		if p.rows[gen], err = samples.OpenRows(ws.SamplesDir(gen), n); err != nil {
			delete(p.rows, gen)
			return p, err
		}
	}
	if p.stores, err = samples.NewSet(ws.SamplesDir, sizes, samples.Options{FS: ws.FS(), Memory: ws.Memory(), Fail: fail}); err != nil {
		return p, err
	}
	if p.plan == nil {
		return p, p.openOrder()
	}
	return p, p.openPlan()
}

func (p *positions) read(r store.Reader) (err error) {
	if p.sets, err = r.Datasets(); err != nil {
		return err
	}
	done := func(phase string) (bool, error) {
		row, ok, err := r.Phase(phase)
		return ok && row.State == store.Done, err
	}
	ok, err := done(store.PhaseShuffle)
	if err != nil {
		return err
	}
	if p.order, _, err = r.Order(); err != nil {
		return err
	}
	if !ok || p.order.ID == 0 {
		return errNotShuffled
	}
	planned, err := done(store.PhasePlan)
	if err != nil {
		return err
	}
	row, found, err := r.Plan()
	if err == nil && planned && found && row.Order == p.order.ID {
		p.plan = &row
	}
	return err
}

func (p *positions) openOrder() (err error) {
	if p.total != p.order.Merged {
		return fmt.Errorf("the order permutes %d merged rows but %d are merged: shuffle again", p.order.Merged, p.total)
	}
	if p.shuffle, err = p.ws.OpenOrder(p.order); err != nil {
		return err
	}
	p.splits = []genindex.Split{{Name: "train", Count: p.order.N}, {Name: "eval", First: p.order.N, Count: p.order.Eval}}
	return p.shuffle.Verify()
}

func (p *positions) openPlan() (err error) {
	if p.plan.Overlong == "split" {
		p.window = int(p.plan.MaxTokens)
	}
	if p.index, err = genindex.OpenCommitted(p.ws.PlanPath(p.plan.ID)); err != nil {
		return err
	}
	m := p.index.Meta()
	p.splits = m.Splits
	for _, name := range m.Datasets {
		i := 0
		for i < len(p.sets) && p.sets[i].Name != name {
			i++
		}
		if i == len(p.sets) {
			return fmt.Errorf("the plan names dataset %q, which is not merged", name)
		}
		p.bySet = append(p.bySet, i)
	}
	return nil
}

// at returns the place of position i.
func (p *positions) at(i int64) (place, error) {
	if p.index != nil {
		pos := p.index.Position(i)
		index, window := blob.SplitSample(pos.Sample)
		return place{set: p.bySet[pos.Dataset], index: index, window: window, rows: int(pos.Rows)}, nil
	}
	row := int64(p.shuffle.At(i))
	if row >= p.total {
		return place{}, &store.CorruptError{Path: p.ws.OrderPath(p.order.ID), Offset: -1, Err: fmt.Errorf("position %d names merged row %d of %d", i, row, p.total)}
	}
	set := sort.Search(len(p.starts), func(k int) bool { return p.starts[k] > row }) - 1
	return place{set: set, index: uint64(row - p.starts[set]), rows: -1}, nil
}

// tokens is the length of the record that position i is read from.
func (p *positions) tokens(i int64) int64 {
	at, err := p.at(i)
	if err != nil {
		return 0 // reading it will say so
	}
	d := p.sets[at.set]
	return int64(p.rows[d.SamplesGen].At(d.FirstRow + int64(at.index)).Length)
}

// get reads position i.
func (p *positions) get(ctx context.Context, i int64) (*export.Row, error) {
	at, err := p.at(i)
	if err != nil {
		return nil, err
	}
	d := p.sets[at.set]
	s, err := p.stores.Get(ctx, d.SamplesGen, d.ID, at.index)
	if err != nil {
		return nil, fmt.Errorf("dataset %s sample %d: %w", d.Name, at.index, err)
	}
	r := &export.Row{Position: i, Dataset: d.Name, Sample: at.index, Window: at.window, ID: s.ID, Line: s.Line}
	if int(s.File) < len(d.Sources) {
		r.File = filepath.Base(d.Sources[s.File].Path)
	}
	from := min(int(at.window)*p.window, len(s.IDs))
	to := len(s.IDs)
	if at.rows >= 0 {
		to = from + at.rows
	}
	if to > len(s.IDs) || to == from {
		return nil, fmt.Errorf("dataset %s sample %d: the plan takes tokens %d to %d of %d: plan again", d.Name, at.index, from, to, len(s.IDs))
	}
	r.IDs, r.Mask = s.IDs[from:to], s.Mask[from:to]
	start := 0
	for _, seg := range s.Segments {
		if end := min(int(seg.End), to); end > max(from, start) {
			r.Segments = append(r.Segments, export.Segment{Kind: seg.Kind, End: uint32(end - from)})
		}
		start = int(seg.End)
	}
	return r, nil
}

// Close closes everything that was opened.
func (p *positions) Close() error {
	var err error
	for _, r := range p.rows {
		err = errors.Join(err, r.Close())
	}
	if p.stores != nil {
		err = errors.Join(err, p.stores.Close())
	}
	if p.shuffle != nil {
		err = errors.Join(err, p.shuffle.Close())
	}
	if p.index != nil {
		err = errors.Join(err, p.index.Close())
	}
	return err
}
