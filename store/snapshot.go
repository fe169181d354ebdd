package store

import (
	"errors"
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
	return s, err
}
