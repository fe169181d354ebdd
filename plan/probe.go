package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// ProbeSample is one sample that a probe runs.
type ProbeSample struct {
	Dataset    uint32 // DatasetRow.ID
	Name       string // of the dataset
	SamplesGen uint32
	Index      uint64 // within the dataset
	From, To   uint32 // the tokens to run: a window where the plan splits, else from 0 to the cap
}

// ProbeRunner runs samples of like length through the configured backend and
// codec into a scratch area, and says what that took. It fills in everything
// of the bucket but MaxTokens; Tokens and bytes are those of the samples that
// did not fail. The seconds are those of the work in the steady state, not of
// loading the model.
type ProbeRunner func(ctx context.Context, list []ProbeSample) (Bucket, error)

// ProbeResult is what running a few samples showed.
type ProbeResult struct {
	Samples     int64     `json:"samples"`
	Tokens      int64     `json:"tokens"`
	Failed      int64     `json:"failed"`
	Ratio       float64   `json:"ratio"` // bytes on disk a raw byte, weighted as the plan's tokens are
	RatioSpread float64   `json:"ratio_spread"`
	Rate        float64   `json:"rate"` // tokens a second over the plan's mix of lengths
	RateSpread  float64   `json:"rate_spread"`
	Buckets     []Bucket  `json:"buckets"` // by length, ascending
	At          time.Time `json:"at"`
}

func (p ProbeResult) describe() string {
	return fmt.Sprintf("a probe of %s samples (%s tokens)", human.Count(p.Samples), human.Count(p.Tokens))
}

// stratum is the samples of like length: lengths up to a power of two.
type stratum struct {
	max     uint32 // longest sample
	samples int64
	tokens  int64
	take    int64
	picked  []uint32 // numbers of distinct samples
}

// Probe runs n samples, stratified by length, and records what they showed for
// the plans to come of the same model, shape, codec and engine.
func Probe(ctx context.Context, ws *store.Workspace, o Options, n int, run ProbeRunner, rep progress.Reporter) (pr ProbeResult, err error) {
	if o, err = o.withDefaults(); err != nil {
		return pr, err
	}
	var lists [][]ProbeSample
	var strata []*stratum
	err = ws.View(func(r store.Reader) (err error) {
		p, err := newPlanner(ws, r, o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		if err := p.survey(ctx, r, rep); err != nil {
			return err
		}
		if strata = p.stratify(int64(n)); len(strata) == 0 {
			return errors.New("nothing is left to compute, so there is nothing to probe")
		}
		for _, s := range strata {
			lists = append(lists, p.probeSamples(s))
		}
		return nil
	})
	if err != nil {
		return pr, err
	}
	if pr, err = runProbe(ctx, strata, lists, run, rep); err != nil {
		return pr, fmt.Errorf("probe: %w", err)
	}
	key, err := probeKey(o)
	if err != nil {
		return pr, err
	}
	v, err := json.Marshal(pr)
	if err != nil {
		return pr, err
	}
	return pr, ws.Update(ctx, "probe", func(tx *store.Tx) error { return tx.PutValue(key, v) })
}

// fullBatch is the tokens that a list should have, so that batches of short
// samples are filled as they are in a long run. Strata with less than a
// twentieth of the tokens, on which little depends, make do with less.
const fullBatch = 2048

// stratify picks samples that this plan computes: at least three of each
// stratum, and the more the larger its share of the tokens, and where they are
// short more than asked for. The choice is the same each time.
func (p *planner) stratify(n int64) []*stratum {
	byLength := make([]stratum, 33)
	d := p.distinct
	each := func(fn func(number uint32, s *stratum)) {
		for i, source := range d.source {
			if source == 0 {
				fn(uint32(i), &byLength[bits.Len32(max(d.need[i], 1)-1)])
			}
		}
	}
	each(func(i uint32, s *stratum) {
		s.samples++
		s.tokens += int64(d.need[i])
		s.max = max(s.max, d.need[i])
	})
	var out []*stratum
	for i := range byLength {
		if s := &byLength[i]; s.samples > 0 {
			share, mean := float64(s.tokens)/float64(p.newTokens), float64(s.tokens)/float64(s.samples)
			fill := min(fullBatch*min(1, 20*share)/mean, float64(s.samples)/4) // a probe is no run
			s.take = min(s.samples, max(3, int64(math.Round(float64(n)*share)), int64(fill)))
			out = append(out, s)
		}
	}
	seen := map[*stratum]int64{}
	rng := rand.New(rand.NewPCG(1, 2))
	each(func(i uint32, s *stratum) { // reservoir sampling
		k := seen[s]
		seen[s]++
		if k < s.take {
			s.picked = append(s.picked, i)
		} else if j := rng.Int64N(k + 1); j < s.take {
			s.picked[j] = i
		}
	})
	return out
}

func (p *planner) probeSamples(s *stratum) []ProbeSample {
	d := p.distinct
	slices.SortFunc(s.picked, func(a, b uint32) int { return int(d.need[b]) - int(d.need[a]) })
	out := make([]ProbeSample, len(s.picked))
	for i, n := range s.picked {
		set, index := p.c.locate(d.merged[n])
		row := p.c.sets[set]
		var from uint32
		if w, ok := d.windows[n]; ok {
			from = w.window * uint32(p.o.MaxTokens)
		}
		out[i] = ProbeSample{Dataset: row.ID, Name: row.Name, SamplesGen: row.SamplesGen, Index: uint64(index), From: from, To: from + d.need[n]}
	}
	return out
}

// runProbe runs the strata one after the other, and the one with most tokens
// once more at the end: the first run of anything warms up, and how far the two
// lie apart says how far the rate can be trusted.
func runProbe(ctx context.Context, strata []*stratum, lists [][]ProbeSample, run ProbeRunner, rep progress.Reporter) (pr ProbeResult, err error) {
	total, main := 0, 0
	for i, l := range lists {
		total += len(l)
		if strata[i].tokens > strata[main].tokens {
			main = i
		}
	}
	rep.Start(progress.Phase{Name: "probe", Unit: "samples", Total: int64(total + len(lists[main]))})
	defer rep.Finish()
	measured := make([]Bucket, len(lists))
	var first Bucket
	for _, i := range append(upToN(len(lists)), main) {
		b, err := run(ctx, lists[i])
		if err != nil {
			return pr, err
		}
		if i == main && first.Seconds == 0 {
			first = b
		}
		b.MaxTokens = int64(strata[i].max)
		measured[i] = b
		rep.Add(progress.Delta{Units: int64(len(lists[i])), Tokens: b.Tokens, Bytes: b.Bytes})
	}
	return summarize(strata, measured, first, main)
}

func upToN(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// summarize weighs the buckets as the plan's tokens are spread over them.
func summarize(strata []*stratum, measured []Bucket, first Bucket, main int) (ProbeResult, error) {
	pr := ProbeResult{At: time.Now().UTC()}
	var tokens, seconds, ratio float64
	for i, b := range measured {
		pr.Samples += b.Samples
		pr.Tokens += b.Tokens
		pr.Failed += b.Failed
		if b.rate() == 0 || b.RawBytes == 0 {
			continue // all of them failed: the neighbours stand for them
		}
		pr.Buckets = append(pr.Buckets, b)
		w := float64(strata[i].tokens)
		tokens += w
		seconds += w / b.rate()
		ratio += w * float64(b.Bytes) / float64(b.RawBytes)
	}
	if len(pr.Buckets) == 0 {
		return pr, fmt.Errorf("none of %d samples gave states in measurable time", pr.Samples+pr.Failed)
	}
	pr.Ratio, pr.Rate = ratio/tokens, tokens/seconds
	var spread float64
	for i, b := range measured {
		if b.RawBytes > 0 {
			off := float64(b.Bytes)/float64(b.RawBytes)/pr.Ratio - 1
			spread += float64(strata[i].tokens) * off * off
		}
	}
	few := 1 / math.Sqrt(float64(max(pr.Samples, 1)))
	pr.RatioSpread = 0.005 + math.Sqrt(spread/tokens)*few
	pr.RateSpread = 0.05 + 0.2*few
	if a, b := first.rate(), measured[main].rate(); a > 0 && b > 0 {
		pr.RateSpread += math.Abs(a-b) / (a + b)
	}
	return pr, nil
}
