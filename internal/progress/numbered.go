package progress

import "slices"

// Numbered says of each phase of a list which of how many it is.
type Numbered struct {
	Reporter
	Names []string
}

// Start implements Reporter.
func (n Numbered) Start(p Phase) {
	if i := slices.Index(n.Names, p.Name); i >= 0 && p.Of == 0 {
		p.Index, p.Of = i+1, len(n.Names)
	}
	n.Reporter.Start(p)
}
