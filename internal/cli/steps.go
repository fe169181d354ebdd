package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"eaglebatch/ingest"
	"eaglebatch/internal/human"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

// withJob loads the configuration, opens the workspace and derives the job.
func (e *env) withJob(c *cli.Context, create bool, fn func(*job) error) error {
	if err := noArgs(c); err != nil {
		return err
	}
	cfg, err := e.load(c)
	if err != nil {
		return err
	}
	return e.withSession(c, cfg, create, func(s *session) error {
		j, err := newJob(s)
		if err != nil {
			return err
		}
		return fn(j)
	})
}

func (e *env) mergeCommand() *cli.Command {
	return &cli.Command{
		Name:  "merge",
		Usage: "read the datasets into the workspace, every line accounted for",
		Flags: slices.Concat([]cli.Flag{
			jsonFlag(),
			&cli.StringSliceFlag{Name: "accept-rejects", Usage: "go on although dataset `NAME` has more rejected lines than max_rejects"},
		}, settingFlags(mergeSettings())),
		Action: func(c *cli.Context) error {
			return e.withJob(c, true, func(j *job) error {
				for _, name := range c.StringSlice("accept-rejects") {
					if err := ingest.AcceptRejects(c.Context, j.ws, name); err != nil {
						return err
					}
				}
				if _, err := j.merge(c.Context); err != nil {
					return err
				}
				return j.reportMerge()
			})
		},
	}
}

func (j *job) reportMerge() error {
	var rows []store.DatasetRow
	if err := j.ws.View(func(r store.Reader) (err error) {
		rows, err = r.Datasets()
		return err
	}); err != nil {
		return err
	}
	if j.c.Bool("json") {
		return j.printJSON(map[string]any{"datasets": datasetDocs(rows)})
	}
	return j.printDatasets(rows)
}

func (e *env) printDatasets(rows []store.DatasetRow) error {
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "dataset\tlines\taccepted\tduplicates\tblank\trejected\ttokens\tloss tokens\tlongest\t")
	for _, d := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", d.Name, human.Count(d.Lines), human.Count(d.Accepted),
			human.Count(d.Duplicates), human.Count(d.Blank), human.Count(d.Rejected), human.Count(d.Tokens), human.Count(d.LossTokens), human.Count(d.MaxTokens))
	}
	return w.Flush()
}

func (e *env) shuffleCommand() *cli.Command {
	return &cli.Command{
		Name:  "shuffle",
		Usage: "make the seeded order of the merged samples",
		Flags: slices.Concat([]cli.Flag{jsonFlag()}, settingFlags(shuffleSettings())),
		Action: func(c *cli.Context) error {
			return e.withJob(c, false, func(j *job) error {
				if _, err := j.shuffle(c.Context); err != nil {
					return err
				}
				var o store.OrderRow
				if err := j.ws.View(func(r store.Reader) (err error) {
					o, _, err = r.Order()
					return err
				}); err != nil {
					return err
				}
				if c.Bool("json") {
					return j.printJSON(shuffleDocOf(o))
				}
				fmt.Fprintf(j.out, "%s positions in order (%s, seed %d), %s set aside for eval; sha256 %s\n",
					human.Count(o.N), o.Algorithm, o.Seed, human.Count(o.Eval), o.Hash)
				return nil
			})
		},
	}
}

func (e *env) extractCommand() *cli.Command {
	return &cli.Command{
		Name:  "extract",
		Usage: "run the planned samples through the engine into blobs and seal the generation",
		Flags: slices.Concat([]cli.Flag{
			jsonFlag(),
			&cli.BoolFlag{Name: "retry-quarantined", Usage: "make a new generation that tries the quarantined samples again"},
		}, stopFlags(), settingFlags(extractSettings())),
		Action: func(c *cli.Context) error {
			return e.withJob(c, false, func(j *job) error { return j.extractOnly(c.Context) })
		},
	}
}

func (j *job) extractOnly(ctx context.Context) error {
	l, err := stopAt(j.c, j.runner().Now())
	if err != nil {
		return err
	}
	if err := j.needModel("extract"); err != nil {
		return err
	}
	if j.c.Bool("retry-quarantined") {
		return j.retryQuarantined(ctx)
	}
	if err := j.require(ctx, store.PhaseMerge, store.PhaseShuffle, store.PhasePlan); err != nil {
		return err
	}
	if err := j.decide(ctx); err != nil {
		return err
	}
	r, did, err := j.extract(ctx, l, "states")
	if err != nil {
		return err
	}
	return j.finished(ctx, r, did)
}

// retryQuarantined plans again, which points to all that is sealed and leaves
// only the quarantined samples to compute, and extracts those.
func (j *job) retryQuarantined(ctx context.Context) error {
	p, err := j.planRow()
	if err != nil {
		return err
	}
	var g store.GenerationRow
	if err := j.ws.View(func(r store.Reader) (err error) {
		g, _, err = r.Generation(p.Generation)
		return err
	}); err != nil {
		return err
	}
	if g.State != store.GenSealed {
		return withHint(errors.New("the generation is not sealed yet"), "%s", j.command(j.c, "extract"))
	}
	if g.Quarantined == 0 {
		fmt.Fprintf(j.out, "generation %d has no quarantined samples\n", g.ID)
		return nil
	}
	return j.replan(ctx)
}

// replan makes the plan anew over what is sealed and extracts what is missing.
func (j *job) replan(ctx context.Context) error {
	if err := j.runner().Redo(ctx, store.PhasePlan); err != nil {
		return err
	}
	return j.goOn(ctx)
}

// goOn plans where that is to be done, and extracts what is missing.
func (j *job) goOn(ctx context.Context) error {
	if _, err := j.plan(ctx); err != nil {
		return err
	}
	if _, err := j.do(ctx, j.gcPhase()); err != nil {
		return err
	}
	r, did, err := j.extract(ctx, limits{}, "repair")
	if err != nil {
		return err
	}
	return j.finished(ctx, r, did)
}

func (e *env) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "the version and the formats it reads and writes",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			v := versionDoc()
			if c.Bool("json") {
				return e.printJSON(v)
			}
			fmt.Fprintf(e.out, "eaglebatch %s (%s, workspace format %d)\n", v.Version, v.Go, v.WorkspaceFormat)
			return nil
		},
	}
}
