package human

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Column is one column of a table.
type Column struct {
	Head  string
	Right bool // aligned to the right
	// Yield says how soon the column is left out where the table is too wide:
	// the highest goes first, 0 always stays. A column that yields is also left
	// out where it says nothing in any row.
	Yield int
	// Flow lets the last column's text go on below where the table would be too
	// wide.
	Flow bool
}

// leastFlow is how narrow a column that flows becomes before others yield.
const leastFlow = 36

// WriteTable prints rows below their heads, in at most width columns of text as
// far as columns yield, and says which of them it left out for it.
func WriteTable(w io.Writer, width int, cols []Column, rows [][]string) error {
	wide := make([]int, len(cols))
	var shown []int
	for i, c := range cols {
		says := c.Yield == 0
		wide[i] = utf8.RuneCountInString(c.Head)
		for _, r := range rows {
			wide[i] = max(wide[i], utf8.RuneCountInString(r[i]))
			says = says || r[i] != "" && r[i] != "-"
		}
		if says {
			shown = append(shown, i)
		}
	}
	full := 0
	if last := len(cols) - 1; cols[last].Flow {
		full = wide[last]
		wide[last] = min(full, leastFlow)
	}
	var out []string
	for tableWidth(shown, wide) > width {
		at := -1
		for k, i := range shown {
			if cols[i].Yield > 0 && (at < 0 || cols[i].Yield > cols[shown[at]].Yield) {
				at = k
			}
		}
		if at < 0 {
			break
		}
		out = append(out, cols[shown[at]].Head)
		shown = slices.Delete(shown, at, at+1)
	}
	if last := len(cols) - 1; full > 0 {
		wide[last] = min(full, wide[last]+max(0, width-tableWidth(shown, wide)))
	}
	var sb strings.Builder
	head := make([]string, len(cols))
	for i, c := range cols {
		head[i] = c.Head
	}
	for _, r := range append([][]string{head}, rows...) {
		for _, line := range flow(r, wide, cols) {
			writeRow(&sb, line, shown, wide, cols)
		}
	}
	if len(out) > 0 {
		fmt.Fprintf(&sb, "(left out in %d columns: %s)\n", width, strings.Join(out, ", "))
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

// Wrap breaks a line between words so that it has at most width columns, as far
// as words allow; all lines but the first are indented by two more than it is.
func Wrap(line string, width int) string {
	text := strings.TrimLeft(line, " ")
	indent := len(line) - len(text)
	var sb strings.Builder
	sb.WriteString(line[:indent])
	at := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > width:
			sb.WriteString("\n" + strings.Repeat(" ", indent+2))
			at = indent + 2
		default:
			sb.WriteByte(' ')
			at++
		}
		sb.WriteString(word)
		at += n
	}
	return sb.String()
}

// flow breaks a row whose last cell is too wide for its column into several.
func flow(r []string, wide []int, cols []Column) [][]string {
	last := len(r) - 1
	if !cols[last].Flow || utf8.RuneCountInString(r[last]) <= wide[last] {
		return [][]string{r}
	}
	var out [][]string
	for line := range strings.SplitSeq(Wrap(r[last], wide[last]), "\n") {
		next := make([]string, len(r))
		if out == nil {
			copy(next, r)
		}
		next[last] = line
		out = append(out, next)
	}
	return out
}

// gap is what lies between two columns.
const gap = 2

func tableWidth(shown, wide []int) int {
	n := -gap
	for _, i := range shown {
		n += wide[i] + gap
	}
	return n
}

func writeRow(sb *strings.Builder, r []string, shown, wide []int, cols []Column) {
	var line strings.Builder
	for k, i := range shown {
		if k > 0 {
			line.WriteString(strings.Repeat(" ", gap))
		}
		pad := strings.Repeat(" ", max(0, wide[i]-utf8.RuneCountInString(r[i])))
		if cols[i].Right {
			line.WriteString(pad + r[i])
		} else {
			line.WriteString(r[i] + pad)
		}
	}
	sb.WriteString(strings.TrimRight(line.String(), " "))
	sb.WriteByte('\n')
}
