package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/human"
)

// slot is one independent engine. All but no and credit's sizes is guarded by
// run.mu.
type slot struct {
	r      *run
	no     int
	credit *credit
	jobs   []*job
	resend []*request // to be sent again; they keep their credit
	held   []*request // failed: see well
	// streams are held too: samples whose blob was begun anew, and the last request
	// that was sent before.
	streams  map[entryKey]uint64
	inflight map[uint64]*request
	alone    *request // nothing may be sent beside it
	down     bool     // between two sessions
	heard    time.Time
	drained  bool
	busy     time.Time     // since when requests are in flight; zero: none are
	busyTime time.Duration // before that
	slowest  time.Duration // longest silence before an answer
	canaryAt time.Time     // when the next one is due
	// canaryFails counts its failures since it was last answered.
	canaryFails int
	tried       int     // samples that its engine did not answer as canary
	deaths      int     // of its engine at the canary
	tokens      int64   // answered
	rate        float64 // tokens a second while busy, moving
	answers     int64   // samples that came in the session
	// streak are the samples that failed since the last one that did not.
	streak map[entryKey]bool
	prove  bool  // the canary that failed was to decide, and so is the next
	wary   bool  // the engine was found to be at fault and has answered no sample since
	ailing error // how its last session ended, if none has answered since
}

// newSlot makes slot no with so many bytes of credit.
func newSlot(r *run, no int, budget int64) *slot {
	return &slot{r: r, no: no, credit: newCredit(budget, r.cost.tokenBytes),
		inflight: map[uint64]*request{}, streak: map[entryKey]bool{}, streams: map[entryKey]uint64{}}
}

// String names the slot for people, with its engine where that has a name.
func (s *slot) String() string {
	if b, ok := s.r.o.Backend.(backend.Namer); ok {
		return fmt.Sprintf("slot %d (%s)", s.no, b.Name(s.no))
	}
	return fmt.Sprintf("slot %d", s.no)
}

// errDrained takes a slot out of the run; the others go on.
type errDrained struct{ err error }

func (e *errDrained) Error() string { return e.err.Error() }
func (e *errDrained) Unwrap() error { return e.err }

// errUnwell is an engine that fails at what it should not. None of the samples in
// flight is to blame for it; the slot goes on once it is well again.
type errUnwell struct{ err error }

func (e *errUnwell) Error() string { return e.err.Error() }
func (e *errUnwell) Unwrap() error { return e.err }

// errProtocol is an answer that no request explains.
type errProtocol struct{ err error }

func (e *errProtocol) Error() string { return "the engine broke the protocol: " + e.err.Error() }
func (e *errProtocol) Unwrap() error { return e.err }

const (
	lastBackoff = 30 * time.Second
	maxBroken   = 8 // protocol errors of one slot
)

// loop runs sessions until there is nothing left for this slot.
func (s *slot) loop(ctx context.Context) {
	failures, broken := 0, 0
	for ctx.Err() == nil {
		err := s.session(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		var proto *errProtocol
		if errors.As(err, &proto) {
			if broken++; broken >= maxBroken {
				err = &errDrained{fmt.Errorf("%w; %d times now: %w", err, broken, backend.ErrUnavailable)}
			}
		}
		var drained *errDrained
		if errors.As(err, &drained) {
			s.drain(drained.err)
			return
		}
		if s.took() > 0 {
			failures = 0
			if errors.Is(err, backend.ErrReconnect) {
				continue
			}
		}
		failures++
		if !s.wait(ctx, failures, err) {
			return
		}
	}
}

func (s *slot) took() int64 {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.answers
}

// wait backs off after a failed session. It returns false when there is nothing
// to come back for.
func (s *slot) wait(ctx context.Context, failures int, cause error) bool {
	r := s.r
	idle := time.Since(time.Unix(0, r.progress.Load()))
	left := r.o.Patience - idle
	r.mu.Lock()
	same := s.ailing != nil && s.ailing.Error() == cause.Error()
	s.ailing = cause
	working := slices.ContainsFunc(r.slots, (*slot).working)
	r.mu.Unlock()
	switch {
	case working:
		left = max(left, lastBackoff)
	case left <= 0:
		r.fail(r.noneWell(idle))
		return false
	}
	d := min(lastBackoff, r.o.backoff<<min(failures-1, 10), left+time.Millisecond)
	if !same || failures&(failures-1) == 0 { // not a line each half minute of a night
		r.rep.Note("%s: %v; trying again in %s%s", s, cause, d.Round(time.Millisecond), times(failures))
	}
	r.rep.Waiting("the engine of " + s.String())
	defer r.rep.Waiting("")
	t := time.NewTimer(d)
	defer t.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		case <-tick.C:
			r.mu.Lock()
			over := r.over()
			r.mu.Unlock()
			if over {
				return false
			}
		}
	}
}

// times says how often a slot has failed in a row.
func times(failures int) string {
	if failures == 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times now)", failures)
}

// working reports that the slot's engine is at work on something, which it may be
// for longer than patience where a sample is long. One that never answered may as
// well hang. Held: run.mu.
func (s *slot) working() bool {
	return !s.down && !s.drained && s.slowest > 0 && len(s.inflight) > 0 && time.Since(s.heard) <= s.patience()
}

// noneWell is the end of patience: it says how each engine fails.
func (r *run) noneWell(idle time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, s := range r.slots {
		if s.ailing != nil {
			errs = append(errs, fmt.Errorf("%s: nothing came for %s (extract.patience): %w", s, human.Duration(idle), s.ailing))
		}
	}
	return unavailable(errors.Join(errs...))
}

// unavailable makes err match backend.ErrUnavailable.
func unavailable(err error) error {
	if errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
}

// drain gives back what the slot holds; the run fails when no slot is left.
func (s *slot) drain(cause error) {
	r := s.r
	r.mu.Lock()
	jobs := slices.Clone(s.jobs)
	s.down, s.drained, s.ailing = true, true, cause
	last := !slices.ContainsFunc(r.slots, func(x *slot) bool { return !x.drained })
	r.mu.Unlock()
	r.rep.Note("%s is out: %v", s, cause)
	for _, j := range jobs {
		r.mu.Lock()
		full := j.full
		r.mu.Unlock()
		if full {
			continue
		}
		if err := j.drop(); err != nil {
			r.fail(err)
		}
	}
	if last {
		r.fail(unavailable(cause))
	}
}

// release gives a request's slabs and credit back.
func (s *slot) release(rq *request) {
	s.r.mu.Lock()
	s.credit.back(rq, true)
	s.r.cond.Broadcast()
	s.r.mu.Unlock()
}

// next waits for the next request to send. It returns nil when there is nothing
// left to send on this slot, ever.
func (s *slot) next(ctx context.Context) (*request, error) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if rq := s.pick(); rq != nil {
			return rq, nil
		}
		if r.over() && len(s.inflight) == 0 {
			return nil, nil
		}
		if s.stuck() {
			if r.halt {
				if err := s.giveBack(); err != nil {
					return nil, err
				}
				continue
			}
			if s.wary || s.answers == 0 { // and no sample serves as canary
				k := s.held[len(s.held)-1].key()
				return nil, s.unwell(r.entryName(k), errors.New(r.troubleOf(k).last))
			}
			s.giveUp(func(*request) bool { return true })
			continue
		}
		r.cond.Wait()
	}
}

// pick chooses what to send now, if anything may be. Held: run.mu.
func (s *slot) pick() *request {
	if s.alone != nil {
		return nil
	}
	if !time.Now().Before(s.canaryAt) {
		if rq := s.sendCanary(len(s.streams) > 0 || s.prove); rq != nil {
			return rq
		}
	}
	if rq := s.pickSample(); rq != nil {
		return rq
	}
	if s.stuck() && !s.wary && (!s.r.halt || s.retried()) {
		return s.sendCanary(true) // nothing else is left that could show that it is well
	}
	return nil
}

// stuck reports that samples are held and that no other will be sent before it is
// known what becomes of them. A blob that is being committed makes room for another
// when it is. Held: run.mu.
func (s *slot) stuck() bool {
	if len(s.held) == 0 || len(s.inflight) > 0 {
		return false
	}
	return s.r.halt || len(s.r.todo) == 0 || !slices.ContainsFunc(s.jobs, func(j *job) bool { return j.full })
}

// pickSample chooses a sample. Held: run.mu.
func (s *slot) pickSample() *request {
	r := s.r
	if len(s.resend) > 0 {
		rq := s.resend[0]
		if rq.suspect && len(s.inflight) > 0 {
			return nil
		}
		s.resend = slices.Delete(s.resend, 0, 1)
		if rq.suspect {
			s.alone = rq
		}
		return s.send(rq)
	}
	open := 0
	for _, j := range s.jobs {
		if j.lost || j.full {
			continue
		}
		open++
		if j.next < j.entries {
			return s.ask(j)
		}
	}
	if open >= maxOpen || len(s.jobs) >= maxUncommitted {
		return nil
	}
	if no, ok := r.take(s); ok {
		return s.ask(r.begin(s, no))
	}
	return nil
}

// ask makes the request for a job's next entry, if there is credit for it.
func (s *slot) ask(j *job) *request {
	n, stream := s.credit.need(int(j.r.idx.Entry(j.no, j.next).Rows))
	if s.credit.free < n {
		return nil
	}
	s.credit.free -= n
	rq := &request{job: j, entry: j.next, credit: n, stream: stream}
	j.next++
	if stream {
		s.alone = rq
	}
	return s.send(rq)
}

// send books a request as in flight.
func (s *slot) send(rq *request) *request {
	s.r.nextID++
	rq.id = s.r.nextID
	if len(s.inflight) == 0 {
		s.busy = time.Now()
		s.heard = s.busy
		s.r.clock.start(s.busy)
	}
	s.inflight[rq.id] = rq
	return rq
}

// unbook takes a request out of flight. Held: run.mu.
func (s *slot) unbook(rq *request) {
	delete(s.inflight, rq.id)
	if s.alone == rq {
		s.alone = nil
	}
	if len(s.inflight) == 0 {
		s.idle()
	}
	s.r.cond.Broadcast()
}

// idle notes that nothing is in flight any more. Held: run.mu.
func (s *slot) idle() {
	if s.busy.IsZero() {
		return
	}
	now := time.Now()
	s.busyTime, s.busy = s.busyFor(now), time.Time{}
	s.r.clock.stop(now)
}
