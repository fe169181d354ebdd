package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/config"
	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/retain"

	"github.com/urfave/cli/v2"
)

func (e *env) planCommand() *cli.Command {
	return &cli.Command{
		Name:  "plan",
		Usage: "lengths, bytes, hours, blob boundaries and whether it fits",
		Description: "Makes the plan and shows it. With --accept records a decision: keys as in the plan\n" +
			"section, laid over it until that section is edited, and gc=NAME to let run delete\n" +
			"generation NAME now, knowing that nothing newer replaces it yet.\n\n" +
			"  eaglebatch plan --accept max_tokens=8192,drop=A1_deepswekimi,gc=old-10k",
		Flags: slices.Concat([]cli.Flag{
			jsonFlag(),
			&cli.StringFlag{Name: "accept", Usage: "record the decision `KEY=VALUE,…` and plan by it"},
			&cli.BoolFlag{Name: "withdraw", Usage: "forget the recorded decision"},
		}, planFlags(), settingFlags(planSettings())),
		Action: func(c *cli.Context) error {
			return e.withJob(c, false, func(j *job) error { return j.planOnly(c.Context) })
		},
	}
}

func (j *job) planOnly(ctx context.Context) error {
	if err := j.checkFlags(); err != nil {
		return err
	}
	if j.c.IsSet("accept") {
		if err := j.acceptDecision(ctx, j.c.String("accept")); err != nil {
			return err
		}
	}
	if j.c.Bool("withdraw") {
		if err := j.withdraw(ctx); err != nil {
			return err
		}
	}
	if j.c.Int("probe") > 0 {
		if err := j.probe(ctx, j.c.Int("probe")); err != nil {
			return err
		}
	}
	if _, err := j.plan(ctx); err != nil {
		return err
	}
	return j.showPlan(ctx)
}

// makePlan makes the plan and counts its samples in the row of the phase.
func (j *job) makePlan(ctx context.Context, o plan.Options) error {
	p, err := plan.Run(ctx, j.ws, o, j.rep)
	if err != nil {
		return err
	}
	return j.ws.Update(ctx, "planned", func(tx *store.Tx) error {
		row, _, err := tx.Phase(store.PhasePlan)
		if err != nil {
			return err
		}
		row.Name, row.Done, row.Total, row.Unit = store.PhasePlan, p.Samples, p.Samples, "samples"
		return tx.PutPhase(row)
	})
}

// acceptDecision records a decision and makes the plan stale, since it may say
// otherwise now. One that cannot be carried out is refused, and what was
// decided before stays.
func (j *job) acceptDecision(ctx context.Context, text string) error {
	values, err := plan.ParseAccept(text)
	if err != nil {
		return usagef("--accept: %v", err)
	}
	a := store.Acceptance{Values: values, PlanYAML: hashText(j.cfg.PlanText), At: time.Now().UTC()}
	before, err := j.checkDecision(a)
	if err != nil {
		return err
	}
	if err := j.ws.Update(ctx, "accept", func(tx *store.Tx) error { return tx.PutAcceptance(a) }); err != nil {
		return err
	}
	if err := j.applyAcceptance(); err != nil {
		undo := func(tx *store.Tx) error {
			if before.Values == nil {
				return tx.ClearAcceptance()
			}
			return tx.PutAcceptance(before)
		}
		return errors.Join(err, j.ws.Update(ctx, "refused", undo))
	}
	return j.runner().Redo(ctx, store.PhasePlan)
}

// checkDecision returns the decision recorded so far, and fails where a names
// what is not there.
func (j *job) checkDecision(a store.Acceptance) (before store.Acceptance, err error) {
	err = j.ws.View(func(r store.Reader) error {
		if before, _, err = r.Acceptance(); err != nil {
			return err
		}
		gens, err := r.Generations()
		if err != nil || a.Values["gc"] == "" {
			return err
		}
		for _, name := range strings.Split(a.Values["gc"], "+") {
			if err := retain.Known(gens, name); err != nil {
				return withHint(usagef("--accept: gc: %v", err), "%s", j.command(j.c, "generations"))
			}
		}
		return nil
	})
	if err != nil {
		return before, err
	}
	for _, name := range strings.FieldsFunc(a.Values["drop"], func(c rune) bool { return c == '+' }) {
		if !slices.ContainsFunc(j.cfg.Datasets, func(d config.Dataset) bool { return d.Name == name }) {
			return before, usagef("--accept: drop: there is no dataset %q in %s", name, j.cfg.File)
		}
	}
	return before, nil
}

// checkFlags refuses options that make no sense before anything is done.
func (j *job) checkFlags() error {
	if j.c.IsSet("probe") && j.c.Int("probe") < 1 {
		return usagef("--probe %d: want a number of samples, such as 40", j.c.Int("probe"))
	}
	if j.c.IsSet("accept") && j.c.Bool("withdraw") {
		return usagef("--accept and --withdraw exclude each other: --accept replaces the decision recorded so far")
	}
	_, err := j.whatIfOptions()
	return err
}

func (j *job) withdraw(ctx context.Context) error {
	if err := j.ws.Update(ctx, "withdraw", func(tx *store.Tx) error { return tx.ClearAcceptance() }); err != nil {
		return err
	}
	cfg, err := j.load(j.c)
	if err != nil {
		return err
	}
	j.cfg, j.accept = cfg, store.Acceptance{}
	return j.runner().Redo(ctx, store.PhasePlan)
}

func (j *job) report(ctx context.Context) (rep plan.Report, err error) {
	err = j.ws.View(func(r store.Reader) error {
		rep, err = plan.BuildReport(ctx, r, j.ws, &plan.Terms{Rate: j.cfg.Plan.TokensPerSecond, Reserve: j.cfg.Plan.Reserve})
		return err
	})
	return rep, err
}

func (j *job) showPlan(ctx context.Context) error {
	rep, err := j.report(ctx)
	if err != nil {
		return err
	}
	o, err := j.whatIfOptions()
	if err != nil {
		return err
	}
	rows := plan.WhatIf(rep, o)
	if err := j.writeHTML(rep, rows); err != nil {
		return err
	}
	if j.c.Bool("json") {
		return j.printJSON(planReport{rep, rows, plan.Choices(rep)})
	}
	if !j.c.Bool("what-if") {
		rows = plan.Story(rep, rows)
	}
	return j.printPlan(rep, rows)
}
