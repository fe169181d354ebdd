package store

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"time"

	"eaglebatch/internal/fsx"
)

// Sentinels; the command line maps each to an exit code and a hint.
var (
	// ErrNoWorkspace: the directory has no marker.
	ErrNoWorkspace = errors.New("no workspace here")
	// ErrInUse: another process holds run.lock.
	ErrInUse = errors.New("workspace in use")
	// ErrNewer: the format version is one that this program does not know.
	ErrNewer = errors.New("written by a newer version")
	// ErrCorrupt: what was read cannot be what was written.
	ErrCorrupt = errors.New("damage found")
	// ErrDiskFull: no room, or too little above the reserve.
	ErrDiskFull = errors.New("disk full or below the reserve")
	// ErrDecision: the user has to choose before the run goes on.
	ErrDecision = errors.New("waiting for a decision")
	// ErrStopped: ended early because it was asked to.
	ErrStopped = errors.New("stopped as asked")
)

// CorruptError is damage: it names what, where and why, and matches ErrCorrupt.
type CorruptError struct {
	Path   string
	Key    string // record key or chunk, where there is one
	Offset int64  // -1 where not known
	Err    error
	Hint   string // the way out, where more can be said than for any damage
}

func (e *CorruptError) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.Offset >= 0 {
		fmt.Fprintf(&b, ": byte %d", e.Offset)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": %q", e.Key)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns ErrCorrupt and the cause.
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// InUseError names who holds the workspace. Matches ErrInUse. PID is 0 where
// the holder has not written its name yet.
type InUseError struct {
	PID     int
	BootID  string
	Started time.Time
	Command string
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return "workspace in use by a process that is just starting"
	}
	return fmt.Sprintf("workspace in use by pid %d (%s), since %s",
		e.PID, e.Command, e.Started.Format(time.RFC3339))
}

func (e *InUseError) Unwrap() error { return ErrInUse }

// SpaceError says how much room is missing. Matches ErrDiskFull.
type SpaceError struct {
	Path             string
	Free, Need, Keep int64 // bytes; need beyond what is kept as reserve
}

func (e *SpaceError) Error() string {
	if e.Need == 0 && e.Free <= e.Keep {
		return fmt.Sprintf("%s: no room: %d bytes free of which %d are kept in reserve", e.Path, e.Free, e.Keep)
	}
	if e.Missing() == 0 {
		return fmt.Sprintf("%s: no room, although %d bytes are free: a quota, the number of files, or others who have made room since", e.Path, e.Free)
	}
	return fmt.Sprintf("%s: no room: %d bytes needed, %d free of which %d are kept in reserve: %d missing",
		e.Path, e.Need, e.Free, e.Keep, e.Missing())
}

// Missing is how many bytes have to be freed.
func (e *SpaceError) Missing() int64 {
	room := e.Free - e.Keep
	if room < 0 && e.Need > math.MaxInt64+room {
		return math.MaxInt64
	}
	return max(0, e.Need-room)
}

func (e *SpaceError) Unwrap() error { return ErrDiskFull }

// DecisionError carries what to decide and the exact commands. Matches ErrDecision.
type DecisionError struct {
	What     string   // one line
	Details  []string // shown below it
	Commands []string // exact, one of which decides
}

func (e *DecisionError) Error() string { return e.What }
func (e *DecisionError) Unwrap() error { return ErrDecision }

// isNoRoom reports whether err says that the volume, or the quota, is full.
func isNoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, ErrDiskFull)
}

// AsSpace adds to an error that says "no room" how much is free at the
// workspace.
func (w *Workspace) AsSpace(err error) error { return asSpace(w.dir, 0, err) }

// asSpace turns an error that says "no room" into a SpaceError for need bytes
// at path, and returns any other error as it is.
func asSpace(path string, need int64, err error) error {
	if err == nil || !isNoRoom(err) || errors.Is(err, ErrDiskFull) {
		return err
	}
	s := &SpaceError{Path: path, Need: need}
	if sp, serr := fsx.SpaceAt(existing(path)); serr == nil {
		s.Free = sp.Free
	}
	return fmt.Errorf("%w (%w)", s, err)
}
