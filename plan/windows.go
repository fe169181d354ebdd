package plan

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"eaglebatch/store/samples"
)

// texts reads whole samples. Most plans never need one.
type texts struct {
	c      *corpus
	memory int64
	stores *samples.Set // nil: none was opened yet
	failed error        // what Badger logged as an error
}

func (t *texts) get(ctx context.Context, set int, index int64) (*samples.Sample, error) {
	d := t.c.sets[set]
	if t.stores == nil {
		sizes := map[uint32]int64{}
		for gen, r := range t.c.rows {
			sizes[gen] = r.Len()
		}
		var err error
		if t.stores, err = samples.NewSet(t.c.ws.SamplesDir, sizes, samples.Options{
			FS: t.c.ws.FS(), Memory: t.memory,
			Fail: func(err error) { t.failed = errors.Join(t.failed, err) },
		}); err != nil {
			return nil, err
		}
	}
	s, err := t.stores.Get(ctx, d.SamplesGen, d.ID, uint64(index))
	if err != nil {
		return nil, fmt.Errorf("dataset %q sample %d: %w", d.Name, index, err)
	}
	return s, nil
}

func (t *texts) Close() error {
	if t.stores == nil {
		return nil
	}
	return errors.Join(t.failed, t.stores.Close())
}

// windows cuts samples that are split. What it learnt of one is kept (48 bytes
// a window), since every pass asks again.
type windows struct {
	t    *texts
	size int64
	seen map[uint32][]samples.Row
}

func (w *windows) of(ctx context.Context, p place) ([]samples.Row, error) {
	if out, ok := w.seen[p.merged]; ok {
		return out, nil
	}
	s, err := w.t.get(ctx, p.set, p.index)
	if err != nil {
		return nil, err
	}
	if len(s.IDs) != int(p.row.Length) {
		return nil, fmt.Errorf("dataset %q sample %d holds %d tokens, its row %d", w.t.c.sets[p.set].Name, p.index, len(s.IDs), p.row.Length)
	}
	if int64(len(s.IDs)) > w.size<<24 {
		return nil, fmt.Errorf("dataset %q sample %d: %d tokens make more than %d windows of %d",
			w.t.c.sets[p.set].Name, p.index, len(s.IDs), 1<<24, w.size)
	}
	var out []samples.Row
	for first := 0; first < len(s.IDs); first += int(w.size) {
		end := min(first+int(w.size), len(s.IDs))
		out = append(out, samples.MakeRow(&samples.Sample{IDs: s.IDs[first:end], Mask: s.Mask[first:end]}))
	}
	if w.seen == nil {
		w.seen = map[uint32][]samples.Row{}
	}
	w.seen[p.merged] = out
	return out, nil
}

// mask returns the mask of a piece, as stored.
func (w *windows) mask(ctx context.Context, p place, q piece) ([]byte, error) {
	s, err := w.t.get(ctx, p.set, p.index)
	if err != nil {
		return nil, err
	}
	hi, first := bits.Mul64(uint64(q.window), uint64(w.size))
	if hi != 0 || first+uint64(q.rows) > uint64(len(s.Mask)) {
		return nil, fmt.Errorf("dataset %q sample %d: window %d reaches past its end", w.t.c.sets[p.set].Name, p.index, q.window)
	}
	return s.Mask[first : first+uint64(q.rows)], nil
}
