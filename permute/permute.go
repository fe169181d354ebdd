package permute

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// The algorithms.
const (
	Numpy   = "numpy"
	Feistel = "feistel"
)

// Options configures the shuffle.
type Options struct {
	Seed      uint64
	Algorithm string             // numpy (the default) or feistel
	Weights   map[string]float64 // by dataset; 1 where missing. 2.5: twice, and half of it a third time; 0.3: a seeded 30%
	Eval      map[string]int64   // samples set aside, by dataset
}

func (o Options) algorithm() string {
	if o.Algorithm == "" {
		return Numpy
	}
	return o.Algorithm
}

func (o Options) weight(dataset string) float64 {
	if w, ok := o.Weights[dataset]; ok {
		return w
	}
	return 1
}

// validate checks o against the merged datasets.
func (o Options) validate(rows []store.DatasetRow) error {
	if a := o.algorithm(); a != Numpy && a != Feistel {
		return fmt.Errorf("shuffle.algorithm %q: want %s or %s", a, Numpy, Feistel)
	}
	count := map[string]int64{}
	for _, r := range rows {
		count[r.Name] = r.Accepted
	}
	names := slices.Sorted(maps.Keys(count))
	for _, d := range slices.Sorted(maps.Keys(o.Weights)) {
		if _, ok := count[d]; !ok {
			return fmt.Errorf("weight of %q: there is no such dataset; there are %s", d, strings.Join(names, ", "))
		}
		if w := o.Weights[d]; !(w >= 0 && w <= 1e6) {
			return fmt.Errorf("weight of %q: %v is not between 0 and a million", d, w)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(o.Eval)) {
		n, ok := count[d]
		if !ok {
			return fmt.Errorf("eval of %q: there is no such dataset; there are %s", d, strings.Join(names, ", "))
		}
		if e := o.Eval[d]; e < 0 || e > n {
			return fmt.Errorf("eval of %q: %d samples asked for, the dataset has %d", d, e, n)
		}
	}
	return nil
}

// partRows is the part that ingest records with each merged dataset: the hash
// over the content of its rows.
const partRows = "rows"

// Fingerprint returns the parts the order depends on: seed, algorithm, weights,
// eval, and the merged rows (per dataset: count and content hash of its rows).
func Fingerprint(_ context.Context, ws *store.Workspace, o Options) (parts []store.Part, err error) {
	add := func(key, value string) { parts = append(parts, store.Part{Key: key, Value: value}) }
	add("shuffle.seed", strconv.FormatUint(o.Seed, 10))
	add("shuffle.algorithm", o.algorithm())
	err = ws.View(func(r store.Reader) error {
		rows, err := merged(r)
		if err != nil {
			return err
		}
		for _, row := range rows {
			hash := ""
			for _, p := range row.Fingerprint {
				if p.Key == partRows {
					hash = p.Value
				}
			}
			add("samples of "+row.Name, fmt.Sprintf("%d, %s", row.Accepted, hash))
			if w := o.weight(row.Name); w != 1 {
				add("weight of "+row.Name, strconv.FormatFloat(w, 'g', -1, 64))
			}
			if n := o.Eval[row.Name]; n > 0 {
				add("eval of "+row.Name, strconv.FormatInt(n, 10))
			}
		}
		return nil
	})
	return parts, err
}

// merged returns the datasets, all of which must be merged.
func merged(r store.Reader) ([]store.DatasetRow, error) {
	rows, err := r.Datasets()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("nothing is merged yet: run merge first")
	}
	for _, row := range rows {
		if !row.Done {
			return nil, fmt.Errorf("dataset %q is not merged yet: run merge first", row.Name)
		}
	}
	return rows, nil
}

// Run makes the order and records it. Of the phase's row it writes Done, Total
// and Unit only.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (store.OrderRow, error) {
	var rows []store.DatasetRow
	err := ws.View(func(r store.Reader) (err error) {
		rows, err = merged(r)
		return err
	})
	if err != nil {
		return store.OrderRow{}, err
	}
	if err := o.validate(rows); err != nil {
		return store.OrderRow{}, err
	}
	sel, err := selectRows(ctx, ws, rows, o)
	if err != nil {
		return store.OrderRow{}, asDamage(err)
	}
	row := store.OrderRow{
		Algorithm: o.algorithm(), Seed: o.Seed, N: sel.n, Eval: int64(len(sel.eval)), Merged: sel.merged,
		Subsampled: sel.subsampled, EvalTwins: sel.twins, Repeated: sel.repeated,
	}
	if row.N+row.Eval == 0 {
		return row, errors.New("there is nothing to shuffle: no sample was accepted, or weights leave none")
	}
	if row.N < feistelLeast {
		row.Algorithm = Numpy
	}
	rep.Start(progress.Phase{Name: store.PhaseShuffle, Unit: "samples", Total: row.N + row.Eval})
	defer rep.Finish()
	if err := record(ctx, ws, &row, sel, rep); err != nil {
		return row, err
	}
	return row, nil
}

// record writes the order file, then the ledger.
func record(ctx context.Context, ws *store.Workspace, row *store.OrderRow, sel *selection, rep progress.Reporter) error {
	err := ws.Update(ctx, "number an order", func(tx *store.Tx) (err error) {
		row.ID, err = tx.Next("order")
		return err
	})
	if err != nil {
		return err
	}
	if err := ws.FS().Point(fault.ShuffleBeforeOrder); err != nil {
		return err
	}
	hash, n, err := ws.WriteOrder(ctx, row.ID, counted(sel.order(row.Algorithm, row.Seed), rep))
	if err != nil {
		return err
	}
	if n != row.N+row.Eval {
		return fmt.Errorf("order %d has %d positions, %d were to be written", row.ID, n, row.N+row.Eval)
	}
	row.Hash = hash
	if err := ws.FS().Point(fault.ShuffleAfterOrder); err != nil {
		return err
	}
	return ws.Update(ctx, "shuffle", func(tx *store.Tx) error {
		phase, ok, err := tx.Phase(store.PhaseShuffle)
		if err != nil {
			return err
		}
		if !ok {
			phase = store.PhaseRow{Name: store.PhaseShuffle, State: store.Running}
		}
		phase.Done, phase.Total, phase.Unit = n, n, "samples"
		return errors.Join(tx.PutOrder(*row), tx.PutPhase(phase))
	})
}

// counted reports progress as rows pass.
func counted(rows iter.Seq[uint32], rep progress.Reporter) iter.Seq[uint32] {
	const every = 1 << 16
	return func(yield func(uint32) bool) {
		n := int64(0)
		for r := range rows {
			if !yield(r) {
				return
			}
			if n++; n == every {
				rep.Add(progress.Delta{Units: n})
				n = 0
			}
		}
		rep.Add(progress.Delta{Units: n})
	}
}
