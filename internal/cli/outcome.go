package cli

import (
	"fmt"
	"slices"
	"time"

	"eaglebatch/internal/human"
	"eaglebatch/plan"
)

// printOutcomes shows predicted against actual, one line a generation.
func (e *env) printOutcomes(list []plan.Outcome) {
	list = slices.DeleteFunc(slices.Clone(list), func(o plan.Outcome) bool { return o.Predicted.Bytes == 0 }) // only points to others
	for i, o := range list {
		if i == 0 {
			fmt.Fprintln(e.out)
		}
		from := "raw, no ratio was known"
		if o.Predicted.BytesFrom != "" {
			from = fmt.Sprintf("%+.1f%%", 100*o.BytesOff)
		}
		p := o.Predicted
		fmt.Fprintf(e.out, "predicted  generation %d: %s%s, took %s (%s)", o.Generation, human.Bytes(p.Bytes), span(p.BytesLow, p.BytesHigh, human.Bytes), human.Bytes(o.Bytes), from)
		if p.Seconds > 0 {
			fmt.Fprintf(e.out, "; %s%s, took %s (%+.1f%%)", seconds(p.Seconds), span(p.SecondsLow, p.SecondsHigh, seconds), seconds(o.Seconds), 100*o.SecondsOff)
		} else {
			fmt.Fprintf(e.out, "; no time was predicted, took %s", seconds(o.Seconds))
		}
		fmt.Fprintln(e.out)
	}
}

// span is a range in brackets, where there is one.
func span[T int64 | float64](low, high T, show func(T) string) string {
	if low <= 0 || low >= high {
		return ""
	}
	return " (" + show(low) + " to " + show(high) + ")"
}

func seconds(s float64) string { return human.Duration(time.Duration(s * float64(time.Second))) }
