package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"eaglebatch/gc"
	"eaglebatch/ingest"
	"eaglebatch/internal/human"
	"eaglebatch/internal/pipeline"
	"eaglebatch/permute"
	"eaglebatch/plan"
	"eaglebatch/store"
)

func (j *job) mergePhase(o ingest.Options) pipeline.Phase {
	return pipeline.Phase{
		Name: store.PhaseMerge,
		Fingerprint: func(ctx context.Context) (fp []store.Part, err error) {
			err = j.ws.View(func(r store.Reader) error {
				fp, err = ingest.Fingerprint(ctx, r, o)
				return err
			})
			return fp, err
		},
		Run: func(ctx context.Context) error {
			_, err := ingest.Run(ctx, j.ws, o, j.rep)
			return j.addressed(err)
		},
		Reset:   func(ctx context.Context) error { return ingest.Reset(ctx, j.ws) },
		Extends: appendsDatasets,
		Cost: func() string {
			return "every dataset is read and stored again; states of samples that stay the same are kept"
		},
	}
}

// addressed makes the commands of a decision those for this configuration.
func (j *job) addressed(err error) error {
	var d *store.DecisionError
	if errors.As(err, &d) {
		for i, s := range d.Commands {
			if args, ok := strings.CutPrefix(s, "eaglebatch "); ok {
				d.Commands[i] = j.command(j.c, args)
			}
		}
	}
	return err
}

// appendsDatasets holds when only datasets were added at the end: what is
// merged stands, and only the new ones are read.
func appendsDatasets(old, now []store.Part) bool {
	if len(now) <= len(old) || !slices.Equal(old, now[:len(old)]) {
		return false
	}
	return !slices.ContainsFunc(now[len(old):], func(p store.Part) bool { return !strings.HasPrefix(p.Key, "dataset ") })
}

func (j *job) shufflePhase() pipeline.Phase {
	o := j.permuteOptions()
	return pipeline.Phase{
		Name:        store.PhaseShuffle,
		Fingerprint: func(ctx context.Context) ([]store.Part, error) { return permute.Fingerprint(ctx, j.ws, o) },
		Run: func(ctx context.Context) error {
			_, err := permute.Run(ctx, j.ws, o, j.rep)
			return err
		},
		Cost: func() string {
			return "a new order; sealed states are kept and pointed to, only samples not seen yet are computed" + j.openCost()
		},
	}
}

func (j *job) planPhase(o plan.Options) pipeline.Phase {
	return pipeline.Phase{
		Name:        store.PhasePlan,
		Fingerprint: func(ctx context.Context) ([]store.Part, error) { return plan.Fingerprint(ctx, j.ws, o) },
		Run:         func(ctx context.Context) error { return j.makePlan(ctx, o) },
		Cost: func() string {
			return "a new plan; sealed states of the same model, layers, dtype and engine are pointed to, others are computed anew" + j.openCost()
		},
	}
}

// openCost says what becomes of a half-built generation when an earlier phase
// is redone.
func (j *job) openCost() string {
	var out string
	err := j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			if g.State != store.GenBuilding || g.Kind == kindSamples {
				continue
			}
			blobs, err := r.Blobs(g.ID)
			if err != nil {
				return err
			}
			var n, bytes int64
			for _, b := range blobs {
				n, bytes = n+b.Samples, bytes+b.Bytes
			}
			out = fmt.Sprintf("; generation %d, half built with %s samples (%s), becomes abandoned", g.ID, human.Count(n), human.Bytes(bytes))
		}
		return err
	})
	if err != nil {
		return fmt.Sprintf("; what is half built cannot be told: %v", err)
	}
	return out
}

const kindSamples = "samples"

// gcPhase carries out what the recorded decision names, and nothing else.
func (j *job) gcPhase() pipeline.Phase {
	names := j.gcNames()
	return pipeline.Phase{
		Name: store.PhaseGC,
		Fingerprint: func(context.Context) ([]store.Part, error) {
			p, err := j.planRow()
			return []store.Part{{Key: "plan", Value: fmt.Sprint(p.ID)}, {Key: "gc", Value: strings.Join(names, "+")}}, err
		},
		Run: func(ctx context.Context) error {
			if len(names) == 0 {
				return nil
			}
			o := j.gcOptions()
			o.Names, o.Now, o.NoFallback = names, true, true
			sweep, err := gc.Plan(ctx, j.ws, o)
			if err != nil {
				return err
			}
			freed, err := gc.Execute(ctx, j.ws, sweep, o, j.rep)
			if errors.Is(err, gc.ErrRefused) {
				return withHint(err, "%s forgets the decision; plan --accept records another", j.command(j.c, "plan --withdraw"))
			}
			if err != nil {
				return err
			}
			j.rep.Note("gc: %s deleted as decided (%s); the filesystem has %s", strings.Join(names, ", "), human.Sized(sweep.Free), moreFree(freed, sweep.Free))
			return nil
		},
	}
}

// abandonOpen marks half-built generations that the plan in force does not
// continue.
func (j *job) abandonOpen(ctx context.Context) error {
	p, err := j.planRow()
	if err != nil {
		return err
	}
	return j.ws.Update(ctx, "abandon", func(tx *store.Tx) error {
		gens, err := tx.Generations()
		if err != nil {
			return err
		}
		for _, g := range gens {
			if g.State != store.GenBuilding || g.Kind == kindSamples || g.Plan == p.ID {
				continue
			}
			g.State, g.Changed = store.GenAbandoned, j.runner().Now()
			j.rep.Note("generation %d (%s) was half built for an earlier plan: abandoned, gc can reclaim it", g.ID, g.Name)
			if err := tx.PutGeneration(g); err != nil {
				return err
			}
		}
		return nil
	})
}
