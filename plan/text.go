package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// WriteHistogram draws the lengths of samples, and how their tokens are spread
// over them, in plain text of at most width columns.
func WriteHistogram(w io.Writer, rep Report, width int) error {
	var most int64
	top := 1e-9
	for _, b := range rep.Bars {
		most, top = max(most, b.Samples), max(top, b.Share)
	}
	room := max(8, (width-44)/2)
	var sb strings.Builder
	fmt.Fprintf(&sb, "%16s  %9s %-*s %6s %s\n", "tokens a sample", "samples", room, "", "share", "of all tokens")
	for _, b := range rep.Bars {
		name := fmt.Sprintf("%s-%s", human.Count(b.From+1), human.Count(b.To))
		line := fmt.Sprintf("%16s  %9s %-*s %5.1f%% %s", name, human.Count(b.Samples), room, bar(b.Samples, most, room), 100*b.Share, bar(int64(1e6*b.Share), int64(1e6*top), room))
		fmt.Fprintln(&sb, strings.TrimRight(line, " "))
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

// WriteWhatIf prints rows of the what-if table in at most width columns, as far
// as it can; rep names what is the plan's own.
func WriteWhatIf(w io.Writer, rep Report, rows []WhatIfRow, width int) error {
	var most int64
	alike := true
	for _, r := range rows {
		most = max(most, r.RawBytes)
		alike = alike && r.shape(rep) == rep.Plan.DType
	}
	u := unitOf(most)
	shape := 0
	if alike {
		shape = 1 // as the plan's line says
	}
	cols := whatIfColumns(u)
	cols[3].Yield = shape
	var cells [][]string
	for _, r := range rows {
		c := r.cells(rep, u)
		if alike {
			c[3] = ""
		}
		cells = append(cells, c)
	}
	if err := human.WriteTable(w, width, cols, cells); err != nil {
		return err
	}
	return writeNotes(w, rep, rows)
}

// whatIfColumns are those of WhatIfRow.cells.
func whatIfColumns(u unit) []human.Column {
	return []human.Column{{}, {Head: "cap", Right: true}, {Head: "without"}, {Head: "shape"}, {Head: "tokens", Right: true, Yield: 2},
		{Head: "lost", Right: true}, {Head: "touched", Right: true, Yield: 5}, {Head: "raw " + u.name, Right: true, Yield: 4},
		{Head: "exp. " + u.name, Right: true, Yield: 1}, {Head: "time", Right: true, Yield: 1}, {Head: "GPU h", Right: true, Yield: 3},
		{Head: "cost", Right: true, Yield: 1}, {Head: "room"}}
}

// The marks of a row's verdict.
const (
	markRaw   = " (raw)"
	markReuse = " *"
)

// notes explain the marks that rows have.
func notes(rep Report, rows []WhatIfRow) (out []string) {
	if slices.ContainsFunc(rows, func(r WhatIfRow) bool { return r.unmeasured(rep) }) {
		out = append(out, "(raw): in raw bytes, since no probe or sealed generation of that shape gives a ratio")
	}
	if slices.ContainsFunc(rows, func(r WhatIfRow) bool { return !r.ReuseCounted }) {
		out = append(out, "*: states that older generations may hold are not counted: it may take less")
	}
	return out
}

func writeNotes(w io.Writer, rep Report, rows []WhatIfRow) error {
	for _, n := range notes(rep, rows) {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
}

// unmeasured says that a row goes by raw bytes while the plan does not.
func (r WhatIfRow) unmeasured(rep Report) bool { return r.ExpectedBytes == nil && rep.Plan.Ratio > 0 }

// WriteSections prints the rows of the what-if table that are worth reading one
// by one, of all.
func WriteSections(w io.Writer, rep Report, all []WhatIfRow, width int) error {
	shown := 0
	for _, s := range Sections(rep, all) {
		if len(s.Rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(w, s.Title); err != nil {
			return err
		}
		if err := WriteWhatIf(w, rep, s.Rows, width); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		shown += len(s.Rows)
	}
	_, err := fmt.Fprintf(w, "%d of %s combinations; --json has them all, under what_if\n", shown, human.Count(int64(len(all))))
	return err
}

// unit is what bytes are shown in: decimal, as disks are sold.
type unit struct {
	name  string
	bytes float64
}

// unitOf is the largest unit in which n is at least a tenth.
func unitOf(n int64) unit {
	for _, u := range []unit{{"TB", 1e12}, {"GB", 1e9}} {
		if float64(n) >= u.bytes/10 {
			return u
		}
	}
	return unit{"MB", 1e6}
}

// of shows n with three digits.
func (u unit) of(n int64) string {
	v := float64(n) / u.bytes
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// shape is what of a row's layers, dtype, rows and codec is not the plan's, and
// the dtype.
func (r WhatIfRow) shape(rep Report) string {
	shape := r.DType
	if !slices.Equal(r.Layers, rep.Plan.Layers) {
		shape += " " + joinInts(r.Layers)
	}
	if selects(r.Rows) && r.Rows != rep.Plan.Rows {
		shape += " " + r.Rows
	}
	if r.Codec != rep.Plan.Codec {
		shape += " " + r.Codec
	}
	return shape
}

// cells are a row's values as text.
func (r WhatIfRow) cells(rep Report, u unit) []string {
	mark := ""
	switch {
	case r.Best && r.Current:
		mark = "plan=best"
	case r.Best:
		mark = "best"
	case r.Current:
		mark = "plan"
	}
	limit, drop := "none", "-"
	if r.MaxTokens > 0 {
		limit = human.Count(r.MaxTokens)
	}
	if len(r.Drop) > 0 {
		drop = strings.Join(r.Drop, "+")
	}
	verdict := string(r.Decision)
	if r.Decision == store.Short {
		lacks := unitOf(r.ShortBy)
		verdict = "lacks " + lacks.of(r.ShortBy) + " " + lacks.name
	}
	if r.unmeasured(rep) {
		verdict += markRaw
	}
	if !r.ReuseCounted {
		verdict += markReuse
	}
	return []string{mark, limit, drop, r.shape(rep), human.Count(r.Tokens), fmt.Sprintf("%.1f%%", lossPercent(r.Tokens+r.LostTokens, r.Tokens)),
		human.Count(r.TouchedSamples), u.of(r.RawBytes), optional(r.ExpectedBytes, u.of), optional(r.Seconds, hours),
		optional(r.GPUHours, func(h float64) string { return fmt.Sprintf("%.1f", h) }), optional(r.Cost, func(c float64) string { return fmt.Sprintf("%.4g", c) }), verdict}
}

func optional[T any](v *T, show func(T) string) string {
	if v == nil {
		return "-"
	}
	return show(*v)
}

// hours is in hours from one hour on, since nights are counted in them.
func hours(s float64) string {
	if s >= 3600 {
		return fmt.Sprintf("%.1f h", s/3600)
	}
	return human.Duration(time.Duration(s * float64(time.Second)))
}

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
