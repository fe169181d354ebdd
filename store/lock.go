package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

const (
	lockName = "run.lock"
	lockSize = 1024 // bytes
)

// holder is what run.lock holds.
type holder struct {
	PID     int       `json:"pid"`
	BootID  string    `json:"boot_id"`
	Started time.Time `json:"started"`
	Command string    `json:"command"`
}

// lockFile is run.lock while this process holds it. The lock belongs to the
// open file: it ends with the process however that ends, and a second open in
// the same process conflicts too. The file is never removed, since a lock on
// a removed file would exclude nobody.
type lockFile struct{ f *fsx.File }

func wholeFile(typ int16) *unix.Flock_t { return &unix.Flock_t{Type: typ} }

// acquire takes the lock of the workspace in dir or fails with *InUseError.
func acquire(fsys *fsx.FS, dir, command string) (*lockFile, error) {
	f, err := fsys.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.OS().Fd(), unix.F_OFD_SETLK, wholeFile(unix.F_WRLCK))
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		h := readHolder(f.OS())
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, &h), f.Close())
	}
	if err != nil {
		return nil, errors.Join(&fsx.PathError{Op: "lock", Path: f.Name(), Err: err}, f.Close())
	}
	l := &lockFile{f: f}
	if err := l.sign(command); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// sign writes who holds the lock, without which the lock holds as well.
func (l *lockFile) sign(command string) error {
	h := holder{PID: os.Getpid(), BootID: BootID(), Started: time.Now().UTC(), Command: command}
	j, err := json.Marshal(h)
	if err == nil && len(j) >= lockSize {
		h.Command = "" // the only part without a bound
		j, err = json.Marshal(h)
	}
	if err != nil {
		return err
	}
	return l.write(j)
}

// write replaces the content by one write of fixed length: a reader sees all
// or nothing of it, and on a full disk it takes no new block.
func (l *lockFile) write(j []byte) error {
	b := append(bytes.Repeat([]byte(" "), lockSize-1), '\n')
	copy(b, j)
	if _, err := l.f.WriteAt(b, 0); err != nil && !isNoRoom(err) {
		return err
	}
	return nil
}

func (l *lockFile) release() error {
	return errors.Join(l.write(nil), l.f.Close())
}

// readHolder reads who holds the lock. Between taking and signing it there is
// a moment without a name.
func readHolder(f *os.File) InUseError {
	for range 20 {
		var b [lockSize]byte
		n, _ := f.ReadAt(b[:], 0) // a failure reads as no name yet
		var h holder
		if json.Unmarshal(b[:n], &h) == nil && h.PID != 0 {
			return InUseError(h)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return InUseError{}
}

// inUse asks, without taking it even for a moment, whether the lock of the
// workspace in dir is held.
func inUse(dir string) (bool, InUseError, error) {
	f, err := fsx.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, InUseError{}, nil
	}
	if err != nil {
		return false, InUseError{}, err
	}
	defer f.Close()
	fl := wholeFile(unix.F_RDLCK)
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, fl); err != nil {
		return false, InUseError{}, &fsx.PathError{Op: "query lock", Path: f.Name(), Err: err}
	}
	if fl.Type == unix.F_UNLCK {
		return false, InUseError{}, nil
	}
	return true, readHolder(f), nil
}

// BootID tells boots of the machine apart; "" where the system has none.
func BootID() string {
	b, err := fsx.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
