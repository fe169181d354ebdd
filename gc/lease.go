package gc

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// leaseName is the file in a generation's directory that readers lock.
const leaseName = "LEASE"

var errLeased = fmt.Errorf("%w: a reader holds its lease", ErrRefused)

// openLease opens the lease of a generation; nil where it has none, so that no
// reader can hold it.
func openLease(dir *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), leaseName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s/%s: %w", dir.Name(), leaseName, err)
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+leaseName), nil
}

// takeLease takes the lease of a generation that is about to go. Closing the
// file gives it back.
func takeLease(dir *os.File) (*os.File, error) {
	f, err := openLease(dir)
	if err != nil || f == nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLeased
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// leaseHeld looks for readers without touching their lock: trying it would make
// a reader that opens at that moment fail. Where the system does not tell, it
// says no, and takeLease finds out.
func leaseHeld(dir *os.File) (held bool, err error) {
	f, err := openLease(dir)
	if err != nil || f == nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	dev, ino, err := inode(f)
	if err != nil {
		return false, err
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return false, nil
	}
	defer func() { err = errors.Join(err, locks.Close()) }()
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	for sc := bufio.NewScanner(locks); sc.Scan(); {
		// 1: FLOCK ADVISORY READ 1234 fe:00:5678 0 EOF
		if f := strings.Fields(sc.Text()); len(f) >= 6 && f[1] == "FLOCK" && f[5] == id {
			return true, nil
		}
	}
	return false, nil
}
