package extract

import (
	"slices"
	"time"
)

// maxOpen is how many blobs a slot has begun and not written in full: one being
// finished, one whose requests flow, and one more where blobs are small.
const maxOpen = 3

// maxUncommitted is how many blobs a slot has begun that the ledger does not have:
// where commits do not keep up with the engine it waits, so that a crash costs no
// more than these.
const maxUncommitted = maxOpen + 1

// take finds the next blob for s: the first that nobody makes or, where nothing
// is left and s is idle, the open blob of a straggler. Held: run.mu.
func (r *run) take(s *slot) (no int, ok bool) {
	if !r.halt && len(r.todo) > 0 && (r.o.Limit <= 0 || r.handed < r.o.Limit) {
		no = r.todo[0]
		r.todo = r.todo[1:]
		r.handed += r.cost.positions[no]
		return no, true
	}
	if len(s.jobs) > 0 || len(s.inflight) > 0 {
		return 0, false
	}
	j := r.straggler(s)
	if j == nil || !r.room.forTwin(j.no) {
		return 0, false
	}
	r.rep.Note("slot %d takes over blob %d from slot %d", s.no, j.no, j.s.no)
	return j.no, true
}

// straggler returns the open job that would end last, if s would be done with
// it from the start before that. Held: run.mu.
func (r *run) straggler(s *slot) *job {
	var worst *job
	var most time.Duration
	for no, js := range r.open {
		if r.claimed[no] || len(js) != 1 || js[0].s == s || js[0].full {
			continue
		}
		j := js[0]
		left := j.s.eta(j.tokensLeft())
		if left > most || worst != nil && left == most && no < worst.no {
			worst, most = j, left
		}
	}
	if worst == nil {
		return nil
	}
	rate := s.rate
	if rate <= 0 {
		rate = worst.s.rate
	}
	if most <= duration(r.blobTokens(worst.no), rate)*5/4 {
		return nil
	}
	return worst
}

// duration is the time for so many tokens, 0 where the rate is not known.
func duration(tokens int64, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(tokens) / rate * float64(time.Second))
}

// never is the time that a slot takes that does not answer.
const never = 1000 * time.Hour

// eta is how long the slot needs for so many tokens. Held: run.mu.
func (s *slot) eta(tokens int64) time.Duration {
	quiet := time.Since(s.heard)
	if s.down || len(s.inflight) > 0 && quiet > max(s.r.o.silence, 10*s.slowest) {
		return never
	}
	rate := s.rate
	for _, rq := range s.inflight {
		// It may still be at its first sample: then it is at most so fast.
		if most := float64(len(rq.ids)) / quiet.Seconds(); rate <= 0 || most < rate/10 {
			rate = most
		}
	}
	return duration(tokens, rate)
}

func (r *run) blobTokens(no int) (n int64) {
	for _, e := range r.idx.Entries(no) {
		n += int64(e.Rows)
	}
	return n
}

// tokensLeft counts the tokens of entries not asked for, and of those in flight.
// Held: run.mu.
func (j *job) tokensLeft() (n int64) {
	for i := j.next; i < j.entries; i++ {
		n += int64(j.r.idx.Entry(j.no, i).Rows)
	}
	for _, rq := range j.s.inflight {
		if rq.job == j {
			n += int64(len(rq.ids))
		}
	}
	return n
}

// begin opens a job. Held: run.mu.
func (r *run) begin(s *slot, no int) *job {
	j := &job{r: r, s: s, no: no, entries: r.idx.BlobEntries(no),
		ready: map[int]*request{}, skip: map[int]string{}, absent: map[int]string{}, poor: map[int]poor{}}
	j.left = r.blobTokens(no) * int64(r.cost.kept)
	r.open[no] = append(r.open[no], j)
	s.jobs = append(s.jobs, j)
	return j
}

// forget takes a job that ended out of the books; a blob that nobody makes any
// more is to be done again. Held: run.mu.
func (r *run) forget(j *job) {
	j.s.jobs = slices.DeleteFunc(j.s.jobs, func(x *job) bool { return x == j })
	js, had := r.open[j.no]
	if !had {
		return
	}
	js = slices.DeleteFunc(js, func(x *job) bool { return x == j })
	if len(js) > 0 {
		r.open[j.no] = js
		return
	}
	delete(r.open, j.no)
	if !r.sealed[j.no] && !r.claimed[j.no] {
		at, _ := slices.BinarySearch(r.todo, j.no)
		r.todo = slices.Insert(r.todo, at, j.no)
		r.handed -= r.cost.positions[j.no]
	}
}

// claim decides who seals a blob that two slots made: the first to ask. The
// other's work is dropped.
func (r *run) claim(j *job) bool {
	r.mu.Lock()
	if r.claimed[j.no] {
		r.mu.Unlock()
		return false
	}
	r.claimed[j.no] = true
	others := slices.DeleteFunc(slices.Clone(r.open[j.no]), func(x *job) bool { return x == j })
	for _, o := range others {
		o.lost = true
	}
	r.mu.Unlock()
	for _, o := range others {
		r.commits.Go(func() {
			if err := o.drop(); err != nil {
				r.fail(err)
			}
		})
	}
	return true
}

// over reports that no slot has anything left to do: nothing may be handed
// out and nothing is open. Held: run.mu.
func (r *run) over() bool {
	if len(r.open) > 0 {
		return false
	}
	return r.halt || len(r.todo) == 0 || r.o.Limit > 0 && r.handed >= r.o.Limit
}
