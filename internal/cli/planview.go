package cli

import (
	"context"
	"fmt"
	"io"

	"eaglebatch/internal/human"
	"eaglebatch/plan"

	"github.com/urfave/cli/v2"
)

func planFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "probe", Usage: "first run `N` samples, stratified by length, to measure rate and ratio"},
		&cli.StringFlag{Name: "html", Usage: "write the report with charts to `FILE`"},
		&cli.StringFlag{Name: "expand-to", Usage: "what if the volume had `SIZE` in all"},
		&cli.BoolFlag{Name: "what-if", Usage: "print every row of the what-if table, not only those that tell the story"},
	}
}

func (j *job) whatIfOptions() (plan.WhatIfOptions, error) {
	o := plan.WhatIfOptions{GPUs: j.cfg.Plan.GPUs, GPUHourPrice: j.cfg.Plan.GPUHourPrice}
	if s := j.c.String("expand-to"); s != "" {
		n, err := human.ParseSize(s)
		if err != nil {
			return o, usagef("--expand-to: %v", err)
		}
		o.ExpandTo = int64(n)
	}
	return o, nil
}

// planReport is the JSON document of plan.
type planReport struct {
	plan.Report
	WhatIf  []plan.WhatIfRow `json:"what_if"`
	Choices []plan.Choice    `json:"choices"`
}

// planExtras shows what lies around the plan: lengths, alternatives, ways out.
func (j *job) planExtras(_ context.Context, rep plan.Report, rows []plan.WhatIfRow) error {
	fmt.Fprintln(j.out)
	if err := plan.WriteHistogram(j.out, rep, 100); err != nil {
		return err
	}
	fmt.Fprintln(j.out)
	if err := plan.WriteOverlong(j.out, rep); err != nil {
		return err
	}
	fmt.Fprintln(j.out)
	shown := plan.Story(rep, rows)
	if j.c.Bool("what-if") {
		shown = rows
	}
	if err := plan.WriteWhatIf(j.out, rep, shown); err != nil {
		return err
	}
	for i, ch := range plan.Choices(rep) {
		if i == 0 {
			fmt.Fprintln(j.out, "\nways out:")
		}
		fmt.Fprintf(j.out, "  %s\n", ch.Text)
		if ch.Accept != "" {
			fmt.Fprintf(j.out, "    %s\n", j.command(j.c, "plan --accept "+quote(ch.Accept)))
		}
	}
	return nil
}

// writeHTML writes the page that --html asks for.
func (j *job) writeHTML(rep plan.Report, rows []plan.WhatIfRow) error {
	path := j.c.String("html")
	if path == "" {
		return nil
	}
	if err := j.fs.WriteFileAtomic(path, func(w io.Writer) error { return plan.WriteHTML(w, rep, rows) }); err != nil {
		return err
	}
	j.rep.Note("wrote %s", path)
	return nil
}
