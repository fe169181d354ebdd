package worker

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// watchdog pings a worker that falls silent while something is expected of it,
// and kills it when that does not help.
type watchdog struct {
	p    *process
	busy func() bool
	quit chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	last   time.Time // when something was heard, or there was nothing to hear
	pinged bool
	paused bool // the host itself does not listen
	fired  bool
}

// watch starts a watchdog; stop must be called.
func (p *process) watch(busy func() bool) *watchdog {
	w := &watchdog{p: p, busy: busy, quit: make(chan struct{}), last: time.Now()}
	w.done.Go(w.run)
	return w
}

func (w *watchdog) run() {
	t := time.NewTicker(max(w.p.o.Quiet/8, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-t.C:
		}
		if !w.busy() {
			w.heard()
			continue
		}
		w.mu.Lock()
		silent := time.Since(w.last)
		ping := !w.paused && !w.pinged && silent >= w.p.o.Quiet
		dead := !w.paused && silent >= w.p.o.Quiet+w.p.o.Dead
		w.pinged = w.pinged || ping
		w.fired = w.fired || dead
		w.mu.Unlock()
		switch {
		case dead:
			w.p.log.Printf("host: silent for %s, also when pinged: killed", silent.Round(time.Millisecond))
			w.p.end()
			return
		case ping:
			// A write that blocks or fails is the reader's to find out.
			_ = w.p.send(Frame{Type: Ping}, nil)
		}
	}
}

// heard says that the worker lives.
func (w *watchdog) heard() {
	w.mu.Lock()
	w.last, w.pinged = time.Now(), false
	w.mu.Unlock()
}

// pause says that the host is busy with what it heard and does not listen.
func (w *watchdog) pause(on bool) {
	w.mu.Lock()
	w.paused = on
	w.mu.Unlock()
	if !on {
		w.heard()
	}
}

// bit reports whether the worker was killed for silence.
func (w *watchdog) bit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fired
}

// silence is why the worker was killed.
func (w *watchdog) silence() error {
	return fmt.Errorf("silent for %s, also when pinged", w.p.o.Quiet+w.p.o.Dead)
}

func (w *watchdog) stop() {
	close(w.quit)
	w.done.Wait()
}

func marshal(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}
