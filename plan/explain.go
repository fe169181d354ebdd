package plan

import (
	"cmp"
	"fmt"

	"eaglebatch/internal/human"
)

// Explain says in a few lines what the figures rest on.
func (rep Report) Explain() []string {
	p, b := rep.Plan, rep.Basis
	out := append(Cautions(p), "blobs: "+rep.BlobWhy)
	f := rep.Prediction()
	if p.RawBytes == 0 {
		out = append(out, "bytes: none to write: what is planned is stored already")
	} else if p.Ratio > 0 {
		out = append(out, fmt.Sprintf("bytes: %s to %s on disk: raw bytes times %.3f, from %s", human.Bytes(f.BytesLow), human.Bytes(f.BytesHigh), p.Ratio, b.RatioFrom))
	} else {
		out = append(out, "bytes: raw bytes, since no probe or sealed generation of this shape gives a ratio")
	}
	switch {
	case p.Seconds > 0 && f.SecondsLow < f.SecondsHigh:
		out = append(out, fmt.Sprintf("time: %s to %s: %s tokens/s, %s", hours(f.SecondsLow), hours(f.SecondsHigh), human.Count(int64(p.Rate)), from(b.RateFrom)))
	case p.Seconds > 0:
		out = append(out, fmt.Sprintf("time: %s: %s tokens/s, %s", hours(p.Seconds), human.Count(int64(p.Rate)), from(b.RateFrom)))
	case p.NewTokens > 0:
		out = append(out, "time: unknown, since no rate was measured (plan --probe N) or given (plan.tokens_per_second)")
	}
	out = append(out, rep.Room.Explain()...)
	if selects(p.Rows) {
		out = append(out, fmt.Sprintf("rows: %s leaves out rows by the mask; bytes are close, not exact, where a sample has several supervised runs", p.Rows))
	}
	if rep.options.MaxDatasetTokens > 0 {
		out = append(out, fmt.Sprintf("mix: at most %s tokens of each dataset, its first in the seeded order: what is beyond counts as dropped; rows of the what-if table other than the plan's take it to be like the rest",
			human.Count(rep.options.MaxDatasetTokens)))
	}
	return append(out, rep.heavy()...)
}

func from(source string) string {
	if source == "as given" {
		return source
	}
	return "from " + source
}

// heavy names datasets that take far more of the tokens than of the samples.
func (rep Report) heavy() (out []string) {
	t := rep.Total
	for _, d := range rep.Datasets {
		if others := t.Samples - d.Samples; d.Share >= 0.1 && d.Share > 2*d.SampleShare && others > 0 {
			out = append(out, fmt.Sprintf("lengths: %s takes %.0f%% of the tokens with %.0f%% of the samples: %s tokens a sample, the others %s",
				d.Name, 100*d.Share, 100*d.SampleShare, human.Count(int64(d.Mean)), human.Count((t.Tokens-d.Tokens)/others)))
		}
	}
	return out
}

// ref is what a decision names the generation by.
func (g Reclaim) ref() string { return cmp.Or(g.Name, fmt.Sprint(g.ID)) }

// Explain says what could be deleted, and what the decision in force deletes.
func (m Room) Explain() (out []string) {
	if m.Beside > 0 && m.Beside >= m.Need/100 {
		out = append(out, fmt.Sprintf("beside the blobs: %s for indexes and the model's head", human.Sized(m.Beside)))
	}
	for _, g := range m.From {
		how := "nothing needs it"
		switch {
		case g.Named:
			how = "the next run deletes it for good, as decided"
		case g.Decision:
			how = "if a decision names it"
		}
		out = append(out, fmt.Sprintf("reclaimable: %s from generation %d (%s, %s): %s", human.Sized(g.Bytes), g.ID, g.Name, g.Path, how))
	}
	for _, g := range m.Elsewhere {
		if g.Error != "" {
			out = append(out, fmt.Sprintf("generation %d (%s) cannot be looked at (%s): what it takes is not counted as reclaimable", g.ID, g.Name, g.Error))
			continue
		}
		out = append(out, fmt.Sprintf("generation %d (%s, %s) lies on another filesystem: deleting it makes no room for this plan", g.ID, g.Name, g.Path))
	}
	if m.Named > 0 && !m.Enough() {
		out = append(out, fmt.Sprintf("the decision in force frees %s, which is not enough: run asks again and deletes nothing", human.Sized(m.Named)))
	}
	return out
}
