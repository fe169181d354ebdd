package plan

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"eaglebatch/internal/human"
)

//go:embed page.html
var page string

// sizes of the curve, in SVG user units.
const (
	chartWidth  = 720
	chartLeft   = 60
	chartRight  = 20
	curveHeight = 260
)

// pageData is what page.html shows.
type pageData struct {
	Report  Report
	Explain []string
	Facts   []fact
	Bars    []barRow
	Sets    []setRow
	Curve   curveChart
	Head    []string
	Right   []int // columns that are numbers, from 1
	Story   []tableRow
	All     []tableRow
	Notes   []string
	Choices []wayOut
	Width   int
}

// wayOut is a choice with the command that takes it.
type wayOut struct{ Text, Command string }

type fact struct{ Name, Value string }

// barRow is a bar of the histogram; lengths are shares of the longest.
type barRow struct {
	Label, Count, Share string
	Samples, Tokens     float64
}

type setRow struct {
	Name                  string
	Before, After         float64 // shares of the longest
	BeforeText, AfterText string
}

type curveChart struct {
	Height, Left, Right int
	Points, Empty       string
	Ticks               []tick
	Levels              []tick
	Mark                *tick
}

type tick struct {
	At    float64
	Label string
}

type tableRow struct {
	Cells      []string
	Best, Plan bool
}

// WriteHTML writes one self-contained page: charts of lengths and shares, what
// a cap keeps, the what-if table and the ways out. It loads nothing. commands are
// those that take the Choices, in their order.
func WriteHTML(w io.Writer, rep Report, rows []WhatIfRow, commands []string) error {
	t, err := template.New("page").Funcs(template.FuncMap{"count": human.Count}).Parse(page)
	if err != nil {
		return err
	}
	d := pageData{Report: rep, Explain: rep.Explain(), Width: chartWidth, Facts: rep.facts(),
		Bars: rep.barRows(), Sets: rep.setRows(), Curve: rep.curveChart(), Notes: notes(rep, rows)}
	for i, c := range Choices(rep) {
		out := wayOut{Text: c.Text}
		if c.Accept != "" && i < len(commands) {
			out.Command = commands[i]
		}
		d.Choices = append(d.Choices, out)
	}
	cols, all := rep.whatIfTable(rows, rows)
	_, d.Story = rep.whatIfTable(rows, Story(rep, rows))
	d.All = all
	for i, c := range cols {
		d.Head = append(d.Head, c.Head)
		if c.Right {
			d.Right = append(d.Right, i+1)
		}
	}
	return t.Execute(w, d)
}

// whatIfTable turns rows into cells, in the unit that suits all, less the
// columns that say nothing in any of them.
func (rep Report) whatIfTable(all, rows []WhatIfRow) (shown []human.Column, out []tableRow) {
	var most int64
	for _, r := range all {
		most = max(most, r.RawBytes)
	}
	u := unitOf(most)
	cols := whatIfColumns(u)
	says := make([]bool, len(cols))
	for _, r := range all {
		for i, text := range r.cells(rep, u) {
			says[i] = says[i] || text != "" && text != "-" || cols[i].Yield == 0
		}
	}
	for i, c := range cols {
		if says[i] {
			shown = append(shown, c)
		}
	}
	for _, r := range rows {
		row := tableRow{Best: r.Best, Plan: r.Current}
		for i, text := range r.cells(rep, u) {
			if says[i] {
				row.Cells = append(row.Cells, text)
			}
		}
		out = append(out, row)
	}
	return shown, out
}

func (rep Report) facts() []fact {
	p := rep.Plan
	limit := "none"
	if p.MaxTokens > 0 {
		limit = human.Count(p.MaxTokens) + " (" + p.Overlong + ")"
	}
	expected := human.Bytes(p.ExpectedBytes)
	if p.Ratio == 0 {
		expected += " (raw)"
	}
	decision := string(p.Decision)
	if p.ShortBy > 0 {
		decision += " by " + human.Bytes(p.ShortBy)
	}
	time := "unknown"
	if p.Seconds > 0 {
		time = hours(p.Seconds)
	}
	return []fact{{"decision", decision}, {"samples", human.Count(p.Samples)}, {"tokens", human.Count(p.Tokens)}, {"cap", limit},
		{"dropped", strings.Join(append(slices.Clone(p.Drop), nothing(p.Drop)...), ", ")}, {"on disk", expected}, {"time", time}, {"free", human.Bytes(rep.Room.Free)},
		{"reserve", human.Bytes(rep.Room.Reserve)}, {"reclaimable", human.Bytes(rep.Room.Reclaimable)}}
}

func nothing(drop []string) []string {
	if len(drop) == 0 {
		return []string{"nothing"}
	}
	return nil
}

func (rep Report) barRows() []barRow {
	var most int64
	var top float64
	for _, b := range rep.Bars {
		most, top = max(most, b.Samples), max(top, b.Share)
	}
	var out []barRow
	for _, b := range rep.Bars {
		out = append(out, barRow{Label: fmt.Sprintf("%s–%s", human.Count(b.From+1), human.Count(b.To)),
			Count: human.Count(b.Samples), Share: fmt.Sprintf("%.1f%%", 100*b.Share),
			Samples: float64(b.Samples) / float64(max(most, 1)), Tokens: b.Share / max(top, 1e-9)})
	}
	return out
}

func (rep Report) setRows() []setRow {
	top := 1e-9
	for _, d := range rep.Datasets {
		top = max(top, d.Share, d.CapShare)
	}
	var out []setRow
	for _, d := range rep.Datasets {
		out = append(out, setRow{Name: d.Name, Before: d.Share / top, After: d.CapShare / top,
			BeforeText: fmt.Sprintf("%.1f%%", 100*d.Share), AfterText: fmt.Sprintf("%.1f%%", 100*d.CapShare)})
	}
	return out
}

// curveChart draws the share of all tokens that each cap keeps, over caps that
// double from tick to tick: the short ones are where most samples are.
func (rep Report) curveChart() curveChart {
	c := curveChart{Height: curveHeight, Left: chartLeft, Right: chartWidth - chartRight}
	if rep.study == nil || rep.Total.Tokens == 0 || rep.Total.Max == 0 {
		return c
	}
	const least = 64
	ends := math.Log2(float64(max(rep.Total.Max, 2*least)))
	wide, high := float64(c.Right-c.Left), float64(curveHeight-50)
	x := func(limit int64) float64 {
		return chartLeft + wide*(math.Log2(float64(limit))-math.Log2(least))/(ends-math.Log2(least))
	}
	y := func(share float64) float64 { return 10 + high*(1-share) }
	var kept, full strings.Builder
	const steps = 200
	for i := range steps + 1 {
		limit := int64(math.Exp2(math.Log2(least) + (ends-math.Log2(least))*float64(i)/steps))
		var tokens, cut int64
		for k := range rep.study.sets {
			s := &rep.study.sets[k].positions
			tokens += s.at(limit, rep.Plan.Overlong).tokens
			cut += s.length.capped(limit)
		}
		fmt.Fprintf(&kept, "%.1f,%.1f ", x(limit), y(float64(tokens)/float64(rep.Total.Tokens)))
		fmt.Fprintf(&full, "%.1f,%.1f ", x(limit), y(float64(cut)/float64(rep.Total.Tokens)))
	}
	c.Points, c.Empty = kept.String(), full.String()
	for i := range 5 {
		share := float64(i) / 4
		c.Levels = append(c.Levels, tick{At: y(share), Label: fmt.Sprintf("%.0f%%", 100*share)})
	}
	for limit := int64(least); limit <= rep.Total.Max; limit *= 2 {
		c.Ticks = append(c.Ticks, tick{At: x(limit), Label: short(limit)})
	}
	if m := rep.Plan.MaxTokens; m >= least && m < rep.Total.Max {
		c.Mark = &tick{At: x(m), Label: "cap " + human.Count(m)}
	}
	return c
}

// short is a power of two as it is called: 512, 1K, 128K.
func short(n int64) string {
	if n < 1024 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%dK", n/1024)
}
