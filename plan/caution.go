package plan

import (
	"fmt"

	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// Cautions says what of a plan is likely not meant, with the way out. A cap that
// leaves out more than half of the samples is counted like any other; datasets
// that are dropped by name, and windows of split samples in which nothing is
// supervised, are what was asked for.
func Cautions(p store.PlanRow) []string {
	lost := p.OverLength + p.Emptied
	if p.MaxTokens == 0 || p.Overlong == Split || lost <= p.Samples {
		return nil
	}
	what, other := "over length", "to truncate, which keeps their beginning, or "
	if p.Overlong == Truncate {
		what, other = "emptied: what is supervised in them lies behind it", ""
	}
	return []string{fmt.Sprintf("caution: the cap of %s tokens leaves out %s of %s samples (%s), %s; raise plan.max_tokens ('eaglebatch plan --what-if' shows what other caps keep), or set plan.overlong %sto split, which keeps all of them in windows",
		human.Count(p.MaxTokens), human.Count(lost), human.Count(lost+p.Samples), human.Percent(float64(lost)/float64(lost+p.Samples)), what, other)}
}
