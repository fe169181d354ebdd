package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// WriteHistogram draws the lengths of samples, and how their tokens are spread
// over them, in plain text of at most width columns.
func WriteHistogram(w io.Writer, rep Report, width int) error {
	var most int64
	for _, b := range rep.Bars {
		most = max(most, b.Samples)
	}
	room := max(8, (width-44)/2)
	var sb strings.Builder
	fmt.Fprintf(&sb, "%16s  %9s %-*s %6s %s\n", "tokens a sample", "samples", room, "", "share", "of all tokens")
	for _, b := range rep.Bars {
		name := fmt.Sprintf("%s-%s", human.Count(b.From+1), human.Count(b.To))
		fmt.Fprintf(&sb, "%16s  %9s %-*s %5.1f%% %s\n", name, human.Count(b.Samples), room, bar(b.Samples, most, room), 100*b.Share, bar(int64(1e6*b.Share), 1e6, room))
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

// bar is n of most, as a bar of at most width; anything at all shows.
func bar(n, most int64, width int) string {
	if n == 0 || most == 0 {
		return ""
	}
	return strings.Repeat("#", max(1, int(n*int64(width)/most)))
}

// WriteWhatIf prints rows of the what-if table; rep names what is the plan's own.
func WriteWhatIf(w io.Writer, rep Report, rows []WhatIfRow) error {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\tcap\twithout\tdtype\ttokens\tlost\ttouched\traw TB\texp. TB\ttime\tGPU h\tcost\troom")
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r.cells(rep), "\t"))
	}
	return tw.Flush()
}

// cells are a row's values as text.
func (r WhatIfRow) cells(rep Report) []string {
	mark := ""
	switch {
	case r.Best && r.Current:
		mark = "best, planned"
	case r.Best:
		mark = "best"
	case r.Current:
		mark = "planned"
	}
	limit, drop := "none", "-"
	if r.MaxTokens > 0 {
		limit = human.Count(r.MaxTokens)
	}
	if len(r.Drop) > 0 {
		drop = strings.Join(r.Drop, "+")
	}
	shape := r.DType
	if !slices.Equal(r.Layers, rep.Plan.Layers) {
		shape += " " + joinInts(r.Layers)
	}
	if selects(r.Rows) {
		shape += " " + r.Rows
	}
	if r.Codec != rep.Plan.Codec {
		shape += " " + r.Codec
	}
	verdict := string(r.Decision)
	if r.Decision == store.Short {
		verdict = "lacks " + terabytes(r.ShortBy) + " TB"
	}
	return []string{mark, limit, drop, shape, human.Count(r.Tokens), fmt.Sprintf("%.1f%%", lossPercent(r.Tokens+r.LostTokens, r.Tokens)),
		human.Count(r.TouchedSamples), terabytes(r.RawBytes), optional(r.ExpectedBytes, terabytes), optional(r.Seconds, hours),
		optional(r.GPUHours, func(h float64) string { return fmt.Sprintf("%.1f", h) }), optional(r.Cost, func(c float64) string { return fmt.Sprintf("%.4g", c) }), verdict}
}

func optional[T any](v *T, show func(T) string) string {
	if v == nil {
		return "-"
	}
	return show(*v)
}

// terabytes is decimal, as disks are sold: three digits after the point below
// a hundred.
func terabytes(n int64) string {
	tb := float64(n) / 1e12
	if tb != 0 && tb < 0.001 {
		return fmt.Sprintf("%.2g", tb)
	}
	return fmt.Sprintf("%.3g", tb)
}

func hours(s float64) string { return human.Duration(time.Duration(s * float64(time.Second))) }

// WriteOverlong shows what each way to treat samples above the cap loses.
func WriteOverlong(w io.Writer, rep Report) error {
	if len(rep.Overlong) == 0 {
		return nil
	}
	var sb strings.Builder
	for _, o := range rep.Overlong {
		least, mark := "", ""
		if o.AtLeast {
			least = "at least "
		}
		if o.Overlong == rep.Plan.Overlong {
			mark = " (planned)"
		}
		fmt.Fprintf(&sb, "overlong: %s%s: %s samples left out, %s cut, %s%s tokens lost\n",
			o.Overlong, mark, human.Count(o.Samples), human.Count(o.Cut), least, human.Count(o.LostTokens))
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

// Explain says in a few lines what the figures rest on.
func (rep Report) Explain() []string {
	p, b := rep.Plan, rep.Basis
	out := []string{"blobs: " + rep.BlobWhy}
	if p.Ratio > 0 {
		out = append(out, fmt.Sprintf("bytes: raw bytes times %.3f, from %s", p.Ratio, b.RatioFrom))
	} else {
		out = append(out, "bytes: raw bytes, since no probe or sealed generation of this shape gives a ratio")
	}
	if p.Rate > 0 {
		out = append(out, fmt.Sprintf("time: at %s tokens/s, %s", human.Count(int64(p.Rate)), b.RateFrom))
	}
	for _, g := range rep.Room.From {
		how := "nothing needs it"
		if g.Decision {
			how = "if a decision names it"
		}
		out = append(out, fmt.Sprintf("reclaimable: %s from generation %d (%s), %s: %s", human.Bytes(g.Bytes), g.ID, g.Name, how, g.Reason))
	}
	if selects(p.Rows) {
		out = append(out, fmt.Sprintf("rows: %s leaves out rows by the mask; bytes are close, not exact, where a sample has several supervised runs", p.Rows))
	}
	return out
}
