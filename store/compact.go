package store

import (
	"errors"
	"os"
	"path/filepath"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

const (
	compactMin    = 8 << 20 // bytes below which a log is left alone
	compactFactor = 4       // times what it would be compacted to
)

// maybeCompact rewrites a log that has grown far beyond what it holds, so that
// opening and stat stay quick. It is made from the log itself, whose lines are
// checksummed, and not from manifest.db, whose pages are not.
func (w *Workspace) maybeCompact() error {
	if w.logSize <= w.compactAt {
		return nil
	}
	h, err := readLog(w.dir)
	if err != nil {
		return err
	}
	// Looked at again only after as much has been appended once more.
	w.compactAt = max(compactMin, 2*w.logSize)
	if w.logSize <= compactFactor*h.state.size() {
		return nil
	}
	err = w.rewriteLog(step{seq: h.seq, at: h.at, label: "compacted", base: true, ops: h.state.ops()})
	if isNoRoom(err) {
		return nil // the long log is as good
	}
	return err
}

// rewriteLog replaces the log by base.
func (w *Workspace) rewriteLog(base step) error {
	if err := writeLog(w.opt.FS, w.dir, base); err != nil {
		return err
	}
	// The old handle is that of a file without a name.
	if err := w.log.Close(); err != nil {
		return err
	}
	f, err := w.opt.FS.OpenFile(filepath.Join(w.dir, logName), os.O_RDWR|os.O_APPEND)
	if err != nil {
		return err
	}
	w.log, w.logRoom = f, 0
	w.logSize, err = f.Seek(0, 2)
	w.compactAt = max(compactMin, compactFactor*w.logSize)
	return err
}

// writeLog publishes a log of one line.
func writeLog(fsys *fsx.FS, dir string, base step) error {
	path := filepath.Join(dir, logName)
	f, err := fsys.Create(path + fsx.TempSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(appendStep(nil, base))
	if err == nil {
		err = fsys.Point(fault.LedgerCompact)
	}
	if err != nil {
		return errors.Join(err, f.Close(), fsys.Remove(f.Name()))
	}
	return fsys.Publish(f, path)
}

// cut takes the torn end off a log.
func cut(f *fsx.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}
