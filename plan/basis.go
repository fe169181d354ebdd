package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// Bucket is what was measured for samples of like length.
type Bucket struct {
	MaxTokens int64   `json:"max_tokens"` // the longest sample of the bucket
	Samples   int64   `json:"samples"`
	Tokens    int64   `json:"tokens"`
	Seconds   float64 `json:"seconds"`
	RawBytes  int64   `json:"raw_bytes"`
	Bytes     int64   `json:"bytes"`
	Failed    int64   `json:"failed"`
}

// rate is tokens a second.
func (b Bucket) rate() float64 {
	if b.Seconds <= 0 {
		return 0
	}
	return float64(b.Tokens) / b.Seconds
}

// ratio is bytes on disk a raw byte.
func (b Bucket) ratio() float64 { return float64(b.Bytes) / float64(b.RawBytes) }

// Basis is what bytes and hours are foretold from. Zero means unknown: bytes
// are then raw bytes, and no hours are claimed.
type Basis struct {
	Rate      float64  `json:"rate"` // tokens a second
	RateFrom  string   `json:"rate_from"`
	Ratio     float64  `json:"ratio"` // bytes on disk a raw byte
	RatioFrom string   `json:"ratio_from"`
	Buckets   []Bucket `json:"buckets,omitempty"` // where Rate was measured by length
	// RateSpread and RatioSpread are relative: half the width of the range that
	// the outcome should lie in.
	RateSpread  float64 `json:"rate_spread"`
	RatioSpread float64 `json:"ratio_spread"`
}

// findBasis looks for the best measurement there is: what the caller gives,
// then a sealed generation of the same shape, then a probe.
func findBasis(r store.Reader, o Options) (Basis, error) {
	b := Basis{Rate: o.Rate, Ratio: o.Ratio}
	if b.Rate > 0 {
		b.RateFrom = "as given"
	}
	if b.Ratio > 0 {
		b.RatioFrom = "as given"
	}
	if err := b.fromGenerations(r, o); err != nil {
		return b, err
	}
	pr, ok, err := LastProbe(r, o)
	if err != nil || !ok {
		return b, err
	}
	b.fromProbe(pr)
	return b, nil
}

// fromGenerations measures by the largest sealed generation that agrees. A
// proof is small: it gives a ratio, and a rate only where nothing better is
// known.
func (b *Basis) fromGenerations(r store.Reader, o Options) error {
	gens, err := r.Generations()
	if err != nil {
		return err
	}
	var best store.GenerationRow
	for _, g := range reusable(gens, o) {
		plan, ok, err := r.PlanByID(g.Plan)
		if err != nil {
			return err
		}
		if ok && plan.Codec == o.Meta.Codec && plan.Rows == o.Rows && g.RawBytes > best.RawBytes && g.Bytes > 0 {
			best = g
		}
	}
	if best.RawBytes == 0 {
		return nil
	}
	from := fmt.Sprintf("generation %d (%s)", best.ID, best.Name)
	if b.Ratio == 0 {
		n, err := blobBytes(r, best)
		if err != nil {
			return err
		}
		b.Ratio, b.RatioFrom, b.RatioSpread = float64(n)/float64(best.RawBytes), from, 0.02
	}
	tokens := float64(best.RawBytes) / float64(shapeOf(o.Meta, o.Rows).perToken())
	if b.Rate == 0 && best.Seconds > 0 && best.Kind == retain.KindStates {
		b.Rate, b.RateFrom, b.RateSpread = tokens/best.Seconds, from, 0.1
	}
	return nil
}

// fromProbe fills in what is not known better.
func (b *Basis) fromProbe(pr ProbeResult) {
	if b.Ratio == 0 && pr.Ratio > 0 {
		b.Ratio, b.RatioFrom, b.RatioSpread = pr.Ratio, pr.describe(), pr.RatioSpread
	}
	if b.Rate == 0 && len(pr.Buckets) > 0 {
		b.RateFrom, b.Buckets, b.RateSpread = pr.describe(), pr.Buckets, pr.RateSpread
	}
}

// secondsFor foretells the time for n samples of a length.
func (b *Basis) secondsFor(tokens, n int64) float64 {
	switch {
	case b.Rate > 0:
		return float64(tokens*n) / b.Rate
	case len(b.Buckets) == 0:
		return 0
	}
	use := b.Buckets[len(b.Buckets)-1]
	for _, k := range b.Buckets {
		if tokens <= k.MaxTokens {
			use = k
			break
		}
	}
	return float64(tokens*n) / use.rate()
}

// detail is what is kept of a plan beside its row.
type detail struct {
	Options   Options   `json:"options"`
	Reserve   string    `json:"reserve"` // Options.Reserve, as it is written
	Basis     Basis     `json:"basis"`
	Reclaim   []Reclaim `json:"reclaim"`
	Needs     []uint32  `json:"needs"` // generations that the plan points into
	BlobWhy   string    `json:"blob_why"`
	BlobBytes int64     `json:"blob_bytes"`
}

func detailKey(id uint32) string { return fmt.Sprintf("plan/%06d", id) }

func putDetail(tx *store.Tx, row store.PlanRow, d detail) error {
	d.Reserve, d.Options.Reserve = d.Options.Reserve.String(), human.Share{}
	v, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return tx.PutValue(detailKey(row.ID), v)
}

func getDetail(r store.Reader, id uint32) (d detail, err error) {
	v, ok, err := r.Value(detailKey(id))
	if err != nil {
		return d, err
	}
	if !ok {
		return d, &store.CorruptError{Path: "ledger", Key: detailKey(id), Offset: -1, Err: errors.New("the plan's detail is missing")}
	}
	if err = json.Unmarshal(v, &d); err == nil {
		d.Options.Reserve, err = human.ParseShare(d.Reserve)
	}
	if err != nil {
		return d, &store.CorruptError{Path: "ledger", Key: detailKey(id), Offset: -1, Err: err}
	}
	return d, nil
}

// probeKey names the measurements that hold for the options: model, shape,
// codec and engine, but nothing that says which samples are planned.
func probeKey(o Options) (string, error) {
	h := sha256.New()
	err := json.NewEncoder(h).Encode(struct {
		Model, DType, Codec, Rows string
		Hidden                    int
		Layers                    []int
		Identity                  []store.Part
	}{o.Model, o.Meta.DType, o.Meta.Codec, o.Rows, o.Meta.Hidden, o.Meta.Layers, o.Identity})
	return "probe/" + hex.EncodeToString(h.Sum(nil)[:16]), err
}

// LastProbe returns the last probe that holds for the options.
func LastProbe(r store.Reader, o Options) (pr ProbeResult, ok bool, err error) {
	if o, err = o.withDefaults(); err != nil {
		return pr, false, err
	}
	key, err := probeKey(o)
	if err != nil {
		return pr, false, err
	}
	v, ok, err := r.Value(key)
	if err != nil || !ok {
		return pr, false, err
	}
	if err := json.Unmarshal(v, &pr); err != nil {
		return pr, false, &store.CorruptError{Path: "ledger", Key: key, Offset: -1, Err: err}
	}
	return pr, true, nil
}

// rateFor returns the mean rate over the samples that p computes.
func (b *Basis) rateFor(p *planner) float64 {
	if b.Rate > 0 || len(b.Buckets) == 0 {
		return b.Rate
	}
	var seconds float64
	for i, source := range p.distinct.source {
		if source == 0 {
			seconds += b.secondsFor(int64(p.distinct.need[i]), 1)
		}
	}
	if seconds == 0 {
		return 0
	}
	return float64(p.newTokens) / seconds
}
