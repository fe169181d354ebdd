package plan

import (
	"cmp"
	"slices"
)

// Story picks the few rows that tell the story: at the plan's shape each cap,
// that changes anything, with nothing dropped, without the dataset that takes
// most tokens, and without what the plan drops; and the plan in fp8.
func Story(rep Report, rows []WhatIfRow) []WhatIfRow {
	var largest DatasetReport
	for _, d := range rep.Datasets {
		if d.Tokens > largest.Tokens {
			largest = d
		}
	}
	p := rep.Plan
	var out []WhatIfRow
	for _, r := range rows {
		shape := slices.Equal(r.Layers, p.Layers) && r.Rows == p.Rows && r.Codec == p.Codec
		drop := len(r.Drop) == 0 || slices.Equal(r.Drop, []string{largest.Name}) || slices.Equal(r.Drop, p.Drop)
		if r.Best || r.Current || shape && (r.DType == p.DType && drop || r.DType == "fp8" && r.planned(rep)) && !slices.ContainsFunc(out, r.sameAs) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b WhatIfRow) int { return cmp.Compare(rank(rep, a), rank(rep, b)) })
	return out
}

// rank puts what is of another dtype than the plan last.
func rank(rep Report, r WhatIfRow) int {
	if r.DType != rep.Plan.DType {
		return 1
	}
	return 0
}

// planned says that r has the plan's cap and drops.
func (r WhatIfRow) planned(rep Report) bool {
	return r.MaxTokens == rep.Plan.MaxTokens && slices.Equal(r.Drop, rep.Plan.Drop)
}

// sameAs says that r differs from o by a cap that changes nothing.
func (r WhatIfRow) sameAs(o WhatIfRow) bool {
	return slices.Equal(r.Drop, o.Drop) && r.DType == o.DType && r.Tokens == o.Tokens && r.RawBytes == o.RawBytes
}

// Section is a part of the what-if table under a heading.
type Section struct {
	Title string
	Rows  []WhatIfRow
}

// Sections picks the rows that are worth reading one by one: each cap with each
// drop at the plan's shape, and every other shape that is one step away from the
// plan. The rest combines these.
func Sections(rep Report, rows []WhatIfRow) []Section {
	p := rep.Plan
	grid := Section{Title: "caps and drops, in the plan's shape:"}
	shapes := Section{Title: "other shapes, under the plan's cap and drops:"}
	for _, r := range rows {
		steps := 0
		for _, other := range []bool{!slices.Equal(r.Layers, p.Layers), r.DType != p.DType, r.Rows != p.Rows, r.Codec != p.Codec} {
			if other {
				steps++
			}
		}
		switch planned := r.planned(rep); {
		case steps == 0 && (r.Best || r.Current || !slices.ContainsFunc(grid.Rows, r.sameAs)):
			grid.Rows = append(grid.Rows, r)
		case steps == 1 && planned:
			shapes.Rows = append(shapes.Rows, r)
		}
	}
	return []Section{grid, shapes}
}
