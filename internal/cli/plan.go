package cli

import (
	"context"
	"slices"

	"eaglebatch/plan"
	"eaglebatch/store"

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
			&cli.BoolFlag{Name: "replace", Usage: "decide anew although what was decided, or planned, is carried out in part"},
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

// checkFlags refuses options that make no sense before anything is done.
func (j *job) checkFlags() error {
	if j.c.IsSet("probe") && j.c.Int("probe") < 1 {
		return usagef("--probe %d: want a number of samples, such as 40", j.c.Int("probe"))
	}
	if j.c.IsSet("accept") && j.c.Bool("withdraw") {
		return usagef("--accept and --withdraw exclude each other: --accept replaces the decision recorded so far")
	}
	if j.c.Bool("replace") && !j.c.IsSet("accept") && !j.c.Bool("withdraw") {
		return usagef("--replace says that --accept or --withdraw may undo what is half done: give one of them")
	}
	_, err := j.whatIfOptions()
	return err
}

func (j *job) report(ctx context.Context) (rep plan.Report, err error) {
	err = j.ws.View(func(r store.Reader) error {
		rep, err = plan.BuildReport(ctx, r, j.ws, &plan.Terms{Rate: j.cfg.Plan.TokensPerSecond, Reserve: j.cfg.Plan.Reserve, Identity: j.identityOf, Decided: j.accept.Values})
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
		return j.printJSON(planReport{rep, rows, plan.Choices(rep), plan.Cautions(rep.Plan)})
	}
	return j.printPlan(rep, rows)
}
