package cli

import "testing"

// TestJudge plants what a comparison must not call close.
func TestJudge(t *testing.T) {
	rows := func(min, p1, median, identical float64, bad int64) comparedRows {
		return comparedRows{Layer: 2, Rows: 100, Identical: identical, NonFinite: bad, Cosine: quantiles{Min: min, P1: p1, Median: median}}
	}
	good := rows(1, 1, 1, 1, 0)
	for _, c := range []struct {
		name string
		doc  compareDoc
		want string
	}{
		{"the same bits", compareDoc{Matched: 1, Layers: []comparedRows{good, good}}, "identical"},
		{"rounding", compareDoc{Matched: 1, Layers: []comparedRows{good, rows(0.99999, 0.99999, 1, 0.1, 0)}}, "close"},
		{"one layer is another", compareDoc{Matched: 1, Layers: []comparedRows{good, rows(0.3, 0.5, 0.9, 0, 0), good}}, "different"},
		{"a few rows are off", compareDoc{Matched: 1, Layers: []comparedRows{rows(0.2, 0.5, 0.9999, 0.9, 0)}}, "doubtful"},
		{"a doubtful layer before a different one", compareDoc{Matched: 1, Layers: []comparedRows{rows(0.2, 0.5, 0.9999, 0.9, 0), rows(0, 0, 0, 0, 0)}}, "different"},
		{"NaN", compareDoc{Matched: 1, Layers: []comparedRows{rows(1, 1, 1, 0.99, 1)}}, "different"},
		{"other ids", compareDoc{Matched: 1, IDsDiffer: 1, Layers: []comparedRows{good}}, "different"},
		{"nothing in common", compareDoc{Layers: []comparedRows{good}}, "not comparable"},
		{"no layer in common", compareDoc{Matched: 1}, "not comparable"},
	} {
		if c.doc.judge(); c.doc.Verdict != c.want || c.doc.Why == "" {
			t.Errorf("%s: %q (%s), want %q", c.name, c.doc.Verdict, c.doc.Why, c.want)
		}
	}
}
