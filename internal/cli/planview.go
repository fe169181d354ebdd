package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"eaglebatch/internal/human"
	"eaglebatch/plan"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

func planFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "probe", Usage: "first run `N` samples as the plan mixes them, and some of each length, to measure rate and ratio"},
		&cli.StringFlag{Name: "html", Usage: "write the report with charts to `FILE`"},
		&cli.StringFlag{Name: "expand-to", Usage: "what if the volume had `SIZE` in all"},
		&cli.BoolFlag{Name: "what-if", Usage: "print more of the what-if table than the rows that tell the story; --json has all of it"},
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
	Notes   []string         `json:"notes,omitempty"`
}

// printPlan shows the plan, what it rests on, and what lies around it: lengths,
// alternatives, ways out.
func (j *job) printPlan(rep plan.Report, rows []plan.WhatIfRow) error {
	width := j.width()
	if err := j.printMix(rep, width); err != nil {
		return err
	}
	j.printFigures(rep)
	fmt.Fprintln(j.out)
	if err := plan.WriteHistogram(j.out, rep, min(width, 100)); err != nil {
		return err
	}
	fmt.Fprintln(j.out)
	if err := plan.WriteOverlong(j.out, rep); err != nil {
		return err
	}
	if len(rep.Overlong) > 0 {
		fmt.Fprintln(j.out)
	}
	if s := j.c.String("expand-to"); s != "" {
		fmt.Fprintf(j.out, "if the volume had %s in all:\n", s)
	}
	write := func() error { return plan.WriteWhatIf(j.out, rep, plan.Story(rep, rows), width) }
	if j.c.Bool("what-if") {
		write = func() error { return plan.WriteSections(j.out, rep, rows, width) }
	}
	if err := write(); err != nil {
		return err
	}
	return j.printChoices(rep)
}

func (j *job) printChoices(rep plan.Report) error {
	list, commands, err := j.choices(rep)
	if err != nil {
		return err
	}
	if names := j.gcNames(); len(names) > 0 && rep.Room.Named > 0 && rep.Room.Enough() && rep.Plan.Decision != store.Fits {
		fmt.Fprintf(j.out, "\ndecided: %s deletes %s and goes on\n", j.command(j.c, "run"), strings.Join(names, ", "))
	}
	title := "ways out:"
	if j.c.IsSet("expand-to") {
		title = "ways out on the volume as it is:"
	}
	for i, ch := range list {
		if i == 0 {
			fmt.Fprintf(j.out, "\n%s\n", title)
		}
		j.prose("  " + ch.Text)
		if commands[i] != "" {
			fmt.Fprintf(j.out, "    %s\n", commands[i]) // one line, to be copied
		}
	}
	return nil
}

// printMix shows the datasets: as merged where weights change that, in the
// order, and as planned.
func (j *job) printMix(rep plan.Report, width int) error {
	right := func(head string, yield int) human.Column {
		return human.Column{Head: head, Right: true, Yield: yield}
	}
	cols := []human.Column{{Head: "dataset"}, right("samples", 0), right("tokens", 0), right("loss", 3), right("p50", 2), right("p90", 4), right("p99", 5),
		right("max", 1), right("%merged", 1), right("%samples", 1), right("%tokens", 0), right("%kept", 0), right("kept tokens", 2)}
	var rows [][]string
	list := slices.Clone(rep.Datasets)
	if len(list) > 1 {
		list = append(list, rep.Total)
	}
	for _, d := range list {
		merged := ""
		if rep.Total.MergedTokens != rep.Total.Tokens {
			merged = fmt.Sprintf("%.1f%%", 100*float64(d.MergedTokens)/float64(max(rep.Total.MergedTokens, 1)))
		}
		name := d.Name
		if d.Dropped {
			name += " (dropped)"
		}
		rows = append(rows, []string{name, human.Count(d.Samples), human.Count(d.Tokens), human.Count(d.LossTokens), human.Count(d.P50), human.Count(d.P90),
			human.Count(d.P99), human.Count(d.Max), merged, fmt.Sprintf("%.1f%%", 100*d.SampleShare), fmt.Sprintf("%.1f%%", 100*d.Share),
			fmt.Sprintf("%.1f%%", 100*d.CapShare), human.Count(d.CapTokens)})
	}
	return human.WriteTable(j.out, width, cols, rows)
}

func (j *job) printFigures(rep plan.Report) {
	p := rep.Plan
	say := func(format string, args ...any) { j.prose(fmt.Sprintf(format, args...)) }
	fmt.Fprintln(j.out)
	say("%s samples, %s tokens planned; %s new, %s reused, %s repeated",
		human.Count(p.Samples), human.Count(p.Tokens), human.Count(p.NewSamples), human.Count(p.Reused), human.Count(p.Repeated))
	say("dropped %s, over-length %s, emptied by the cap %s, truncated %s (%s tokens lost)",
		human.Count(p.Dropped), human.Count(p.OverLength), human.Count(p.Emptied), human.Count(p.Truncated), human.Count(p.LostTokens))
	expected := ""
	if p.Ratio > 0 {
		expected = ", " + human.Sized(p.ExpectedBytes) + " expected"
	}
	say("layers %v, %s, %s: %s bytes a token, %s raw%s, %s blobs",
		p.Layers, p.DType, p.Codec, human.Count(p.BytesPerToken), human.Sized(p.RawBytes), expected, human.Count(p.Blobs))
	by := ""
	if p.ShortBy > 0 {
		by = " by " + human.Sized(p.ShortBy)
	}
	say("free %s, reserve %s, reclaimable %s: %s%s", human.Bytes(p.DiskFree), human.Bytes(p.Reserve), human.Bytes(p.Reclaimable), p.Decision, by)
	if j.accept.Values != nil {
		say("decision of %s in force: %s", when(j.accept), said(j.accept))
	}
	for _, line := range rep.Explain() {
		say("%s", line)
	}
}

// writeHTML writes the page that --html asks for.
func (j *job) writeHTML(rep plan.Report, rows []plan.WhatIfRow) error {
	path := j.c.String("html")
	if path == "" {
		return nil
	}
	_, commands, err := j.choices(rep)
	if err != nil {
		return err
	}
	if err := j.fs.WriteFileAtomic(path, func(w io.Writer) error { return plan.WriteHTML(w, rep, rows, commands) }); err != nil {
		return err
	}
	j.rep.Note("wrote %s", path)
	return nil
}
