package progress

import (
	"sync"
	"time"
)

// window is how far back the moving rates look.
const window = 60 * time.Second

// View is what a Tracker knows at one moment.
type View struct {
	Phase
	Tokens, Bytes int64 // since Start
	Rate          Rate
	ETA           time.Duration // 0 where unknown
	Elapsed       time.Duration
	Gauges        map[string]float64
	Waiting       string
	LastNote      string
	Active        bool
}

// Rate is per second, over the last minute.
type Rate struct{ Units, Tokens, Bytes float64 }

type sample struct {
	at                   time.Time
	units, tokens, bytes int64
}

// Tracker adds up what is reported and knows rates and the time left. It is
// the part that all renderers share.
type Tracker struct {
	now func() time.Time

	mu      sync.Mutex
	v       View
	began   time.Time
	history []sample // at most one a second, the last window's worth
}

// NewTracker returns a tracker that reads the clock now.
func NewTracker(now func() time.Time) *Tracker { return &Tracker{now: now} }

// Start begins a phase.
func (t *Tracker) Start(p Phase) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began = t.now()
	t.v = View{Phase: p, Gauges: map[string]float64{}, Active: true}
	t.history = []sample{{at: t.began, units: p.Done}}
}

// Add adds progress.
func (t *Tracker) Add(d Delta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.v.Done += d.Units
	t.v.Tokens += d.Tokens
	t.v.Bytes += d.Bytes
	now := t.now()
	if n := len(t.history); n == 0 || now.Sub(t.history[n-1].at) >= time.Second {
		t.history = append(t.history, sample{now, t.v.Done, t.v.Tokens, t.v.Bytes})
		cut := 0
		for cut < len(t.history)-2 && now.Sub(t.history[cut+1].at) > window {
			cut++
		}
		t.history = t.history[cut:]
	}
}

// SetTotal sets the phase's total.
func (t *Tracker) SetTotal(n int64) { t.with(func() { t.v.Total = n }) }

// Gauge sets a gauge.
func (t *Tracker) Gauge(name string, x float64) {
	t.with(func() {
		if t.v.Gauges == nil {
			t.v.Gauges = map[string]float64{}
		}
		t.v.Gauges[name] = x
	})
}

// Waiting sets what is waited on.
func (t *Tracker) Waiting(what string) { t.with(func() { t.v.Waiting = what }) }

// Noted remembers the last note.
func (t *Tracker) Noted(s string) { t.with(func() { t.v.LastNote = s }) }

// Finish ends the phase.
func (t *Tracker) Finish() { t.with(func() { t.v.Active = false }) }

func (t *Tracker) with(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn()
}

// View returns the present state.
func (t *Tracker) View() View {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.v
	v.Gauges = make(map[string]float64, len(t.v.Gauges))
	for k, x := range t.v.Gauges {
		v.Gauges[k] = x
	}
	now := t.now()
	v.Elapsed = now.Sub(t.began)
	if len(t.history) == 0 {
		return v
	}
	h := t.history[0]
	if s := now.Sub(h.at).Seconds(); s > 0 {
		v.Rate = Rate{
			Units:  float64(v.Done-h.units) / s,
			Tokens: float64(v.Tokens-h.tokens) / s,
			Bytes:  float64(v.Bytes-h.bytes) / s,
		}
	}
	if left := v.Total - v.Done; left > 0 && v.Rate.Units > 0 {
		v.ETA = time.Duration(float64(left) / v.Rate.Units * float64(time.Second))
	}
	return v
}
