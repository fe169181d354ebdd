package plan

import (
	"context"
	"errors"
	"fmt"

	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// Report is what plan shows: lengths and shares of each dataset, what the plan
// keeps, what it is foretold from, and the room there is.
type Report struct {
	Plan     store.PlanRow   `json:"plan"`
	Datasets []DatasetReport `json:"datasets"`
	Total    DatasetReport   `json:"total"`
	Overlong []OverlongLoss  `json:"overlong"` // what each way to treat samples above the cap loses
	Bars     []Bar           `json:"histogram"`
	Basis    Basis           `json:"basis"`
	Room     Room            `json:"room"`     // now, which may differ from when the plan was made
	BlobWhy  string          `json:"blob_why"` // one line
	Needs    []uint32        `json:"needs"`    // older generations the plan points into

	study    *study
	options  Options
	identity func(layers []int, dtype, rows string) []store.Part
	decided  map[string]string
	left     int64 // expected bytes still to be written
}

// Terms are what may change after a plan was made without changing what is
// planned: a report goes by what they are now.
type Terms struct {
	Rate    float64 // tokens a second as given; 0: as measured
	Reserve human.Share
	// Identity is the identity that a generation of another shape would have; nil
	// where nobody can say, so that what is stored in another shape is not counted.
	Identity func(layers []int, dtype, rows string) []store.Part
	// Decided is the decision in force, which a way out replaces: it repeats
	// what of it is to stay.
	Decided map[string]string
}

// DatasetReport is one dataset's part. Samples and tokens are those of the
// order, weights applied and repeats counted; the merged ones come before that.
type DatasetReport struct {
	Name          string  `json:"name"`
	MergedSamples int64   `json:"merged_samples"`
	MergedTokens  int64   `json:"merged_tokens"`
	Samples       int64   `json:"samples"`
	Tokens        int64   `json:"tokens"`
	LossTokens    int64   `json:"loss_tokens"`
	P50           int64   `json:"p50"`
	P90           int64   `json:"p90"`
	P99           int64   `json:"p99"`
	Max           int64   `json:"max"`
	Mean          float64 `json:"mean"`
	SampleShare   float64 `json:"sample_share"` // of all samples, before the cap
	Share         float64 `json:"share"`        // of all tokens, before the cap
	CapSamples    int64   `json:"cap_samples"`  // planned
	CapTokens     int64   `json:"cap_tokens"`
	CapShare      float64 `json:"cap_share"` // of the planned tokens
	Dropped       bool    `json:"dropped"`
}

// OverlongLoss is what one way to treat samples above the cap loses.
type OverlongLoss struct {
	Overlong   string `json:"overlong"`
	Samples    int64  `json:"samples"` // left out whole
	Cut        int64  `json:"cut"`     // shortened or split
	LostTokens int64  `json:"lost_tokens"`
	AtLeast    bool   `json:"at_least"` // LostTokens may be more: it depends on masks that were not read
}

// Bar is one bar of the histogram of lengths: samples of more than From and at
// most To tokens.
type Bar struct {
	From    int64   `json:"from"`
	To      int64   `json:"to"`
	Samples int64   `json:"samples"`
	Tokens  int64   `json:"tokens"`
	Share   float64 `json:"share"` // of all tokens
}

// BuildReport makes the report of the plan in force without changing anything.
// Where now is nil, the terms are those that the plan was made with.
func BuildReport(ctx context.Context, r store.Reader, ws *store.Workspace, now *Terms) (Report, error) {
	row, ok, err := r.Plan()
	if err != nil {
		return Report{}, err
	}
	if !ok {
		return Report{}, errors.New("no plan yet")
	}
	d, err := getDetail(r, row.ID)
	if err != nil {
		return Report{}, err
	}
	if now == nil {
		now = &Terms{Rate: d.Options.Rate, Reserve: d.Options.Reserve}
	}
	rep := Report{Plan: row, Basis: d.Basis, BlobWhy: d.BlobWhy, Needs: d.Needs, options: d.Options}
	if now.Rate != d.Options.Rate {
		if err := rep.rateBy(r, now.Rate); err != nil {
			return Report{}, err
		}
	}
	rep.options.Reserve, rep.identity, rep.decided = now.Reserve, now.Identity, now.Decided
	if rep.Plan, rep.Room, err = Reassess(ws, r, row, now.Reserve); err != nil {
		return Report{}, err
	}
	rep.left = rep.Room.Need
	if rep.study, err = newStudy(ctx, ws, r, d.Options); err != nil {
		return Report{}, fmt.Errorf("report: %w", err)
	}
	kept, err := keptBySet(ctx, ws, r, d.Options)
	if err != nil {
		return Report{}, fmt.Errorf("report: %w", err)
	}
	rep.fill(kept)
	if now.Rate != d.Options.Rate {
		rep.Plan.Rate, rep.Plan.Seconds = rep.Basis.Rate, rep.planUse().seconds
		if rep.Plan.Rate == 0 && rep.Plan.Seconds > 0 {
			rep.Plan.Rate = float64(rep.Plan.NewTokens) / rep.Plan.Seconds
		}
	}
	return rep, nil
}

// rateBy foretells the time anew by a rate that is given now, or by what was
// measured where none is given any more.
func (rep *Report) rateBy(r store.Reader, rate float64) error {
	o := rep.options
	o.Rate = rate
	b, err := findBasis(r, o)
	if err != nil {
		return err
	}
	old := &rep.Basis
	old.Rate, old.RateFrom, old.RateSpread, old.Buckets = b.Rate, b.RateFrom, b.RateSpread, b.Buckets
	return nil
}

// kept is what a plan keeps of a dataset.
type kept struct{ samples, tokens int64 }

func keptBySet(ctx context.Context, ws *store.Workspace, r store.Reader, o Options) (out []kept, err error) {
	p, err := newPlanner(ws, r, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	out = make([]kept, len(p.c.sets))
	s, err := newSelector(p.c, o, p.w)
	if err != nil {
		return nil, err
	}
	return out, s.pass(ctx, func(at place, q piece) error {
		out[at.set].samples++
		out[at.set].tokens += int64(q.rows)
		return nil
	}, nil)
}

func (rep *Report) fill(kept []kept) {
	st := rep.study
	rep.Total = DatasetReport{Name: "total"}
	var all lengthsSum
	for i := range st.sets {
		l := &st.sets[i].positions
		n, tokens := l.length.all()
		d := DatasetReport{Name: st.names[i], MergedSamples: st.merged[i].Accepted, MergedTokens: st.merged[i].Tokens,
			Samples: n, Tokens: tokens, LossTokens: l.sup, P50: l.length.quantile(.5), P90: l.length.quantile(.9),
			P99: l.length.quantile(.99), Max: l.length.max(), CapSamples: kept[i].samples, CapTokens: kept[i].tokens}
		for _, name := range rep.Plan.Drop {
			d.Dropped = d.Dropped || name == d.Name
		}
		rep.Datasets = append(rep.Datasets, d)
		all.add(&l.length)
		t := &rep.Total
		t.MergedSamples += d.MergedSamples
		t.MergedTokens += d.MergedTokens
		t.Samples += n
		t.Tokens += tokens
		t.LossTokens += d.LossTokens
		t.CapSamples += d.CapSamples
		t.CapTokens += d.CapTokens
	}
	c := all.curve()
	rep.Total.P50, rep.Total.P90, rep.Total.P99, rep.Total.Max = c.quantile(.5), c.quantile(.9), c.quantile(.99), c.max()
	for i := range rep.Datasets {
		rep.Datasets[i].shares(rep.Total)
	}
	rep.Total.shares(rep.Total)
	rep.Bars = bars(c)
	rep.Overlong = rep.overlong()
}

func (d *DatasetReport) shares(total DatasetReport) {
	share := func(a, b int64) float64 {
		if b == 0 {
			return 0
		}
		return float64(a) / float64(b)
	}
	d.Mean = share(d.Tokens, d.Samples)
	d.SampleShare = share(d.Samples, total.Samples)
	d.Share = share(d.Tokens, total.Tokens)
	d.CapShare = share(d.CapTokens, total.CapTokens)
}

// lengthsSum adds up the lengths of several sets.
type lengthsSum struct{ c curve }

func (s *lengthsSum) add(c *curve) {
	var before int64
	for i, v := range c.values {
		if s.c.counts == nil {
			s.c.counts = map[uint32]int64{}
		}
		s.c.counts[v] += c.count[i] - before
		before = c.count[i]
	}
}

func (s *lengthsSum) curve() *curve {
	s.c.seal()
	return &s.c
}

// bars cuts the lengths at the powers of two.
func bars(c *curve) []Bar {
	out := []Bar{}
	n, total := c.all()
	if n == 0 {
		return out
	}
	from, to := int64(0), int64(64)
	for doneN, doneTokens := int64(0), int64(0); doneN < n; from, to = to, 2*to {
		k, tokens := c.upTo(to)
		if k > 0 {
			out = append(out, Bar{From: from, To: to, Samples: k - doneN, Tokens: tokens - doneTokens,
				Share: float64(tokens-doneTokens) / float64(total)})
		}
		doneN, doneTokens = k, tokens
	}
	return out
}

// overlong shows the loss of each way to treat samples above the cap, over the
// datasets that are not dropped.
func (rep *Report) overlong() []OverlongLoss {
	limit := rep.Plan.MaxTokens
	if limit == 0 {
		return []OverlongLoss{}
	}
	cut, skip, split := OverlongLoss{Overlong: Truncate}, OverlongLoss{Overlong: Skip}, OverlongLoss{Overlong: Split, AtLeast: true}
	for i := range rep.study.sets {
		if rep.Datasets[i].Dropped {
			continue
		}
		s := &rep.study.sets[i]
		_, tokens := s.positions.length.all()
		t, k := s.positions.at(limit, Truncate), s.positions.at(limit, Skip)
		cut.Samples, cut.Cut, cut.LostTokens = cut.Samples+t.emptied, cut.Cut+t.truncated, cut.LostTokens+tokens-t.tokens
		skip.Samples, skip.LostTokens = skip.Samples+k.skipped, skip.LostTokens+tokens-k.tokens
		split.Cut, split.LostTokens = split.Cut+k.skipped, split.LostTokens+s.splitLost
	}
	out := []OverlongLoss{cut, skip, split}
	for i, p := 0, rep.Plan; i < len(out); i++ {
		o := &out[i]
		if o.Overlong != p.Overlong {
			continue
		}
		// The plan went over each sample, masks and budgets too.
		o.LostTokens, o.AtLeast = p.LostTokens, false
		if o.Overlong != Split {
			o.Samples, o.Cut = p.OverLength+p.Emptied, p.Truncated
		}
	}
	return out
}
