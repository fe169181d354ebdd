package extract

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

const (
	judgeRows = 200 // rows that a judgement needs, and looks back on
	earlyRows = 32  // rows of a sample until so many were scored
	laterRows = 16  // and after that, or more where hits are rare
	mostRows  = 48
	postNorm  = 0.05 // nats by which raw scores must be better to tell post-norm
	// A sample is doubted when a sound one would have as few hits with this chance.
	doubtful    = 1e-6
	freeScoring = 2 * time.Second
)

// ScoringShare says what scoring may take: one part in so many of one core's
// time, and freeScoring at first.
const ScoringShare = 20

// sense asks of a few supervised rows a sample whether lm_head(norm(state))
// ranks the next token first. States that are shifted, swapped, of another layer
// or another model have the right shape and the right statistics, and fail here.
type sense struct {
	head     *model.Head // nil: nothing is checked
	rep      progress.Reporter
	names    []string
	dtype    string
	rowBytes int
	layers   int
	prenorm  bool
	minTop1  float64
	jobs     chan *senseRows
	began    time.Time
	free     time.Duration // of scoring, beside its share of a core

	mu    sync.Mutex
	spent time.Duration // scoring
	total int64
	top1  int64
	tally map[string]*Tally
	ring  []scored // the last judgeRows rows
}

// Tally is the sense of one dataset's states so far. It is kept in the ledger
// as JSON, a map by dataset name, under SenseKey.
type Tally struct {
	Rows    int64   `json:"rows"`
	Top1    int64   `json:"top1"`     // rows that rank the next token first
	LogProb float64 `json:"log_prob"` // sum, in nats
	RawTop1 int64   `json:"raw_top1"` // the same without the final norm
	RawLog  float64 `json:"raw_log_prob"`
}

// SenseKey is the ledger key of a generation's tallies.
func SenseKey(gen uint32) string { return fmt.Sprintf("sense/%d", gen) }

// senseRows are the rows of one sample to be scored.
type senseRows struct {
	job     *job
	entry   int
	dataset uint32
	at      []int // tokens
	rows    []byte
	next    []uint32
	around  [][2]uint32 // the token itself and the one after the next, to name a shift
}

// scored is one row of the window.
type scored struct {
	model.Score
	row    []byte
	around [2]uint32
}

func newSense(r *run) (*sense, error) {
	m := r.meta
	s := &sense{rep: r.rep, names: m.Datasets, dtype: m.GivenDType(), rowBytes: m.GivenRowBytes(), layers: len(m.Layers),
		prenorm: m.LastPreNorm, minTop1: r.o.MinTop1, began: time.Now(), free: r.o.scoring, tally: map[string]*Tally{}}
	if r.o.Head != nil && !m.Synthetic && m.LastPreNorm {
		s.head = r.o.Head
	}
	var v []byte
	err := r.ws.View(func(rd store.Reader) (err error) {
		v, _, err = rd.Value(SenseKey(r.gen.ID))
		return err
	})
	if err != nil || v == nil {
		return s, err
	}
	if err := json.Unmarshal(v, &s.tally); err != nil {
		return nil, fmt.Errorf("the ledger's %s: %w", SenseKey(r.gen.ID), err)
	}
	return s, nil
}

// start scores on one goroutine, counted in wg, until stop.
func (s *sense) start(ctx context.Context, wg *sync.WaitGroup, fail func(error)) {
	s.jobs = make(chan *senseRows, 4)
	wg.Go(func() {
		for q := range s.jobs {
			if err := s.score(ctx, q); err != nil && ctx.Err() == nil {
				fail(err)
			}
			q.job.scored.Done()
		}
	})
}

// stop ends scoring; nothing may be submitted any more.
func (s *sense) stop() { close(s.jobs) }

// gather picks the rows of a sample at its first chunk and keeps those that the
// chunk has. Which rows depends on the sample alone.
func (s *sense) gather(rq *request, c backend.Chunk) {
	if s.head == nil {
		return
	}
	if c.First == 0 {
		rq.sense = s.choose(rq)
	}
	q := rq.sense
	if q == nil {
		return
	}
	step := s.layers * s.rowBytes
	for _, t := range q.at {
		if t >= c.First && t < c.First+c.Rows {
			q.rows = append(q.rows, c.Data[(t-c.First)*step+(s.layers-1)*s.rowBytes:][:s.rowBytes]...)
		}
	}
}

// choose picks rows t, ascending, whose next token is supervised.
func (s *sense) choose(rq *request) *senseRows {
	want := laterRows
	s.mu.Lock()
	early := s.total < judgeRows
	if !early {
		want = s.telling()
	}
	dear := s.spent > s.free+time.Since(s.began)/ScoringShare
	s.mu.Unlock()
	if early {
		want = earlyRows
	} else if dear {
		return nil
	}
	e := rq.job.r.idx.Entry(rq.job.no, rq.entry)
	h := binary.LittleEndian.Uint32(e.Content[:])
	var can []int
	for t := range len(rq.ids) - 1 {
		if rq.mask[t+1] == 1 && int(rq.ids[t+1]) < s.head.Vocab() {
			can = append(can, t)
		}
	}
	if len(can) == 0 {
		return nil
	}
	q := &senseRows{job: rq.job, entry: rq.entry, dataset: e.Dataset}
	n := min(want, len(can))
	for i := range n {
		t := can[(i*len(can)+int(h)%len(can))/n%len(can)]
		q.at = append(q.at, t)
	}
	slices.Sort(q.at)
	q.at = slices.Compact(q.at)
	for _, t := range q.at {
		q.next = append(q.next, rq.ids[t+1])
		a := [2]uint32{rq.ids[t], rq.ids[t+1]}
		if t+2 < len(rq.ids) {
			a[1] = rq.ids[t+2]
		}
		q.around = append(q.around, a)
	}
	return q
}

// submit hands over the rows of a sample that is complete.
func (s *sense) submit(ctx context.Context, rq *request) error {
	if rq.sense == nil {
		return nil
	}
	q := rq.sense
	rq.sense = nil
	q.job.scored.Add(1)
	select {
	case s.jobs <- q:
		return nil
	case <-ctx.Done():
		q.job.scored.Done()
		return ctx.Err()
	}
}

func (s *sense) score(ctx context.Context, q *senseRows) error {
	began := time.Now()
	scores, err := s.head.Score(ctx, q.rows, s.dtype, q.next)
	if err != nil {
		return fmt.Errorf("sense check: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent += time.Since(began)
	s.note(q, scores)
	t := s.tally[s.names[q.dataset]]
	if t == nil {
		t = &Tally{}
		s.tally[s.names[q.dataset]] = t
	}
	for i, sc := range scores {
		s.total++
		s.top1 += count(sc.Top1)
		t.Rows++
		t.LogProb += sc.LogProb
		t.RawLog += sc.RawLogProb
		t.Top1 += count(sc.Top1)
		t.RawTop1 += count(sc.RawTop1)
		s.ring = append(s.ring, scored{sc, q.rows[i*s.rowBytes:][:s.rowBytes], q.around[i]})
	}
	if n := len(s.ring) - judgeRows; n > 0 {
		s.ring = slices.Delete(s.ring, 0, n)
	}
	s.gauge()
	return s.judge(ctx)
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// gauge shows the share of all rows. Held: mu.
func (s *sense) gauge() {
	var rows, top1 int64
	for _, t := range s.tally {
		rows += t.Rows
		top1 += t.Top1
	}
	s.rep.Gauge("top1", float64(top1)/float64(rows))
}

// judge looks at the last rows. Held: mu.
func (s *sense) judge(ctx context.Context) error {
	if len(s.ring) < judgeRows || s.minTop1 <= 0 {
		return nil
	}
	var top1, rawTop1, log, rawLog float64
	for _, x := range s.ring {
		top1 += float64(count(x.Top1)) / judgeRows
		rawTop1 += float64(count(x.RawTop1)) / judgeRows
		log += x.LogProb / judgeRows
		rawLog += x.RawLogProb / judgeRows
	}
	if rawTop1 >= s.minTop1 && rawTop1 >= top1 && rawLog > log+postNorm {
		return fmt.Errorf("%w: the last layer's states are better without the final norm (next token first in %.0f%% of %d rows, mean log-probability %.2f) "+
			"than with it (%.0f%%, %.2f): the engine gives them after the norm, and the plan wants them before it",
			ErrNonsense, 100*rawTop1, judgeRows, rawLog, 100*top1, log)
	}
	if top1 >= s.minTop1 {
		return nil
	}
	why, err := s.explain(ctx)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: lm_head(norm(state)) ranks the next token first in %.1f%% of the last %d supervised rows, at least %.0f%% are expected (mean log-probability %.2f): %s",
		ErrNonsense, 100*top1, judgeRows, 100*s.minTop1, log, why)
}

// explain scores the window against the neighbouring tokens. Held: mu.
func (s *sense) explain(ctx context.Context) (string, error) {
	var rows []byte
	here, after := make([]uint32, 0, judgeRows), make([]uint32, 0, judgeRows)
	vocab := uint32(s.head.Vocab())
	for _, x := range s.ring {
		rows = append(rows, x.row...)
		here, after = append(here, min(x.around[0], vocab-1)), append(after, min(x.around[1], vocab-1))
	}
	for _, c := range []struct {
		tokens []uint32
		why    string
	}{
		{here, "they fit the token itself: the rows are shifted by one, each holds the state of the token before"},
		{after, "they fit the token after the next: the rows are shifted by one, each holds the state of the token behind"},
	} {
		scores, err := s.head.Score(ctx, rows, s.dtype, c.tokens)
		if err != nil {
			return "", fmt.Errorf("sense check: %w", err)
		}
		var hits int64
		for _, sc := range scores {
			hits += count(sc.Top1)
		}
		if float64(hits) >= s.minTop1*judgeRows {
			return c.why, nil
		}
	}
	return "they fit no neighbouring token either: the states are of other samples (swapped), of another layer or of another model", nil
}

// save puts the tallies into the ledger.
func (s *sense) save(tx *store.Tx, gen uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tally) == 0 {
		return nil
	}
	v, err := json.Marshal(s.tally)
	if err != nil {
		return err
	}
	return tx.PutValue(SenseKey(gen), v)
}
