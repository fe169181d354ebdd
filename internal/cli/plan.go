package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"eaglebatch/extract"
	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
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
		rep, err = plan.BuildReport(ctx, r, j.ws)
		return err
	})
	return rep, err
}

// proof seals the first samples of the plan as a generation of their own, in
// the room there is, so that the decision is made on states that were checked.
// The main generation points to them later: nothing is computed twice.
func (j *job) proof(ctx context.Context, p store.PlanRow) error {
	n := min(j.cfg.Plan.Proof, p.Samples)
	if n <= 0 {
		return nil
	}
	done, err := j.proofSealed()
	if err != nil || done {
		return err
	}
	o, err := j.planOptions()
	if err != nil {
		return err
	}
	if err := j.runner().Redo(ctx, store.PhasePlan); err != nil {
		return err
	}
	o.Limit = n
	small, err := plan.Run(ctx, j.ws, o, j.rep)
	if err != nil {
		return err
	}
	if small.Decision == store.Short {
		j.rep.Note("there is no room even for a proof of %d samples", n)
	} else if err := j.sealProof(ctx, n); err != nil {
		return err
	}
	if err := j.resetExtract(ctx); err != nil {
		return err
	}
	_, err = j.plan(ctx)
	return err
}

// resetExtract makes the extract phase pending again: what the proof counted
// there is not progress of the plan to come.
func (j *job) resetExtract(ctx context.Context) error {
	return j.ws.Update(ctx, "proof sealed", func(tx *store.Tx) error {
		return tx.PutPhase(store.PhaseRow{Name: store.PhaseExtract, State: store.Pending})
	})
}

func (j *job) sealProof(ctx context.Context, n int64) error {
	x, done, err := j.extractOptions(ctx)
	if err != nil {
		return err
	}
	defer done()
	x.Kind = "proof"
	r, err := extract.Run(ctx, j.ws, x, j.rep)
	if err != nil {
		return fmt.Errorf("proof: %w", err)
	}
	if r.Stopped {
		return fmt.Errorf("%w: proof of %d samples", errInterrupted, n)
	}
	j.rep.Note("a proof of %s samples is sealed as generation %d (%s)", human.Count(r.Generation.Samples), r.Generation.ID, human.Bytes(r.Generation.Bytes))
	return nil
}

// proofSealed says whether a proof of the same identity is there already.
func (j *job) proofSealed() (found bool, err error) {
	err = j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			if g.Kind == "proof" && g.State == store.GenSealed && slices.Equal(g.Identity, j.identity()) {
				found = true
			}
		}
		return err
	})
	return found, err
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
	if err := j.printPlan(rep); err != nil {
		return err
	}
	return j.planExtras(ctx, rep, rows)
}

func (j *job) printPlan(rep plan.Report) error {
	p := rep.Plan
	w := tabwriter.NewWriter(j.out, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "dataset\tsamples\ttokens\tloss tokens\tp50\tp90\tp99\tlongest\tshare\tafter cap\t")
	for _, d := range rep.Datasets {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t%.1f%%\t\n", d.Name, human.Count(d.Samples), human.Count(d.Tokens), human.Count(d.LossTokens),
			human.Count(d.P50), human.Count(d.P90), human.Count(d.P99), human.Count(d.Max), 100*d.Share, 100*d.CapShare)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "\n%s samples, %s tokens planned; %s new, %s reused, %s repeated\n",
		human.Count(p.Samples), human.Count(p.Tokens), human.Count(p.NewSamples), human.Count(p.Reused), human.Count(p.Repeated))
	fmt.Fprintf(j.out, "dropped %s, over-length %s, emptied by the cap %s, truncated %s (%s tokens lost)\n",
		human.Count(p.Dropped), human.Count(p.OverLength), human.Count(p.Emptied), human.Count(p.Truncated), human.Count(p.LostTokens))
	fmt.Fprintf(j.out, "layers %v, %s: %s bytes a token, %s raw (%s TB), %s expected, %d blobs of %s\n",
		p.Layers, p.DType, human.Count(p.BytesPerToken), human.Bytes(p.RawBytes), tera(p.RawBytes), human.Bytes(p.ExpectedBytes), p.Blobs, human.Bytes(p.BlobBytes))
	if p.Seconds > 0 {
		fmt.Fprintf(j.out, "time %s at %s tokens/s\n", human.Duration(time.Duration(p.Seconds*float64(time.Second))), human.Count(int64(p.Rate)))
	} else {
		fmt.Fprintln(j.out, "time unknown: no rate was measured (plan --probe N) or given (plan.tokens_per_second)")
	}
	fmt.Fprintf(j.out, "free %s, reserve %s, reclaimable %s: %s", human.Bytes(p.DiskFree), human.Bytes(p.Reserve), human.Bytes(p.Reclaimable), p.Decision)
	if p.ShortBy > 0 {
		fmt.Fprintf(j.out, " by %s", human.Bytes(p.ShortBy))
	}
	fmt.Fprintln(j.out)
	if j.accept.Values != nil {
		fmt.Fprintf(j.out, "decision of %s in force: %v\n", j.accept.At.Local().Format("2006-01-02 15:04"), j.accept.Values)
	}
	fmt.Fprintf(j.out, "blobs: %s\n", rep.BlobWhy)
	return nil
}

// tera is n bytes in TB with three significant digits.
func tera(n int64) string {
	tb := float64(n) / 1e12
	switch {
	case tb >= 100:
		return fmt.Sprintf("%.0f", tb)
	case tb >= 10:
		return fmt.Sprintf("%.1f", tb)
	case tb >= 1:
		return fmt.Sprintf("%.2f", tb)
	}
	return fmt.Sprintf("%.3g", tb)
}
