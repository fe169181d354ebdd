package permute

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// selection is which rows of the merged index the order has, before it is
// permuted.
type selection struct {
	merged     int64
	n          int64    // training positions
	train      []uint32 // nil: every row once
	eval       []uint32
	subsampled int64
	repeated   int64
	twins      int64
}

// selectRows applies eval and weights.
func selectRows(ctx context.Context, ws *store.Workspace, rows []store.DatasetRow, o Options) (*selection, error) {
	s := &selection{}
	for _, r := range rows {
		s.merged += r.Accepted
	}
	plain, most := true, 0.0
	for _, r := range rows {
		plain = plain && o.weight(r.Name) == 1 && o.Eval[r.Name] == 0
		most += math.Ceil(o.weight(r.Name)) * float64(r.Accepted)
	}
	if most > math.MaxUint32 {
		return nil, fmt.Errorf("the weights make about %.0f positions: an order holds at most %d", most, uint32(math.MaxUint32))
	}
	if plain {
		s.n = s.merged
		return s, nil
	}
	out, err := s.takeEval(ctx, ws, rows, o)
	if err != nil {
		return nil, err
	}
	s.takeTrain(rows, o, out)
	return s, nil
}

// takeEval draws the eval samples and returns all rows that training must not
// see: these and their twins.
func (s *selection) takeEval(ctx context.Context, ws *store.Workspace, rows []store.DatasetRow, o Options) (set, error) {
	out := newSet(s.merged)
	base := int64(0)
	for _, r := range rows {
		if k := o.Eval[r.Name]; k > 0 {
			chosen := choose(drawer(o.Seed, "eval", r.Name), r.Accepted, k)
			for i := range r.Accepted {
				if chosen.has(i) {
					out.put(base + i)
					s.eval = append(s.eval, uint32(base+i))
				}
			}
		}
		base += r.Accepted
	}
	if len(s.eval) == 0 {
		return out, nil
	}
	contents := make(map[[16]byte]struct{}, len(s.eval))
	err := eachContent(ctx, ws, rows, func(i int64, c [16]byte) {
		if out.has(i) {
			contents[c] = struct{}{}
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachContent(ctx, ws, rows, func(i int64, c [16]byte) {
		if _, twin := contents[c]; twin && !out.has(i) {
			out.put(i)
			s.twins++
		}
	})
	return out, err
}

// eachContent calls fn with every row of the merged index and its content
// hash.
func eachContent(ctx context.Context, ws *store.Workspace, rows []store.DatasetRow, fn func(int64, [16]byte)) error {
	n := int64(0)
	for _, r := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		index, err := samples.OpenRows(ws.SamplesDir(r.SamplesGen), r.FirstRow+r.Accepted)
		if err != nil {
			return err
		}
		for i := r.FirstRow; i < index.Len(); i++ {
			fn(n, index.Content(i))
			n++
		}
		if err := index.Close(); err != nil {
			return err
		}
	}
	return nil
}

// takeTrain lists the training positions: of each dataset what is not in out,
// as often as its weight says.
func (s *selection) takeTrain(rows []store.DatasetRow, o Options, out set) {
	s.train = []uint32{}
	base := int64(0)
	for _, r := range rows {
		w := o.weight(r.Name)
		left := make([]uint32, 0, r.Accepted)
		for i := base; i < base+r.Accepted; i++ {
			if !out.has(i) {
				left = append(left, uint32(i))
			}
		}
		base += r.Accepted
		times, fraction := math.Modf(w)
		for range int(times) {
			s.train = append(s.train, left...)
		}
		k := int64(math.Round(fraction * float64(len(left))))
		if k > 0 {
			chosen := choose(drawer(o.Seed, "weight", r.Name), int64(len(left)), k)
			for i, row := range left {
				if chosen.has(int64(i)) {
					s.train = append(s.train, row)
				}
			}
		}
		if w < 1 {
			s.subsampled += int64(len(left)) - k
		} else {
			s.repeated += (int64(times)-1)*int64(len(left)) + k
		}
	}
	s.n = int64(len(s.train))
}

// order yields the training positions permuted, then the eval positions,
// permuted among themselves. It uses the selection up.
func (s *selection) order(algorithm string, seed uint64) iter.Seq[uint32] {
	eval := append([]uint32(nil), s.eval...)
	drawer(seed, "eval order", "").shuffle(eval)
	return func(yield func(uint32) bool) {
		next := s.numpy
		if algorithm == Feistel {
			next = s.feistel
		}
		if !next(seed, yield) {
			return
		}
		for _, r := range eval {
			if !yield(r) {
				return
			}
		}
	}
}

// numpy shuffles the training rows in place: what comes to lie at i is
// train[permutation(n)[i]].
func (s *selection) numpy(seed uint64, yield func(uint32) bool) bool {
	a := s.train
	if a == nil {
		a = make([]uint32, s.n)
		for i := range a {
			a[i] = uint32(i)
		}
	}
	newPCG64(seed).shuffle(a)
	for _, r := range a {
		if !yield(r) {
			return false
		}
	}
	return true
}

func (s *selection) feistel(seed uint64, yield func(uint32) bool) bool {
	f := newFeistel(uint64(s.n), seed)
	for i := range uint64(s.n) {
		r := uint32(f.at(i))
		if s.train != nil {
			r = s.train[r]
		}
		if !yield(r) {
			return false
		}
	}
	return true
}

// asDamage turns damage found in samples into the error that the command line
// knows.
func asDamage(err error) error {
	var c *samples.CorruptError
	if !errors.As(err, &c) {
		return err
	}
	return &store.CorruptError{Path: c.Path, Key: c.Key, Offset: -1, Err: c.Err,
		Hint: "'eaglebatch run --redo merge' makes the samples anew from their sources"}
}
