package extract

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
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
// Kept are a digest of the bytes and, for engines that are not deterministic, a
// random projection of each row: cosines survive it.
type canary struct {
	r *run

	mu     sync.Mutex
	tries  int // samples that could not be used
	deaths int
	ids    []uint32
	first  *canaryRecord
}

// canaryRecord is the first answer.
type canaryRecord struct {
	Dataset string    `json:"dataset"`
	Sample  uint64    `json:"sample"`
	Tokens  int       `json:"tokens"`
	Digest  [32]byte  `json:"digest"`
	Sketch  []float32 `json:"sketch"` // [tokens, layers, sketchDims]
	Entry   int       `json:"entry"`  // of blob 0
}

func canaryKey(gen uint32) string { return fmt.Sprintf("canary/%d", gen) }

// newCanary reads the generation's first answer, if there is one, and loads
// the sample.
func newCanary(ctx context.Context, r *run) (*canary, error) {
	c := &canary{r: r}
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
		c.tries = c.first.Entry
	}
	return c, c.load(ctx)
}

// load takes the sample: the first planned one that the engine does not refuse.
func (c *canary) load(ctx context.Context) error {
	c.ids = nil
	if c.tries >= min(canaryTries, c.r.idx.BlobEntries(0)) {
		c.r.rep.Note("no sample serves as canary: engines are not compared with each other")
		return nil
	}
	ids, _, err := c.r.src.entry(ctx, c.r.idx.Entry(0, c.tries))
	c.ids = ids[:min(len(ids), canaryTokens)]
	return err
}

// sendCanary makes the request, or none where no sample serves. Held: run.mu.
func (s *slot) sendCanary() *request {
	s.canaryAt = time.Now().Add(s.r.o.CanaryEvery)
	c := s.r.canary
	c.mu.Lock()
	ids := c.ids
	c.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	rq := &request{ids: ids}
	if len(s.inflight) == 0 {
		s.alone = rq // nothing is asked of an engine that was not looked at
	}
	return s.send(rq)
}

// canaryCame compares an answer with the first one.
func (x *session) canaryCame(rq *request) error {
	r := x.r
	r.mu.Lock()
	x.s.unbook(rq)
	x.s.canaryFails = 0
	r.mu.Unlock()
	if err := r.canary.compare(x.runCtx, rq.ids, rq.canary); err != nil {
		var d *errDrained
		if errors.As(err, &d) {
			return err
		}
		return x.ours(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x.s.well(rq)
	r.cond.Broadcast()
	return nil
}

// canaryFailed takes the next sample for canary; the engine goes on. One that
// was answered before is asked for once more, as any sample is.
func (x *session) canaryFailed(rq *request, cause error) error {
	r, c := x.r, x.r.canary
	r.mu.Lock()
	x.s.unbook(rq)
	x.s.canaryAt = time.Time{}
	x.s.canaryFails++
	again := x.s.canaryFails < 2
	r.mu.Unlock()
	answered, err := c.next(x.runCtx)
	if answered && again {
		r.rep.Note("slot %d: the canary: %v; trying again", x.s.no, cause)
		return nil
	}
	if answered {
		return &errUnwell{fmt.Errorf("slot %d refuses the canary, which was answered before: %w", x.s.no, unavailable(cause))}
	}
	return x.ours(err)
}

// again makes a first answer possible after all, where an engine that was not well
// has used up the samples for it.
func (c *canary) again(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil || len(c.ids) > 0 {
		return nil
	}
	c.tries = 0
	return c.load(ctx)
}

// died counts an engine's death at the canary; after two, another sample is
// tried.
func (c *canary) died(ctx context.Context) error {
	c.mu.Lock()
	c.deaths++
	again := c.deaths%2 != 0
	c.mu.Unlock()
	if again {
		return nil
	}
	_, err := c.next(ctx)
	return err
}

// next goes on to another sample, unless this one was answered once.
func (c *canary) next(ctx context.Context) (answered bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		return true, nil
	}
	c.tries++
	return false, c.load(ctx)
}

// compare holds an answer against the generation's first, or makes it that.
func (c *canary) compare(ctx context.Context, ids []uint32, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.r.meta
	digest := sha256.Sum256(data)
	if c.first != nil && c.first.Digest == digest {
		return nil
	}
	sketch := sketchRows(data, m.GivenDType(), m.Hidden)
	if c.first == nil {
		e := c.r.idx.Entry(0, c.tries)
		c.first = &canaryRecord{Dataset: m.Datasets[e.Dataset], Sample: e.Sample, Tokens: len(ids), Digest: digest, Sketch: sketch, Entry: c.tries}
		v, err := json.Marshal(c.first)
		if err != nil {
			return err
		}
		return c.r.ws.Update(ctx, "canary", func(tx *store.Tx) error { return tx.PutValue(canaryKey(c.r.gen.ID), v) })
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
