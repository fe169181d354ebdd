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
	var lists [][]ProbeSample // one a stratum, then the mixture
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
			lists = append(lists, p.probeSamples(s.longestFirst(p.distinct)))
		}
		lists = append(lists, p.probeSamples(p.mixture(int64(n), strata)))
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

func (s *stratum) longestFirst(d *distinct) []uint32 {
	slices.SortFunc(s.picked, func(a, b uint32) int { return int(d.need[b]) - int(d.need[a]) })
	return s.picked
}

// mixture picks samples as the plan has them, at equal distances in its order:
// at least n, and as many as fill a few batches. An engine may remember what it
// has seen, so those of the strata are passed over where there are enough
// others.
func (p *planner) mixture(n int64, strata []*stratum) []uint32 {
	seen := map[uint32]bool{}
	for _, s := range strata {
		for _, i := range s.picked {
			seen[i] = true
		}
	}
	var all, fresh []uint32
	for i, source := range p.distinct.source {
		if source == 0 {
			all = append(all, uint32(i))
			if !seen[uint32(i)] {
				fresh = append(fresh, uint32(i))
			}
		}
	}
	want := max(n, min(3*fullBatch*int64(len(all))/max(p.newTokens, 1), int64(len(all))/4))
	want = min(want, int64(len(all)))
	if int64(len(fresh)) < want {
		fresh = all
	}
	out := make([]uint32, want)
	for i := range out {
		out[i] = fresh[int64(i)*int64(len(fresh))/want]
	}
	return out
}

func (p *planner) probeSamples(numbers []uint32) []ProbeSample {
	d := p.distinct
	out := make([]ProbeSample, len(numbers))
	for i, n := range numbers {
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

// runProbe runs the strata one after the other, which shows how the rate goes
// with length and warms the engine up, and then the mixture, as an extraction
// would: its rate is the plan's, and by it the strata's are corrected.
func runProbe(ctx context.Context, strata []*stratum, lists [][]ProbeSample, run ProbeRunner, rep progress.Reporter) (pr ProbeResult, err error) {
	total := 0
	for _, l := range lists {
		total += len(l)
	}
	rep.Start(progress.Phase{Name: "probe", Unit: "samples", Total: int64(total)})
	defer rep.Finish()
	measured := make([]Bucket, len(lists))
	for i, l := range lists {
		if measured[i], err = run(ctx, l); err != nil {
			return pr, err
		}
		rep.Add(progress.Delta{Units: int64(len(l)), Tokens: measured[i].Tokens, Bytes: measured[i].Bytes})
	}
	mixed := len(strata)
	for i, s := range strata {
		measured[i].MaxTokens = int64(s.max)
	}
	return summarize(strata, measured[:mixed], measured[mixed], lists[mixed])
}

// summarize weighs the buckets as the plan's tokens are spread over them.
func summarize(strata []*stratum, measured []Bucket, mixed Bucket, list []ProbeSample) (ProbeResult, error) {
	pr := ProbeResult{At: time.Now().UTC(), Samples: mixed.Samples, Tokens: mixed.Tokens, Failed: mixed.Failed}
	var weights []float64
	for i, b := range measured {
		pr.Samples += b.Samples
		pr.Tokens += b.Tokens
		pr.Failed += b.Failed
		if b.rate() > 0 && b.RawBytes > 0 { // else all of them failed: the neighbours stand for them
			pr.Buckets = append(pr.Buckets, b)
			weights = append(weights, float64(strata[i].tokens))
		}
	}
	if len(pr.Buckets) == 0 {
		return pr, fmt.Errorf("none of %d samples gave states in measurable time", pr.Samples+pr.Failed)
	}
	slower := slowdown(pr.Buckets, mixed, list)
	var tokens, seconds, ratio, spread float64
	for i := range pr.Buckets {
		b := &pr.Buckets[i]
		b.Seconds *= slower
		tokens += weights[i]
		seconds += weights[i] / b.rate()
		ratio += weights[i] * b.ratio()
	}
	pr.Ratio, pr.Rate = ratio/tokens, tokens/seconds
	for i, b := range pr.Buckets {
		off := b.ratio()/pr.Ratio - 1
		spread += weights[i] * off * off
	}
	few := 1 / math.Sqrt(float64(max(pr.Samples, 1)))
	pr.RatioSpread = 0.005 + math.Sqrt(spread/tokens)*few
	// The more the strata were off, the less is known of other mixtures.
	pr.RateSpread = 0.05 + 0.2*few + math.Abs(slower-1)/4
	return pr, nil
}

// slowdown is the time that a mixture took relative to what the buckets foretell:
// batches of all lengths are filled otherwise than those of one, and a short
// list of samples suffers more from its beginning and end.
func slowdown(buckets []Bucket, mixed Bucket, list []ProbeSample) float64 {
	basis := Basis{Buckets: buckets}
	var tokens, foretold float64
	for _, s := range list {
		n := int64(s.To - s.From)
		tokens += float64(n)
		foretold += basis.secondsFor(n, 1)
	}
	if mixed.rate() == 0 || foretold == 0 {
		return 1
	}
	return mixed.Seconds / (foretold * float64(mixed.Tokens) / tokens)
}
