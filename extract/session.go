package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
)

// session is one call of Serve.
type session struct {
	s       *slot
	r       *run
	ctx     context.Context // of the session
	runCtx  context.Context // of the run: a blob outlives a session
	cancel  context.CancelCauseFunc
	emitMu  sync.Mutex
	ended   bool // Serve has returned: nothing may come any more
	inEmit  bool // guarded by run.mu
	ourFail bool // the error is ours, not the engine's; guarded by run.mu
}

var (
	errStalled   = fmt.Errorf("the engine fell silent with requests in flight: %w", backend.ErrUnavailable)
	errLeftOpen  = errors.New("the engine ended and left requests unanswered")
	errEndedSoon = errors.New("the engine ended while there was more to do")
)

// session serves until there is nothing left to do (nil) or the engine fails.
func (s *slot) session(ctx context.Context) error {
	r := s.r
	x := &session{s: s, r: r, runCtx: ctx}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.cancel(nil)
	defer context.AfterFunc(x.ctx, r.wake)() // next waits on cond
	r.mu.Lock()
	s.down, s.answers, s.canaryAt = false, 0, time.Time{}
	r.mu.Unlock()

	in := make(chan backend.Request)
	var wg sync.WaitGroup
	var sendErr error
	closed := false
	wg.Go(func() {
		if sendErr = x.sendAll(in); sendErr == nil {
			closed = true
		}
		close(in)
	})
	watchCtx, watchStop := context.WithCancel(x.ctx)
	wg.Go(func() { x.watch(watchCtx) })
	err := r.o.Backend.Serve(x.ctx, s.no, in, x.emit)
	cause := context.Cause(x.ctx)
	watchStop()
	x.cancel(nil)
	wg.Wait()
	x.emitMu.Lock()
	x.ended = true
	x.emitMu.Unlock()
	if sendErr != nil && !errors.Is(sendErr, context.Canceled) {
		r.fail(sendErr)
	}
	again, err := x.verdict(err, cause, closed)
	for _, j := range again {
		if rerr := j.restart(); rerr != nil {
			r.fail(rerr)
		}
	}
	return err
}

// verdict says how a session ended and what becomes of the requests in flight;
// again are the jobs to be begun anew.
func (x *session) verdict(err, cause error, closed bool) (again []*job, verdict error) {
	s, r := x.s, x.r
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.cond.Broadcast()
	s.down = true
	if x.ourFail || r.err != nil || errors.Is(cause, errOver) {
		s.settle(false)
		return nil, nil
	}
	if errors.Is(cause, errStalled) {
		err = errStalled
	}
	if err == nil {
		switch {
		case len(s.inflight) > 0:
			err = errLeftOpen
		case !closed:
			err = errEndedSoon
		}
	}
	var proto *errProtocol
	var drained *errDrained
	var unwell *errUnwell
	if errors.As(cause, &unwell) {
		err = cause // found when nothing was left to send
	}
	blame := err != nil && !errors.As(err, &proto) && !errors.As(err, &drained) && !errors.As(err, &unwell) &&
		!errors.Is(err, backend.ErrReconnect) && !backend.IsNoBlame(err)
	var last *request
	canary := false
	for _, rq := range s.inflight {
		canary = canary || rq.job == nil && rq.taken
		last = rq
	}
	again = s.settle(blame)
	switch {
	case errors.As(err, &unwell):
		s.tried = 0
	case blame && canary:
		s.canaryDied()
	case blame && last != nil && len(s.streak) >= maxStreak:
		err = s.unwell(r.nameOf(last), err)
	}
	return again, err
}

// settle puts the requests in flight back in line. Where the engine died of one
// of them, each becomes more suspect; one that was alone is held, in the next
// session too, until the engine answers another. A job whose blob has rows of a
// sample that did not end is to be begun anew. Held: run.mu.
func (s *slot) settle(blame bool) (restart []*job) {
	alone := len(s.inflight) == 1
	var killer *request
	clear(s.streams)
	for _, rq := range s.inflight {
		taken, begun := rq.taken, rq.stream && rq.got > 0
		rq.taken, rq.got, rq.bad, rq.sense = false, 0, nil, nil
		s.credit.back(rq, false)
		if rq.job == nil {
			continue
		}
		if rq.job.lost {
			s.credit.back(rq, true)
			continue
		}
		deadly := blame && taken && s.killed(rq) && alone
		switch {
		case begun:
			if deadly {
				s.holdStream(rq.key()) // where that cannot be, it is tried again
			}
			s.credit.back(rq, true)
			restart = append(restart, rq.job)
		case deadly:
			killer = rq
		default:
			s.resend = append(s.resend, rq)
		}
	}
	clear(s.inflight)
	s.alone = nil
	s.idle()
	s.putBack(killer)
	return restart
}

// killed notes that the engine died while it had rq. It reports whether that was
// not the first time. Held: run.mu.
func (s *slot) killed(rq *request) bool {
	t := s.r.troubleOf(rq.key())
	t.kills++
	rq.suspect = t.kills >= 2
	if rq.suspect && len(s.inflight) == 1 {
		t.last, t.given = "the engine died at it, and again when it was alone", true
		s.missed(rq.key())
	}
	return rq.suspect
}

// putBack has the next session try again what is held, less the samples that the
// engine died at. Held: run.mu.
func (s *slot) putBack(killer *request) {
	held := s.held
	s.held = nil
	for _, rq := range held {
		if rq.suspect {
			s.held = append(s.held, rq)
		} else {
			s.resend = append(s.resend, rq)
		}
	}
	if killer != nil {
		killer.heldAt = s.r.nextID
		s.held = append(s.held, killer)
	}
	s.inOrder()
}

// inOrder sorts what is to be sent again as it is planned. Held: run.mu.
func (s *slot) inOrder() {
	slices.SortFunc(s.resend, func(a, b *request) int {
		if a.job != b.job {
			return slices.Index(s.jobs, a.job) - slices.Index(s.jobs, b.job)
		}
		return a.entry - b.entry
	})
}

// sendAll sends requests until there are no more.
func (x *session) sendAll(in chan<- backend.Request) error {
	for {
		rq, err := x.s.next(x.ctx)
		if unwell := (*errUnwell)(nil); errors.As(err, &unwell) {
			x.cancel(err)
			return x.ctx.Err()
		}
		if err != nil || rq == nil {
			return err
		}
		if rq.job != nil {
			skip, err := x.prepare(rq)
			if err != nil {
				return err
			}
			if skip {
				continue
			}
		}
		x.r.mu.Lock()
		rq.taken = true // before it is sent: the answer may come at once
		x.r.mu.Unlock()
		select {
		case in <- backend.Request{ID: rq.id, Tokens: rq.ids, Name: x.r.nameOf(rq)}:
		case <-x.ctx.Done():
			x.r.mu.Lock()
			rq.taken = false
			x.r.mu.Unlock()
			return x.ctx.Err()
		}
	}
}

// prepare loads a request's sample. It reports whether the entry is left out
// instead.
func (x *session) prepare(rq *request) (skip bool, err error) {
	r, j := x.r, rq.job
	r.mu.Lock()
	verdict := ""
	if t := r.trouble[rq.key()]; t != nil {
		verdict = t.verdict
	}
	if verdict != "" || j.lost {
		x.s.unbook(rq)
		r.mu.Unlock()
		x.s.release(rq)
		if verdict == "" {
			return true, nil
		}
		return true, x.ours(j.leaveOut(x.runCtx, rq.entry, verdict))
	}
	r.mu.Unlock()
	e := r.idx.Entry(j.no, rq.entry)
	if rq.entry == 0 {
		if err := r.room.forOpen(); err != nil {
			return false, x.ours(err)
		}
	}
	ids, mask, err := r.src.entry(x.ctx, e)
	if err != nil {
		return false, x.ours(err)
	}
	// The request is booked already: slots that look for a straggler read it.
	r.mu.Lock()
	defer r.mu.Unlock()
	rq.ids, rq.mask = ids, mask
	return false, nil
}

// ours ends the run with an error that is not the engine's.
func (x *session) ours(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err // the session ended first, for another reason
	}
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	x.ourFail = true
	err = x.r.spaceError(err, 0)
	x.r.failLocked(err)
	return err
}

// watch cancels a session whose engine fell silent, or that is not needed any
// more.
func (x *session) watch(ctx context.Context) {
	r, s := x.r, x.s
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.mu.Lock()
		silent := len(s.inflight) > 0 && !x.inEmit && time.Since(s.heard) > s.patience()
		useless := r.over() && len(s.inflight) > 0 && onlyLost(s.inflight)
		r.mu.Unlock()
		switch {
		case useless:
			x.cancel(errOver)
			return
		case silent:
			x.cancel(errStalled)
			return
		}
	}
}

func onlyLost(rqs map[uint64]*request) bool {
	for _, rq := range rqs {
		if rq.job != nil && !rq.job.lost {
			return false
		}
	}
	return true
}

// patience is how long this slot may stay silent. Held: run.mu.
func (s *slot) patience() time.Duration {
	switch {
	case s.r.o.Stall > 0:
		return s.r.o.Stall
	case s.slowest == 0:
		return time.Hour
	}
	return max(10*time.Minute, 10*s.slowest)
}
