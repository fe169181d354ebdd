// Package progress is how phases tell what they are doing. Phases know only
// Reporter; who renders it (terminal, plain lines, status.json) is chosen by
// the command line.
//
// # Concurrency
//
// A Reporter may be called from many goroutines.
package progress

// Phase describes the stretch of work that begins.
type Phase struct {
	Index, Of   int    // phase Index of Of, from 1; 0 where it stands alone
	Name        string // merge, shuffle, plan, gc, extract, check, export …
	Unit        string // what Done and Total count: samples, bytes, files
	Done, Total int64  // Total 0 where unknown
}

// Delta is progress made since the last call.
type Delta struct {
	Units  int64 // in the phase's unit
	Tokens int64
	Bytes  int64
}

// Reporter receives progress.
type Reporter interface {
	Start(Phase)
	Add(Delta)
	SetTotal(total int64)
	// Gauge sets a named instantaneous value, such as "top1" or "engine_busy".
	Gauge(name string, value float64)
	// Note prints one line that stays.
	Note(format string, args ...any)
	// Waiting says what is being waited on; "" ends it.
	Waiting(what string)
	Finish()
}

// Nop ignores everything.
type Nop struct{}

var _ Reporter = Nop{}

// Start implements Reporter.
func (Nop) Start(Phase) {}

// Add implements Reporter.
func (Nop) Add(Delta) {}

// SetTotal implements Reporter.
func (Nop) SetTotal(int64) {}

// Gauge implements Reporter.
func (Nop) Gauge(string, float64) {}

// Note implements Reporter.
func (Nop) Note(string, ...any) {}

// Waiting implements Reporter.
func (Nop) Waiting(string) {}

// Finish implements Reporter.
func (Nop) Finish() {}
