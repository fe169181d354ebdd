package extract

import (
	"context"
	"errors"
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

// source reads the samples that entries name.
type source struct {
	datasets []store.DatasetRow // by an index's dataset number
	stores   map[uint32]*samples.Store
	dir      func(gen uint32) string
	window   int // tokens of a window where long samples are split; 0: they are not
}

// openSource opens the samples generations that the named datasets lie in.
func openSource(ws *store.Workspace, plan store.PlanRow, names []string, memory int64, fail func(error)) (_ *source, err error) {
	var all []store.DatasetRow
	err = ws.View(func(r store.Reader) error {
		all, err = r.Datasets()
		return err
	})
	if err != nil {
		return nil, err
	}
	byName, sizes := map[string]store.DatasetRow{}, map[uint32]int64{}
	for _, d := range all {
		byName[d.Name] = d
		sizes[d.SamplesGen] = max(sizes[d.SamplesGen], d.FirstRow+d.Accepted)
	}
	s := &source{stores: map[uint32]*samples.Store{}, dir: ws.SamplesDir}
	if plan.Overlong == "split" {
		s.window = int(plan.MaxTokens)
	}
	for _, name := range names {
		d, ok := byName[name]
		if !ok {
			return nil, errors.Join(fmt.Errorf("extract: the plan names dataset %q, which is not merged", name), s.Close())
		}
		s.datasets = append(s.datasets, d)
		if s.stores[d.SamplesGen] != nil {
			continue
		}
		st, err := samples.Open(ws.SamplesDir(d.SamplesGen), sizes[d.SamplesGen],
			samples.Options{FS: ws.FS(), Memory: memory, Fail: fail})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.stores[d.SamplesGen] = st
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
	sm, err := s.stores[d.SamplesGen].Get(ctx, d.ID, sample)
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

// Close closes everything that was opened.
func (s *source) Close() error {
	var errs []error
	for _, st := range s.stores {
		errs = append(errs, st.Close())
	}
	return errors.Join(errs...)
}
