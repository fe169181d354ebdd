package plan

import "strings"

// nearest returns the known word that is closest to s, "" where none is close.
func nearest(s string, known []string) string {
	best, at := "", len(s)/2+2
	for _, k := range known {
		if n := distance(s, k); n < at {
			best, at = k, n
		}
	}
	return best
}

// suggestion ends an error about an unknown word.
func suggestion(s string, known []string) string {
	if k := nearest(s, known); k != "" {
		return "did you mean " + k + "?"
	}
	return "there are " + strings.Join(known, ", ")
}

// distance is the number of letters to change, add or drop.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, diag+1)
		}
	}
	return row[len(b)]
}
