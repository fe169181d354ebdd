package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// Dataset is one dataset of the configuration.
type Dataset struct {
	Name  string
	Paths []string // files, directories or globs, absolute; expanded in sorted order
}

// The ways to find duplicates.
const (
	DedupContent = "content" // equal ids and mask, within and across datasets: the first in order wins
	DedupNone    = "none"
)

// Options configures a merge.
type Options struct {
	Datasets      []Dataset
	VocabSize     int    // ids at or above it are rejected
	Dedup         string // content (the default) or none
	MaxRejects    human.Share
	MinLossTokens int
	Threads       int         // parsers; 0: all cores. Never changes the result
	Memory        int64       // bytes; 0: 512 MiB
	Reserve       human.Share // of the volume, kept free

	// checkpointBytes and blockSize are smaller in tests; 0: the defaults.
	checkpointBytes int64
	blockSize       int
}

func (o Options) withDefaults() Options {
	if o.Dedup == "" {
		o.Dedup = DedupContent
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Memory <= 0 {
		o.Memory = 512 << 20
	}
	if o.checkpointBytes <= 0 {
		o.checkpointBytes = checkpointBytes
	}
	if o.blockSize <= 0 {
		o.blockSize = blockSize
	}
	return o
}

func (o Options) validate() error {
	if len(o.Datasets) == 0 {
		return errors.New("no datasets to merge")
	}
	seen := map[string]bool{}
	for _, d := range o.Datasets {
		if d.Name == "" {
			return errors.New("a dataset has no name")
		}
		if seen[d.Name] {
			return fmt.Errorf("two datasets are named %q: names must differ", d.Name)
		}
		seen[d.Name] = true
	}
	if o.VocabSize < 1 || o.VocabSize > math.MaxInt32 {
		return fmt.Errorf("vocabulary size %d: want 1 to %d; set model, or merge.vocab_size", o.VocabSize, math.MaxInt32)
	}
	if o.Dedup != DedupContent && o.Dedup != DedupNone {
		return fmt.Errorf("merge.dedup %q: want %s or %s", o.Dedup, DedupContent, DedupNone)
	}
	if o.MinLossTokens < 0 {
		return fmt.Errorf("merge.min_loss_tokens %d: want 0 or more", o.MinLossTokens)
	}
	return nil
}

// Stats is the outcome.
type Stats struct {
	Datasets []store.DatasetRow
}

// leastHeap is what merging needs with the smallest of memtables; a lower limit
// would only keep the collector busy.
const leastHeap = 96 << 20

// Run merges what is not merged yet, from the ledger's cursor. The datasets of
// the ledger must be the first of those configured: others can only be added
// behind them.
//
// Of the phase's row it writes Cursor, Done, Total and Unit only.
//
// While it runs, the Go runtime's memory limit is lowered to three quarters of
// Memory: the collector would otherwise let garbage double what is in use.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (Stats, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Stats{}, err
	}
	was := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(was, max(o.Memory/4*3, leastHeap)))
	defer debug.SetMemoryLimit(was)
	m := &merger{ws: ws, o: o, rep: rep}
	if err := m.load(); err != nil {
		return Stats{}, err
	}
	err := m.run(ctx)
	if m.w != nil {
		err = errors.Join(err, m.w.Close())
	}
	return Stats{Datasets: m.rows}, asDamage(err)
}

// asDamage turns damage found in samples into the error that the command line
// knows.
func asDamage(err error) error {
	var c *samples.CorruptError
	if !errors.As(err, &c) || errors.Is(err, store.ErrCorrupt) {
		return err
	}
	return &store.CorruptError{Path: c.Path, Key: c.Key, Offset: -1, Err: c.Err,
		Hint: "'eaglebatch run --redo merge' makes the samples anew from their sources"}
}

// acceptedKey names the ledger value that accepts a dataset's rejects.
func acceptedKey(dataset string) string { return "rejects-accepted/" + dataset }

// AcceptRejects records that the rejects of a dataset are accepted
// (merge --accept-rejects NAME), so that Run goes on past max_rejects.
func AcceptRejects(ctx context.Context, ws *store.Workspace, dataset string) error {
	return ws.Update(ctx, "accept rejects of "+dataset, func(tx *store.Tx) error {
		rows, err := tx.Datasets()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(rows, func(r store.DatasetRow) bool { return r.Name == dataset }) {
			return fmt.Errorf("no dataset %q has been merged here", dataset)
		}
		return tx.PutValue(acceptedKey(dataset), []byte{1})
	})
}

// Reset forgets the merge (run --redo merge): samples generations become
// reclaimable, numbers are not reused.
func Reset(ctx context.Context, ws *store.Workspace) error {
	return ws.Update(ctx, "reset merge", func(tx *store.Tx) error {
		rows, err := tx.Datasets()
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := tx.DeleteDataset(r.Name); err != nil {
				return err
			}
			if err := tx.PutValue(acceptedKey(r.Name), nil); err != nil {
				return err
			}
		}
		if err := abandonSamples(tx); err != nil {
			return err
		}
		row, ok, err := tx.Phase(store.PhaseMerge)
		if err != nil || !ok {
			return err
		}
		row.Cursor, row.Done, row.Total = nil, 0, 0
		return tx.PutPhase(row)
	})
}

func abandonSamples(tx *store.Tx) error {
	gens, err := tx.Generations()
	if err != nil {
		return err
	}
	for _, g := range gens {
		if g.Kind != KindSamples {
			continue
		}
		switch g.State {
		case store.GenBuilding:
			g.State = store.GenAbandoned
		case store.GenSealed:
			g.State = store.GenRetired
		default:
			continue
		}
		g.Changed = now()
		if err := tx.PutGeneration(g); err != nil {
			return err
		}
	}
	return nil
}
