package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Snapshot is a lock-free look at a workspace, for stat: it opens neither
// bbolt nor Badger, takes no lock and writes nothing. Its rows are those of
// the last whole line of checkpoints.jsonl.
type Snapshot struct {
	Reader
	RootID    string
	Seq       uint64     // last change of the ledger
	Live      bool       // a writer holds run.lock
	Holder    InUseError // who, where Live
	AsOf      time.Time  // of the last change or of Status, the later
	Status    *Status    // the last status.json, nil where there is none
	StatusErr error      // why status.json is ignored, if it is
	Torn      int64      // bytes of an unfinished line at the end of the log
}

// Inspect reads the state of the workspace in dir. Where the log is damaged it
// returns what could be read before the damage along with a *CorruptError.
func Inspect(dir string) (*Snapshot, error) {
	m, err := readMarker(dir)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{RootID: m.RootID}
	if s.Live, s.Holder, err = inUse(dir); err != nil {
		return nil, err
	}
	h, err := readLog(dir)
	if errors.Is(err, ErrCorrupt) {
		// A writer that opens the workspace cuts a torn line and appends
		// another; one reading may have seen both. A second one does not.
		h, err = readLog(dir)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	s.Reader, s.Seq, s.AsOf, s.Torn = rows{h.state}, h.seq, h.at, h.size-h.end
	s.Status, s.StatusErr = readStatus(dir)
	if s.Status != nil && s.Status.Updated.After(s.AsOf) {
		s.AsOf = s.Status.Updated
	}
	if err == nil {
		err = s.behind(dir)
	}
	return s, err
}

// behind looks for a log that was cut where it cannot be seen: without its first
// line it is not that of a workspace, and status.json, which is written after
// the step that it tells of, tells of no later one. It needs no lock for that;
// Open and CheckLedger compare with manifest.db.
func (s *Snapshot) behind(dir string) error {
	c := &CorruptError{Path: filepath.Join(dir, logName), Offset: -1, Hint: hintRebuildLog}
	switch {
	case s.Seq == 0:
		c.Err = errors.New("holds no whole line")
	case s.Status != nil && s.Status.Seq > s.Seq && !s.Live:
		c.Err = fmt.Errorf("whole lines end at step %d, %s tells of step %d: one of them is damaged", s.Seq, statusName, s.Status.Seq)
		c.Hint = "'eaglebatch check' compares the log with manifest.db; where it finds nothing, it is status.json, which the next run writes anew"
	default:
		return nil
	}
	return c
}
