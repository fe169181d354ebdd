package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

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
	fmt.Fprintln(j.out)
	if s := j.c.String("expand-to"); s != "" {
		fmt.Fprintf(j.out, "if the volume had %s in all:\n", s)
	}
	if err := plan.WriteWhatIf(j.out, rep, rows, width); err != nil {
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
	fmt.Fprintf(j.out, "\n%s samples, %s tokens planned; %s new, %s reused, %s repeated\n",
		human.Count(p.Samples), human.Count(p.Tokens), human.Count(p.NewSamples), human.Count(p.Reused), human.Count(p.Repeated))
	fmt.Fprintf(j.out, "dropped %s, over-length %s, emptied by the cap %s, truncated %s (%s tokens lost)\n",
		human.Count(p.Dropped), human.Count(p.OverLength), human.Count(p.Emptied), human.Count(p.Truncated), human.Count(p.LostTokens))
	expected := ""
	if p.Ratio > 0 {
		expected = ", " + human.Sized(p.ExpectedBytes) + " expected"
	}
	fmt.Fprintf(j.out, "layers %v, %s, %s: %s bytes a token, %s raw%s, %s blobs\n",
		p.Layers, p.DType, p.Codec, human.Count(p.BytesPerToken), human.Sized(p.RawBytes), expected, human.Count(p.Blobs))
	fmt.Fprintf(j.out, "free %s, reserve %s, reclaimable %s: %s", human.Bytes(p.DiskFree), human.Bytes(p.Reserve), human.Bytes(p.Reclaimable), p.Decision)
	if p.ShortBy > 0 {
		fmt.Fprintf(j.out, " by %s", human.Sized(p.ShortBy))
	}
	fmt.Fprintln(j.out)
	if j.accept.Values != nil {
		var said []string
		for _, k := range slices.Sorted(maps.Keys(j.accept.Values)) {
			said = append(said, k+"="+j.accept.Values[k])
		}
		fmt.Fprintf(j.out, "decision of %s in force: %s\n", j.accept.At.Local().Format("2006-01-02 15:04"), strings.Join(said, ", "))
	}
	for _, line := range rep.Explain() {
		fmt.Fprintln(j.out, line)
	}
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
