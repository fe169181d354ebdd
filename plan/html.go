package plan

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"eaglebatch/internal/human"
)

//go:embed page.html
var page string

// chart sizes, in SVG user units.
const (
	chartWidth  = 720
	chartLeft   = 150
	chartRight  = 70
	rowHeight   = 26
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
	Story   []tableRow
	All     []tableRow
	Notes   []string
	Choices []Choice
	Width   int
}

type fact struct{ Name, Value string }

// barRow is a bar of the histogram; lengths are in user units.
type barRow struct {
	Y, TextY               int
	Label, Count, Share    string
	SampleWidth, TokenWide float64
}

type setRow struct {
	Y, TextY      int
	Name          string
	Before, After float64 // widths
	BeforeText    string
	AfterText     string
}

type curveChart struct {
	Height        int
	Points, Empty string
	Ticks         []tick
	Levels        []tick
	Mark          *tick
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
// a cap keeps, the what-if table and the ways out. It loads nothing.
func WriteHTML(w io.Writer, rep Report, rows []WhatIfRow) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"add": func(a, b int) int { return a + b }, "mul26": func(n int) int { return n * rowHeight },
		"mul52": func(n int) int { return 2 * n * rowHeight }, "count": human.Count}).Parse(page)
	if err != nil {
		return err
	}
	var most int64
	for _, r := range rows {
		most = max(most, r.RawBytes)
	}
	u := unitOf(most)
	d := pageData{Report: rep, Explain: rep.Explain(), Choices: Choices(rep), Width: chartWidth, Facts: rep.facts(),
		Bars: rep.barRows(), Sets: rep.setRows(), Curve: rep.curveChart(), Head: []string{"", "cap", "without", "shape", "tokens", "lost",
			"samples touched", "raw " + u.name, "expected " + u.name, "time", "GPU hours", "cost", "room"}}
	for _, r := range Story(rep, rows) {
		d.Story = append(d.Story, tableRow{Cells: r.cells(rep, u), Best: r.Best, Plan: r.Current})
	}
	for _, r := range rows {
		d.All = append(d.All, tableRow{Cells: r.cells(rep, u), Best: r.Best, Plan: r.Current})
	}
	d.Notes = notes(rep, rows)
	return t.Execute(w, d)
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
	half := float64(chartWidth-chartLeft)/2 - chartRight
	var out []barRow
	for i, b := range rep.Bars {
		out = append(out, barRow{Y: i * rowHeight, TextY: i*rowHeight + 16, Label: fmt.Sprintf("%s–%s", human.Count(b.From+1), human.Count(b.To)),
			Count: human.Count(b.Samples), Share: fmt.Sprintf("%.1f%%", 100*b.Share),
			SampleWidth: half * float64(b.Samples) / float64(max(most, 1)), TokenWide: half * b.Share / max(top, 1e-9)})
	}
	return out
}

func (rep Report) setRows() []setRow {
	top := 1e-9
	for _, d := range rep.Datasets {
		top = max(top, d.Share, d.CapShare)
	}
	wide := float64(chartWidth - chartLeft - chartRight)
	var out []setRow
	for i, d := range rep.Datasets {
		out = append(out, setRow{Y: i * 2 * rowHeight, TextY: i*2*rowHeight + 28, Name: d.Name, Before: wide * d.Share / top, After: wide * d.CapShare / top,
			BeforeText: fmt.Sprintf("%.1f%%", 100*d.Share), AfterText: fmt.Sprintf("%.1f%%", 100*d.CapShare)})
	}
	return out
}

// curveChart draws the share of all tokens that each cap keeps.
func (rep Report) curveChart() curveChart {
	c := curveChart{Height: curveHeight}
	if rep.study == nil || rep.Total.Tokens == 0 || rep.Total.Max == 0 {
		return c
	}
	top := float64(rep.Total.Max)
	wide, high := float64(chartWidth-chartLeft-chartRight), float64(curveHeight-50)
	x := func(limit float64) float64 { return chartLeft + wide*limit/top }
	y := func(share float64) float64 { return 10 + high*(1-share) }
	var kept, full strings.Builder
	const steps = 200
	for i := range steps + 1 {
		limit := max(1, rep.Total.Max*int64(i)/steps)
		var tokens, cut int64
		for k := range rep.study.sets {
			s := &rep.study.sets[k].positions
			tokens += s.at(limit, rep.Plan.Overlong).tokens
			cut += s.length.capped(limit)
		}
		fmt.Fprintf(&kept, "%.1f,%.1f ", x(float64(limit)), y(float64(tokens)/float64(rep.Total.Tokens)))
		fmt.Fprintf(&full, "%.1f,%.1f ", x(float64(limit)), y(float64(cut)/float64(rep.Total.Tokens)))
	}
	c.Points, c.Empty = kept.String(), full.String()
	for i := range 5 {
		share := float64(i) / 4
		c.Levels = append(c.Levels, tick{At: y(share), Label: fmt.Sprintf("%.0f%%", 100*share)})
	}
	for limit, step := int64(0), roundStep(rep.Total.Max/4); limit <= rep.Total.Max; limit += step {
		c.Ticks = append(c.Ticks, tick{At: x(float64(limit)), Label: human.Count(limit)})
	}
	if m := rep.Plan.MaxTokens; m > 0 && float64(m) < top {
		c.Mark = &tick{At: x(float64(m)), Label: "cap " + human.Count(m)}
	}
	return c
}

// roundStep is the power of two nearest to n from above, since caps are
// commonly powers of two.
func roundStep(n int64) int64 {
	step := int64(1)
	for step < n {
		step *= 2
	}
	return step
}
