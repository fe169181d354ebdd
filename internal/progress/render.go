package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"eaglebatch/internal/human"
)

// Line renders a view as one line: phase i/n, done/total, share, rates, time
// left, what is waited on.
func Line(v View) string {
	var b strings.Builder
	if v.Of > 0 {
		fmt.Fprintf(&b, "[%d/%d] ", v.Index, v.Of)
	}
	b.WriteString(v.Name)
	amount := func(n int64) string {
		if v.Unit == "bytes" {
			return human.Bytes(n)
		}
		return human.Count(n)
	}
	if v.Total > 0 {
		fmt.Fprintf(&b, "  %s / %s", amount(v.Done), amount(v.Total))
		if v.Unit != "bytes" {
			b.WriteString(" " + v.Unit)
		}
		fmt.Fprintf(&b, "  %.1f%%", 100*float64(v.Done)/float64(v.Total))
	} else {
		fmt.Fprintf(&b, "  %s %s", amount(v.Done), v.Unit)
	}
	if v.Rate.Units > 0 && v.Unit != "bytes" {
		fmt.Fprintf(&b, "  %.1f %s/s", v.Rate.Units, v.Unit)
	}
	if v.Rate.Tokens > 0 {
		fmt.Fprintf(&b, "  %s tok/s", human.Count(int64(v.Rate.Tokens)))
	}
	bps := v.Rate.Bytes
	if v.Unit == "bytes" {
		bps = v.Rate.Units
	}
	if bps > 0 {
		fmt.Fprintf(&b, "  %s/s", human.Bytes(int64(bps)))
	}
	if x, ok := v.Gauges["top1"]; ok {
		fmt.Fprintf(&b, "  top-1 %.0f%%", 100*x)
	}
	if v.ETA > 0 {
		fmt.Fprintf(&b, "  ETA %s", human.Duration(v.ETA))
	}
	if v.Waiting != "" {
		fmt.Fprintf(&b, "  waiting for %s", v.Waiting)
	}
	return b.String()
}

// Renderer is a Reporter that writes to a terminal or a log.
type Renderer struct {
	*Tracker
	w     io.Writer
	tty   bool
	quiet bool
	every time.Duration // between plain lines

	mu   sync.Mutex
	last time.Time
	bar  bool // an unfinished terminal line is on screen
	stop chan struct{}
}

var _ Reporter = (*Renderer)(nil)

// NewRenderer renders to w: a line redrawn in place on a terminal, a plain
// line every ten seconds elsewhere, notes only when quiet.
func NewRenderer(w io.Writer, tty, quiet bool) *Renderer {
	return &Renderer{Tracker: NewTracker(time.Now), w: w, tty: tty, quiet: quiet, every: 10 * time.Second}
}

// Start implements Reporter.
func (r *Renderer) Start(p Phase) {
	r.Tracker.Start(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	if r.quiet {
		return
	}
	if !r.tty {
		fmt.Fprintln(r.w, Line(r.View()))
	}
	if r.stop == nil {
		r.stop = make(chan struct{})
		go r.tick(r.stop)
	}
}

func (r *Renderer) tick(stop <-chan struct{}) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			r.draw()
		}
	}
}

func (r *Renderer) draw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.tty:
		fmt.Fprintf(r.w, "\r\x1b[K%s", Line(r.View()))
		r.bar = true
	case time.Since(r.last) >= r.every:
		r.last = time.Now()
		fmt.Fprintln(r.w, Line(r.View()))
	}
}

// Note implements Reporter.
func (r *Renderer) Note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	r.Noted(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	fmt.Fprintln(r.w, s)
}

func (r *Renderer) clear() {
	if r.bar {
		fmt.Fprint(r.w, "\r\x1b[K")
		r.bar = false
	}
}

// Finish implements Reporter.
func (r *Renderer) Finish() {
	r.Tracker.Finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		close(r.stop)
		r.stop = nil
	}
	r.clear()
	if !r.quiet {
		v := r.View()
		fmt.Fprintf(r.w, "%s  done in %s\n", Line(View{Phase: v.Phase}), human.Duration(v.Elapsed))
	}
}

// Snapshot prints the present line once (SIGUSR1).
func (r *Renderer) Snapshot() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
	fmt.Fprintln(r.w, Line(r.View()))
}
