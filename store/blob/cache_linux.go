package blob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// window is how far dirty pages may pile up behind the writer.
const window = 16 << 20

// pageCache keeps a long run from filling the page cache with blobs that nobody
// reads soon: each window is started on its way to the disk as soon as it is
// full, and waited for and dropped one window later. That also leaves little
// for the final fsync to do.
type pageCache struct{ started int64 }

// wrote says that the file's first size bytes have been written.
func (p *pageCache) wrote(f *os.File, size int64) error {
	for size-p.started >= window {
		fd := int(f.Fd())
		if err := advice(unix.SyncFileRange(fd, p.started, window, unix.SYNC_FILE_RANGE_WRITE)); err != nil {
			return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
		}
		if before := p.started - window; before >= 0 {
			const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
			if err := advice(unix.SyncFileRange(fd, before, window, wait)); err != nil {
				return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
			}
			// Only a hint: what it does not drop costs memory, not data.
			_ = unix.Fadvise(fd, before, window, unix.FADV_DONTNEED)
		}
		p.started += window
	}
	return nil
}

// done drops the file's pages once they are on disk.
func (p *pageCache) done(f *os.File, size int64) {
	_ = unix.Fadvise(int(f.Fd()), 0, size, unix.FADV_DONTNEED) // only a hint
}

// advice forgives a filesystem that does not know the call, and nothing else: a
// failed write-back would otherwise be reported once, here, and lost.
func advice(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
