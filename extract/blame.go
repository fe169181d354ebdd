package extract

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
)

// trouble is what went wrong with a sample so far. Guarded by run.mu.
type trouble struct {
	fails   int    // since its engine was last found to be at fault
	kills   int    // deaths of an engine that had it
	last    string // how it failed last
	given   bool   // it failed often enough, or for good
	verdict string // why it is left out; "": it is not
}

// maxStreak is how many distinct samples may fail on a slot with none that
// succeeds between, before its engine is taken to be at fault.
const maxStreak = 8

func (r *run) troubleOf(k entryKey) *trouble {
	t := r.trouble[k]
	if t == nil {
		t = &trouble{}
		r.trouble[k] = t
	}
	return t
}

// failed takes a sample that ended without (good) rows: it is held until the
// engine answers something well, and then tried again, once. One that fails again
// is left out, when the engine answers something else well again. Only that shows
// that the sample is to blame: an engine that is at fault fails at good ones, and
// may be well the next moment.
func (x *session) failed(rq *request, cause error) error {
	r, s := x.r, x.s
	if rq.job == nil {
		return x.canaryFailed(rq, cause)
	}
	var se *backend.SampleError
	permanent := errors.As(cause, &se) && se.Permanent
	r.mu.Lock()
	s.unbook(rq)
	if rq.job.lost {
		s.credit.back(rq, true)
		r.mu.Unlock()
		return nil
	}
	key := rq.key()
	t := r.troubleOf(key)
	t.fails++
	t.last = cause.Error()
	s.missed(key)
	t.given = permanent || t.fails >= 2
	given := t.given
	begun := rq.stream && rq.got > 0
	rq.got, rq.bad, rq.sense, rq.taken = 0, nil, nil, false
	s.credit.back(rq, begun)
	fault := len(s.streak) >= maxStreak
	switch {
	case begun && given:
		fault = fault || !s.holdStream(key)
	case begun:
		s.canaryAt = time.Time{} // comes before it is tried again
	default:
		rq.heldAt = r.nextID
		s.held = append(s.held, rq)
	}
	var unwell error
	if fault {
		unwell = s.unwell(r.entryName(key), cause)
	}
	r.cond.Broadcast()
	r.mu.Unlock()
	if !given {
		r.rep.Note("%s: %s: %v; trying again", s, r.entryName(key), cause)
	}
	if begun {
		if err := x.ours(rq.job.restart()); err != nil {
			return err
		}
	}
	return unwell
}

// missed counts a sample that failed. One that an older generation had to leave
// out already says nothing about the engine. Held: run.mu.
func (s *slot) missed(k entryKey) {
	e := s.r.idx.Entry(k.blob, k.entry)
	if !s.r.known[knownKey{s.r.meta.Datasets[e.Dataset], e.Sample}] {
		s.streak[k] = true
	}
}

// holdStream holds a sample whose blob is begun anew until the canary, which
// comes next, is answered. It reports false where nothing can show that the engine
// is well. Held: run.mu.
func (s *slot) holdStream(k entryKey) bool {
	if s.wary {
		return false
	}
	if _, ok := s.candidate(); !ok {
		if s.answers > 0 {
			s.r.leaveOut(k, s.r.troubleOf(k).last)
		}
		return s.answers > 0
	}
	s.streams[k] = s.r.nextID
	s.canaryAt = time.Time{}
	return true
}

// unwell is the error of a slot that fails at one sample after the other, the last
// of them named. What it failed at and holds is to be tried again as if it had
// not been: and since such an engine may still answer the short canary, that says
// nothing of it until it answers a sample. Held: run.mu.
func (s *slot) unwell(name string, cause error) error {
	n := len(s.streak)
	for k := range s.streak {
		t := s.r.troubleOf(k)
		t.fails, t.given = 0, false
	}
	clear(s.streak)
	clear(s.streams)
	s.resend = append(s.resend, s.held...)
	s.held = nil
	s.inOrder()
	s.wary = true
	return &errUnwell{fmt.Errorf("%d samples in a row failed, the engine is at fault and none of them is left out: the last, %s: %w", n, name, unavailable(cause))}
}

// well notes that the engine answered rq as it should. Samples that it had failed
// at when rq was sent are tried again, or left out. Held: run.mu.
func (s *slot) well(rq *request) {
	for k, at := range s.streams {
		if at < rq.id {
			delete(s.streams, k)
			s.r.leaveOut(k, s.r.troubleOf(k).last)
		}
	}
	// A run that is to stop is not held up for what the canary alone can decide.
	s.giveUp(func(h *request) bool {
		return h.heldAt < rq.id && (rq.job != nil || !s.r.halt || !s.r.troubleOf(h.key()).given)
	})
}

// retried reports that a sample is held which is to be tried once more when the
// engine is well. Held: run.mu.
func (s *slot) retried() bool {
	return slices.ContainsFunc(s.held, func(rq *request) bool { return !s.r.troubleOf(rq.key()).given })
}

// giveBack drops the blobs that wait for samples that are held, when the run is to
// stop: whether these are to blame can be found out another time. Held: run.mu,
// which is let go meanwhile.
func (s *slot) giveBack() error {
	var jobs []*job
	for _, rq := range s.held {
		if !slices.Contains(jobs, rq.job) {
			jobs = append(jobs, rq.job)
		}
	}
	s.r.mu.Unlock()
	defer s.r.mu.Lock()
	var errs []error
	for _, j := range jobs {
		s.r.rep.Note("blob %d is left to the next run: it waits for samples that the engine failed at", j.no)
		errs = append(errs, j.drop())
	}
	return errors.Join(errs...)
}

// giveUp ends the holding of samples that are to blame. Held: run.mu.
func (s *slot) giveUp(blamed func(*request) bool) {
	for i := 0; i < len(s.held); {
		rq := s.held[i]
		if !blamed(rq) {
			i++
			continue
		}
		s.held = slices.Delete(s.held, i, i+1)
		if t := s.r.troubleOf(rq.key()); t.given {
			s.r.leaveOut(rq.key(), t.last)
		}
		s.resend = append(s.resend, rq)
	}
}

// leaveOut gives a sample up; its request, or the next one for it, comes to
// know when it is to be sent. Held: run.mu.
func (r *run) leaveOut(k entryKey, reason string) {
	t := r.troubleOf(k)
	if t.verdict != "" {
		return // the slot that has the same blob was faster
	}
	t.verdict = reason
	r.rep.Note("quarantined: %s: %s", r.entryName(k), reason)
}
