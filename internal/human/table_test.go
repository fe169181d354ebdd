package human

import (
	"strings"
	"testing"
)

func TestWriteTable(t *testing.T) {
	cols := []Column{{Head: "name"}, {Head: "n", Right: true}, {Head: "first to go", Yield: 2}, {Head: "second", Yield: 1}, {Head: "empty", Yield: 1}}
	rows := [][]string{{"a", "1", "x", "ö", "-"}, {"long name", "1,000", "y", "", ""}}
	for _, tc := range []struct {
		width int
		want  string
	}{
		{80, "name           n  first to go  second\na              1  x            ö\nlong name  1,000  y\n"},
		{30, "name           n  second\na              1  ö\nlong name  1,000\n(left out in 30 columns: first to go)\n"},
		{5, "name           n\na              1\nlong name  1,000\n(left out in 5 columns: first to go, second)\n"},
	} {
		var sb strings.Builder
		if err := WriteTable(&sb, tc.width, cols, rows); err != nil || sb.String() != tc.want {
			t.Errorf("in %d columns (%v):\n%s\nwant\n%s", tc.width, err, sb.String(), tc.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		line  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"short", 10, "short"},
		{"  ways out of it, each", 12, "  ways out\n    of it,\n    each"},
		{"averyverylongword and more", 8, "averyverylongword\n  and\n  more"},
		{"exactly ten", 11, "exactly ten"},
	} {
		if got := Wrap(tc.line, tc.width); got != tc.want {
			t.Errorf("Wrap(%q, %d) = %q, want %q", tc.line, tc.width, got, tc.want)
		}
	}
}

func TestFlow(t *testing.T) {
	cols := []Column{{Head: "name"}, {Head: "n", Right: true, Yield: 1}, {Head: "note", Flow: true}}
	rows := [][]string{{"a", "7", "short"}, {"bb", "12", "adopted: a format, 365 files; deleted only when a decision names it"}}
	for width, want := range map[int]string{
		1000: "name   n  note\na      7  short\nbb    12  adopted: a format, 365 files; deleted only when a decision names it\n",
		50:   "name   n  note\na      7  short\nbb    12  adopted: a format, 365 files; deleted\n            only when a decision names it\n",
		42:   "name  note\na     short\nbb    adopted: a format, 365 files;\n        deleted only when a decision names\n        it\n(left out in 42 columns: n)\n",
	} {
		var sb strings.Builder
		if err := WriteTable(&sb, width, cols, rows); err != nil || sb.String() != want {
			t.Errorf("in %d columns, %v:\n%q, want\n%q", width, err, sb.String(), want)
		}
	}
}
