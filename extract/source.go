package extract

import (
	"context"
	"errors"
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
)

// source reads the samples that entries name.
type source struct {
	datasets []store.DatasetRow // by an index's dataset number
	stores   *samples.Set
	dir      func(gen uint32) string
	window   int // tokens of a window where long samples are split; 0: they are not
}

// openSource looks at the samples generations that the named datasets lie in.
func openSource(ws *store.Workspace, plan store.PlanRow, names []string, memory int64, fail func(error)) (*source, error) {
	var all []store.DatasetRow
	err := ws.View(func(r store.Reader) (err error) {
		all, err = r.Datasets()
		return err
	})
	if err != nil {
		return nil, err
	}
	byName, sizes, used := map[string]store.DatasetRow{}, map[uint32]int64{}, map[uint32]int64{}
	for _, d := range all {
		byName[d.Name] = d
		sizes[d.SamplesGen] = max(sizes[d.SamplesGen], d.FirstRow+d.Accepted)
	}
	s := &source{dir: ws.SamplesDir}
	if plan.Overlong == "split" {
		s.window = int(plan.MaxTokens)
	}
	for _, name := range names {
		d, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("extract: the plan names dataset %q, which is not merged", name)
		}
		s.datasets = append(s.datasets, d)
		used[d.SamplesGen] = sizes[d.SamplesGen]
	}
	if s.stores, err = samples.NewSet(ws.SamplesDir, used, samples.Options{FS: ws.FS(), Memory: memory, Fail: fail}); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *source) dataset(i uint32) (store.DatasetRow, error) {
	if int64(i) >= int64(len(s.datasets)) {
		return store.DatasetRow{}, &store.CorruptError{Path: "plan", Offset: -1, Err: fmt.Errorf("dataset %d of %d", i, len(s.datasets))}
	}
	return s.datasets[i], nil
}

func (s *source) get(ctx context.Context, dataset uint32, sample uint64) (*samples.Sample, error) {
	d, err := s.dataset(dataset)
	if err != nil {
		return nil, err
	}
	sm, err := s.stores.Get(ctx, d.SamplesGen, d.ID, sample)
	if err != nil {
		return nil, fmt.Errorf("dataset %s sample %d: %w", d.Name, sample, err)
	}
	return sm, nil
}

// entry returns the token ids and the mask that entry e is to hold.
func (s *source) entry(ctx context.Context, e blob.Entry) (ids []uint32, mask []byte, err error) {
	index, window := blob.SplitSample(e.Sample)
	sm, err := s.get(ctx, e.Dataset, index)
	if err != nil {
		return nil, nil, err
	}
	if s.window > 0 {
		from := min(int(window)*s.window, len(sm.IDs))
		to := min(from+s.window, len(sm.IDs))
		sm.IDs, sm.Mask = sm.IDs[from:to], sm.Mask[from:to]
	}
	if int64(e.Rows) > int64(len(sm.IDs)) || samples.MakeRow(sm).Tokens != e.Tokens {
		return nil, nil, &store.CorruptError{
			Path: s.dir(s.datasets[e.Dataset].SamplesGen), Offset: -1,
			Key: fmt.Sprintf("%s/%d", s.datasets[e.Dataset].Name, e.Sample),
			Err: errors.New("the sample is not the one that was planned"),
		}
	}
	return sm.IDs[:e.Rows], sm.Mask[:e.Rows], nil
}

// prefix returns the token ids that position p shows.
func (s *source) prefix(ctx context.Context, p genindex.Position) ([]uint32, error) {
	index, window := blob.SplitSample(p.Sample)
	sm, err := s.get(ctx, p.Dataset, index)
	if err != nil {
		return nil, err
	}
	from := 0
	if s.window > 0 {
		from = min(int(window)*s.window, len(sm.IDs))
	}
	return sm.IDs[from:min(from+int(p.Rows), len(sm.IDs))], nil
}

// Close closes everything that was opened.
func (s *source) Close() error { return s.stores.Close() }
