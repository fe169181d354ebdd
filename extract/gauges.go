package extract

import (
	"context"
	"fmt"
	"time"
)

// gauges keeps the rates and shows them, and looks from time to time whether a
// straggler is worth taking over.
func (r *run) gauges(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := time.Now()
	r.mu.Lock()
	slots := r.slots
	r.mu.Unlock()
	tokens := make([]int64, len(slots))
	busy := make([]time.Duration, len(slots))
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			r.mu.Lock()
			share := 0.0
			for i, s := range slots {
				b := s.busyFor(now)
				share += min(1, float64(b-busy[i])/float64(now.Sub(last)))
				s.moveRate(float64(s.tokens-tokens[i]), b-busy[i])
				tokens[i], busy[i] = s.tokens, b
			}
			rates := make([]float64, len(slots))
			for i, s := range slots {
				rates[i] = s.rate
			}
			r.cond.Broadcast()
			r.mu.Unlock()
			last = now
			r.rep.Gauge("engine_busy", share/float64(len(slots)))
			for i, x := range rates {
				r.rep.Gauge(fmt.Sprintf("slot%d_tokens_per_second", i), x)
			}
		}
	}
}

// moveRate takes tokens that came in a stretch of busy time into the slot's
// rate, which forgets within about ten of them. Held: run.mu.
func (s *slot) moveRate(tokens float64, busy time.Duration) {
	if busy <= 0 {
		return
	}
	now := tokens / busy.Seconds()
	if s.rate == 0 {
		s.rate = now
		return
	}
	s.rate += 0.1 * (now - s.rate)
}

// busyFor is how long the slot had requests in flight up to now. Held: run.mu.
func (s *slot) busyFor(now time.Time) time.Duration {
	if s.busy.IsZero() {
		return s.busyTime
	}
	return s.busyTime + now.Sub(s.busy)
}

// engineClock counts the time in which any slot is busy: what one waits for,
// however many slots share the work. Guarded by run.mu.
type engineClock struct {
	busy   int       // slots
	since  time.Time // counted up to here
	total  time.Duration
	booked time.Duration // of total, what the ledger has
}

func (c *engineClock) count(now time.Time) {
	if c.busy > 0 {
		c.total += now.Sub(c.since)
	}
	c.since = now
}

func (c *engineClock) start(now time.Time) {
	c.count(now)
	c.busy++
}

func (c *engineClock) stop(now time.Time) {
	c.count(now)
	c.busy--
}

// book returns the seconds that the ledger does not have yet; it is told them
// then.
func (c *engineClock) book() float64 {
	c.count(time.Now())
	d := c.total - c.booked
	c.booked = c.total
	return d.Seconds()
}
