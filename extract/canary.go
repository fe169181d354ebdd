package extract

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"eaglebatch/store"
)

const (
	canaryTokens = 64
	sketchDims   = 32 // numbers kept of each row of each layer
	minCosine    = 0.99
	canaryTries  = 3
)

// canary is the sample that every slot answers at start, after each reconnect
// and from time to time: its states must agree with the first answer that the
// generation got. An engine that came back with other layers, weights or
// quantization passes every check of shape.
//
// Several samples may serve, since an engine may refuse some: each slot tries one
// after the other until its engine, or another slot's, answers one. That one is
// chosen for all.
//
// Kept are a digest of the bytes and, for engines that are not deterministic, a
// random projection of each row: cosines survive it.
type canary struct {
	r      *run
	ids    [][]uint32   // of the samples that may serve
	names  []knownKey   // of those
	chosen atomic.Int64 // index in ids; -1: none was answered yet

	mu    sync.Mutex
	first *canaryRecord
}

// canaryRecord is the first answer.
type canaryRecord struct {
	Dataset string    `json:"dataset"`
	Sample  uint64    `json:"sample"`
	Tokens  int       `json:"tokens"`
	Digest  [32]byte  `json:"digest"`
	Sketch  []float32 `json:"sketch"` // [tokens, layers, sketchDims]
	Entry   int       `json:"entry"`  // which of the samples that may serve
}

func canaryKey(gen uint32) string { return fmt.Sprintf("canary/%d", gen) }

// newCanary reads the generation's first answer, if there is one, and loads
// the samples that may serve.
func newCanary(ctx context.Context, r *run) (*canary, error) {
	c := &canary{r: r}
	c.chosen.Store(-1)
	var v []byte
	err := r.ws.View(func(rd store.Reader) (err error) {
		v, _, err = rd.Value(canaryKey(r.gen.ID))
		return err
	})
	if err != nil {
		return nil, err
	}
	if v != nil {
		c.first = &canaryRecord{}
		if err := json.Unmarshal(v, c.first); err != nil {
			return nil, fmt.Errorf("the ledger's %s: %w", canaryKey(r.gen.ID), err)
		}
		c.chosen.Store(int64(c.first.Entry))
	}
	return c, c.load(ctx)
}

// load takes the first samples that are to be computed and, since an engine may
// refuse all of a few, some that it gave in older generations.
func (c *canary) load(ctx context.Context) error {
	add := func(dataset uint32, sample uint64, ids []uint32) {
		c.ids = append(c.ids, slices.Clone(ids[:min(len(ids), canaryTokens)]))
		c.names = append(c.names, knownKey{c.r.meta.Datasets[dataset], sample})
	}
	idx := c.r.idx
	for i := range min(canaryTries, idx.BlobEntries(0)) {
		e := idx.Entry(0, i)
		ids, _, err := c.r.src.entry(ctx, e)
		if err != nil {
			return err
		}
		add(e.Dataset, e.Sample, ids)
	}
	older := 0
	for i := int64(0); i < idx.Positions() && older < canaryTries; i++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p := idx.Position(i)
		if p.Gen == 0 {
			continue
		}
		older++
		ids, err := c.r.src.prefix(ctx, p)
		if err != nil {
			return err
		}
		add(p.Dataset, p.Sample, ids)
	}
	return nil
}

// candidate is the sample that a slot's engine is asked for as canary. Held:
// run.mu.
func (s *slot) candidate() (no int, ok bool) {
	no = int(s.r.canary.chosen.Load())
	if no < 0 {
		no = s.tried
	}
	return no, no < len(s.r.canary.ids)
}

// sendCanary makes the request, or none where no sample serves. Held: run.mu.
func (s *slot) sendCanary(proof bool) *request {
	s.canaryAt, s.prove = time.Now().Add(s.r.o.CanaryEvery), false
	no, ok := s.candidate()
	if !ok {
		return nil
	}
	rq := &request{ids: s.r.canary.ids[no], entry: no, proof: proof}
	if len(s.inflight) == 0 {
		s.alone = rq // nothing is asked of an engine that was not looked at
	}
	return s.send(rq)
}

// canaryCame compares an answer with the first one.
func (x *session) canaryCame(rq *request) error {
	r, s := x.r, x.s
	r.mu.Lock()
	s.unbook(rq)
	s.canaryFails = 0
	r.mu.Unlock()
	if err := r.canary.compare(x.runCtx, rq); err != nil {
		var d *errDrained
		if errors.As(err, &d) {
			return err
		}
		return x.ours(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(r.canary.chosen.Load()) != rq.entry {
		s.canaryAt = time.Time{} // another slot's engine answered another one first
		return nil
	}
	if rq.proof && !s.wary {
		s.well(rq)
	}
	r.cond.Broadcast()
	return nil
}

// canaryFailed takes the next sample for canary; the engine goes on. One that
// was answered before is asked for once more, as any sample is.
func (x *session) canaryFailed(rq *request, cause error) error {
	r, s := x.r, x.s
	r.mu.Lock()
	s.unbook(rq)
	s.canaryAt, s.prove = time.Time{}, rq.proof
	fails, answered := 0, int(r.canary.chosen.Load())
	switch {
	case answered < 0:
		s.tried++
	case answered == rq.entry:
		s.canaryFails++
		fails = s.canaryFails
	}
	_, ok := s.candidate()
	r.mu.Unlock()
	switch {
	case !ok:
		r.rep.Note("%s: the canary: %v; no other sample serves: what it gives is not compared", s, cause)
	case fails >= 2:
		return &errUnwell{fmt.Errorf("the canary, which was answered before, is refused: %w", unavailable(cause))}
	default:
		r.rep.Note("%s: the canary: %v; trying again", s, cause)
	}
	return nil
}

// canaryDied counts an engine's death at the canary; after two, another sample
// is tried. Held: run.mu.
func (s *slot) canaryDied() {
	if s.deaths++; s.deaths%2 == 0 && s.r.canary.chosen.Load() < 0 {
		s.tried++
	}
}

// compare holds an answer against the generation's first, or makes it that.
// One to another sample than the first one's says nothing.
func (c *canary) compare(ctx context.Context, rq *request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.r.meta
	digest := sha256.Sum256(rq.canary)
	if c.first != nil && (c.first.Entry != rq.entry || c.first.Digest == digest) {
		return nil
	}
	sketch := sketchRows(rq.canary, m.GivenDType(), m.Hidden)
	if c.first == nil {
		return c.choose(ctx, rq, canaryRecord{Tokens: len(rq.ids), Digest: digest, Sketch: sketch, Entry: rq.entry})
	}
	worst, at := 1.0, 0
	for i := 0; i < len(sketch) && len(sketch) == len(c.first.Sketch); i += sketchDims {
		if x := cosine(sketch[i:i+sketchDims], c.first.Sketch[i:i+sketchDims]); !(x >= worst) {
			worst, at = x, i/sketchDims
		}
	}
	switch {
	case len(sketch) != len(c.first.Sketch):
		worst = -1
	case c.r.info.Deterministic:
	case worst >= minCosine:
		return nil
	}
	return &errDrained{fmt.Errorf("%w: the canary, %s sample %d, is answered differently than at first: cosine %.4f at token %d layer %d: "+
		"the engine has other weights, layers or precision now (to take its answers as they are, begin the generation anew: --redo extract)",
		ErrNonsense, c.first.Dataset, c.first.Sample, worst, at/len(m.Layers), m.Layers[at%len(m.Layers)])}
}

// choose makes an answer the generation's first. Held: mu.
func (c *canary) choose(ctx context.Context, rq *request, first canaryRecord) error {
	first.Dataset, first.Sample = c.names[rq.entry].dataset, c.names[rq.entry].sample
	v, err := json.Marshal(first)
	if err != nil {
		return err
	}
	err = c.r.ws.Update(ctx, "canary", func(tx *store.Tx) error { return tx.PutValue(canaryKey(c.r.gen.ID), v) })
	if err != nil {
		return err
	}
	c.first = &first
	c.chosen.Store(int64(rq.entry))
	return nil
}

// sketchRows projects each row of hidden values on random directions of ±1.
func sketchRows(data []byte, dtype string, hidden int) []float32 {
	size := 2
	if dtype == "fp32" {
		size = 4
	}
	rows := len(data) / (hidden * size)
	out := make([]float32, rows*sketchDims)
	for row := range rows {
		var sum [sketchDims]float64
		for c := range hidden {
			v := value(data[(row*hidden+c)*size:], dtype)
			signs := mix(uint64(c) + 1)
			bits := math.Float64bits(v)
			for d := range sum { // a branch on the sign would be mispredicted half the time
				sum[d] += math.Float64frombits(bits ^ signs>>d<<63)
			}
		}
		for d, v := range sum {
			out[row*sketchDims+d] = float32(v)
		}
	}
	return out
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// value decodes one value.
func value(b []byte, dtype string) float64 {
	switch dtype {
	case "bf16":
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	case "fp32":
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	h := binary.LittleEndian.Uint16(b)
	v := math.Ldexp(float64(h&0x3ff|0x400), int(h>>10&31)-25)
	if h>>10&31 == 0 {
		v = math.Ldexp(float64(h&0x3ff), -24)
	}
	if h>>15 != 0 {
		v = -v
	}
	return v
}

// mix is a 64-bit finalizer.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
