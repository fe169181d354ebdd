// Package fault holds the named points at which a drill may fail or kill the
// process. A point costs a nil check when nothing is armed.
//
// Points are armed by the environment:
//
//	EAGLEBATCH_FAULT=NAME:N[:kill|err|stop]   at the N-th hit (from 1) of NAME
//	EAGLEBATCH_FAULT=*:N[:kill|err|stop]      at the N-th hit of any point
//	EAGLEBATCH_FAULT_HITS=FILE                appends the point's name at every hit
//
// kill is SIGKILL, err an error that the point returns, and stop is SIGSTOP: the
// process stands at the point until somebody ends it or lets it go on.
//
// # Concurrency
//
// A Set may be used from many goroutines at once.
package fault

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// ErrInjected is matched by every error that an armed point returns.
var ErrInjected = errors.New("injected fault")

// What an armed point does.
const (
	modeKill = "kill"
	modeErr  = "err"
	modeStop = "stop"
)

// Set counts hits and fires the armed point. A nil *Set never fires.
type Set struct {
	name string
	at   int64
	mode string // kill, err or stop
	hits string

	mu    sync.Mutex
	count int64
}

// FromEnv reads the arming variables. It returns nil where none is set.
func FromEnv(getenv func(string) string) (*Set, error) {
	spec, hits := getenv("EAGLEBATCH_FAULT"), getenv("EAGLEBATCH_FAULT_HITS")
	if spec == "" && hits == "" {
		return nil, nil
	}
	s := &Set{hits: hits}
	if spec == "" {
		return s, nil
	}
	f := strings.Split(spec, ":")
	if len(f) < 2 || len(f) > 3 {
		return nil, fmt.Errorf("EAGLEBATCH_FAULT %q: want NAME:N[:kill|err|stop]", spec)
	}
	n, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil || n < 1 {
		return nil, fmt.Errorf("EAGLEBATCH_FAULT %q: %q is no hit number", spec, f[1])
	}
	s.name, s.at, s.mode = f[0], n, modeKill
	if len(f) == 3 {
		s.mode = f[2]
	}
	if !slices.Contains([]string{modeKill, modeErr, modeStop}, s.mode) {
		return nil, fmt.Errorf("EAGLEBATCH_FAULT %q: %q is neither kill nor err nor stop", spec, s.mode)
	}
	if s.name != "*" && !known(Point(s.name)) {
		return nil, fmt.Errorf("EAGLEBATCH_FAULT %q: no such point", spec)
	}
	return s, nil
}

// New arms one point in-process, for tests that want a returned error.
func New(p Point, at int64) *Set {
	return &Set{name: string(p), at: at, mode: modeErr}
}

// Hit records that p was reached, and fails or kills the process when p is
// armed for this hit.
func (s *Set) Hit(p Point) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	fire := false
	if s.name == "*" || s.name == string(p) {
		s.count++
		fire = s.count == s.at
	}
	s.mu.Unlock()
	if s.hits != "" {
		if err := appendLine(s.hits, string(p)); err != nil {
			return err
		}
	}
	if !fire {
		return nil
	}
	switch s.mode {
	case modeKill:
		// SIGKILL runs nothing afterwards: no deferred call, no flush. The
		// parent can tell it from any real failure.
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case modeStop:
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	return fmt.Errorf("%w at %s hit %d", ErrInjected, p, s.at)
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, werr := f.WriteString(line + "\n")
	return errors.Join(werr, f.Close())
}
