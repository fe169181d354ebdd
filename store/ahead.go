package store

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

const (
	// ahead is how many bytes log and manifest each have allocated beyond what
	// they hold. Room that reserve.bin gives up may be taken by others before a
	// change gets to it; this cannot, so that gc records what it deletes, and so
	// makes room, where every block of the disk is taken.
	ahead = 256 << 10
	// aheadRoom is what must be free before any of it is taken for that.
	aheadRoom = LowRoom + 4*ahead
)

// allocateAhead tops up what log and manifest have allocated where less than
// half of it is left. On a disk that has no room, or a filesystem that cannot, it
// does nothing. Held: w.mu, or nobody else has w yet.
func (w *Workspace) allocateAhead() error {
	used, err := boltUsed(w.db)
	if err != nil {
		return err
	}
	log, db := w.logSize+ahead/2 > w.logRoom, used+ahead/2 > w.dbRoom
	if !log && !db {
		return nil
	}
	if sp, err := fsx.SpaceAt(w.dir); err != nil || sp.Free < aheadRoom {
		return err
	}
	if err := w.opt.FS.MkdirAll(w.TrashDir()); err != nil && !isNoRoom(err) {
		return err
	}
	if log {
		if err := allocateTo(w.log.OS(), w.logSize+ahead); err != nil {
			return err
		}
		w.logRoom = w.logSize + ahead
	}
	if !db {
		return nil
	}
	f, err := os.OpenFile(manifestPath(w.dir), os.O_RDWR, 0) // bbolt's own handle is hidden
	if err != nil {
		return err
	}
	if err := errors.Join(allocateTo(f, used+ahead), f.Close()); err != nil {
		return err
	}
	w.dbRoom = used + ahead
	return nil
}

// fallocate allocates the first size bytes of f. Go's own signals interrupt it on
// some filesystems, which then have allocated nothing.
func fallocate(f *os.File, mode uint32, size int64) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Fallocate(int(f.Fd()), mode, 0, size)
	}
	return err
}

// allocateTo gives the first size bytes of f their blocks and leaves its length
// as it is.
func allocateTo(f *os.File, size int64) error {
	err := fallocate(f, unix.FALLOC_FL_KEEP_SIZE, size)
	if err == nil || isNoRoom(err) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return &fsx.PathError{Op: "fallocate", Path: filepath.Clean(f.Name()), Err: err}
}
