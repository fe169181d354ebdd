package cli

import (
	"fmt"
	"os"
	"sync"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// statusReporter writes status.json: at once when a phase begins or ends, at
// most once a second otherwise. A failed write is told once and never stops a
// run: the file is advisory.
type statusReporter struct {
	*progress.Tracker
	ws      *store.Workspace
	command string

	mu     sync.Mutex
	failed bool
	stop   chan struct{}
	idle   sync.WaitGroup
}

var _ progress.Reporter = (*statusReporter)(nil)

func newStatusReporter(ws *store.Workspace, command string) *statusReporter {
	s := &statusReporter{Tracker: progress.NewTracker(time.Now), ws: ws, command: command, stop: make(chan struct{})}
	s.idle.Go(func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-t.C:
				s.write(false, 0)
			}
		}
	})
	return s
}

// Start implements progress.Reporter.
func (s *statusReporter) Start(p progress.Phase) {
	s.Tracker.Start(p)
	s.write(false, 0)
}

// Note implements progress.Reporter.
func (s *statusReporter) Note(format string, args ...any) { s.Noted(fmt.Sprintf(format, args...)) }

// Finish implements progress.Reporter.
func (s *statusReporter) Finish() {
	s.Tracker.Finish()
	s.write(false, 0)
}

// end writes the last status of the run.
func (s *statusReporter) end(code int) {
	close(s.stop)
	s.idle.Wait()
	s.write(true, code)
}

func (s *statusReporter) write(clean bool, code int) {
	v := s.View()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ws.WriteStatus(store.Status{
		Schema: 1, PID: os.Getpid(), Command: s.command, Phase: v.Name, Unit: v.Unit,
		Done: v.Done, Total: v.Total,
		Rate:   map[string]float64{"units": v.Rate.Units, "tokens": v.Rate.Tokens, "bytes": v.Rate.Bytes},
		ETA:    v.ETA.Seconds(),
		Gauges: v.Gauges, Waiting: v.Waiting, LastNote: v.LastNote,
		Updated: time.Now().UTC(), Clean: clean, ExitCode: code,
	})
	if err != nil && !s.failed {
		s.failed = true
		fmt.Fprintf(os.Stderr, "eaglebatch: status.json is not kept up to date: %v\n", err)
	}
}
