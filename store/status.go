package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

const statusName = "status.json"

// StatusSchema is the version of status.json. Fields are only ever added to it.
const StatusSchema = 1

// Status is the live view in status.json.
type Status struct {
	Schema   int                `json:"schema"`
	PID      int                `json:"pid"`
	BootID   string             `json:"boot_id"`
	Command  string             `json:"command"`
	Phase    string             `json:"phase"`
	Unit     string             `json:"unit"`
	Done     int64              `json:"done"`
	Total    int64              `json:"total"`
	Rate     map[string]float64 `json:"rate"` // units, tokens and bytes a second
	ETA      float64            `json:"eta_seconds"`
	Gauges   map[string]float64 `json:"gauges"`
	Waiting  string             `json:"waiting,omitempty"`
	LastNote string             `json:"last_note,omitempty"`
	Seq      uint64             `json:"seq"` // last ledger change it reflects
	Updated  time.Time          `json:"updated"`
	Clean    bool               `json:"clean"`     // the writer ended by itself
	ExitCode int                `json:"exit_code"` // where Clean
}

// WriteStatus replaces status.json, and fills in who writes, when, and at
// which step of the ledger. It is advisory: neither it nor its directory is
// fsynced, and a failure is no reason to end a run. One caller at a time.
func (w *Workspace) WriteStatus(s Status) error {
	s.Schema, s.PID, s.BootID, s.Command = StatusSchema, os.Getpid(), BootID(), w.opt.Command
	s.Seq, s.Updated = w.Seq(), time.Now().UTC()
	j, err := json.Marshal(s)
	if err != nil {
		return err
	}
	fsys, path := w.opt.FS, filepath.Join(w.dir, statusName)
	f, err := fsys.Create(path + fsx.TempSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(append(j, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(f.Name()))
	}
	if err := fsys.Point(fault.StatusBeforeRename); err != nil {
		return err
	}
	fsys.Note(fsx.OpRename, path, 0)
	return os.Rename(f.Name(), path)
}

// readStatus reads status.json; nil where there is none.
func readStatus(dir string) (*Status, error) {
	path := filepath.Join(dir, statusName)
	b, err := fsx.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, &CorruptError{Path: path, Offset: -1, Err: err}
	}
	return &s, nil
}
