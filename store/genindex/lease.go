package genindex

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

// LeaseName is the file that readers of a generation lock.
const LeaseName = "LEASE"

// ErrLeased says that somebody reads the generation.
var ErrLeased = errors.New("generation is being read")

// ErrGoing says that the generation is being deleted.
var ErrGoing = errors.New("generation is being deleted")

// Lease is a lock on a generation's LEASE file. It ends with Close, or with the
// last process that inherited it.
type Lease struct{ f *os.File }

// CreateLease makes the LEASE file of a new generation; one that is there stays.
func CreateLease(fs *fsx.FS, dir string) error {
	path := filepath.Join(dir, LeaseName)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return fs.SyncDir(dir)
}

// Hold takes the lease of the generation in dir for reading. It fails with
// ErrGoing while gc removes the generation, and with fs.ErrNotExist where there
// is no LEASE file.
func Hold(dir string) (*Lease, error) { return lock(dir, unix.LOCK_SH, ErrGoing) }

// Exclude takes the generation in dir from its readers, for gc. It fails with
// ErrLeased while there are any.
func Exclude(dir string) (*Lease, error) { return lock(dir, unix.LOCK_EX, ErrLeased) }

func lock(dir string, how int, busy error) (*Lease, error) {
	path := filepath.Join(dir, LeaseName)
	f, err := fsx.Open(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%s: %w", dir, busy)
	} else if err != nil {
		err = &os.PathError{Op: "flock", Path: path, Err: err}
	} else {
		err = same(f, path)
	}
	if err != nil {
		_ = f.Close() // only read
		return nil, err
	}
	return &Lease{f}, nil
}

// same makes sure that path still names the file that was locked: between open
// and lock gc may have moved the directory away.
func same(f *os.File, path string) error {
	a, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := os.Stat(path)
	if err != nil || !os.SameFile(a, b) {
		return fmt.Errorf("%s: %w", filepath.Dir(path), ErrGoing)
	}
	return nil
}

// Close gives the lease back.
func (l *Lease) Close() error { return l.f.Close() }
