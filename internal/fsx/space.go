package fsx

import (
	"errors"
	"math"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Space is what a filesystem says of itself, in bytes.
type Space struct {
	Total int64
	Free  int64 // free for this user, root's reserve apart
}

// SpaceAt returns the space of the filesystem that holds path. One that has no
// size (a tmpfs without a limit, some network filesystems) reports 0 bytes of
// it; as free then counts more than anything needs.
func SpaceAt(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, &PathError{Op: "statfs", Path: path, Err: err}
	}
	if st.Blocks == 0 {
		return Space{Free: math.MaxInt64 / 2}, nil
	}
	return Space{
		Total: int64(st.Blocks) * st.Bsize,
		Free:  int64(st.Bavail) * st.Bsize,
	}, nil
}

// PathError names the operation and the path that failed.
type PathError struct {
	Op, Path string
	Err      error
}

func (e *PathError) Error() string { return e.Op + " " + e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PathError) Unwrap() error { return e.Err }

// flattened is an error whose cause was only text.
type flattened struct {
	error
	cause syscall.Errno
}

// Unwrap returns the error as it came and its cause.
func (e flattened) Unwrap() []error { return []error{e.error, e.cause} }

// Unflatten gives the error of a library that kept only the text of its cause
// the system's error back, as far as it decides what becomes of a run.
func Unflatten(err error) error {
	var sys syscall.Errno
	if err == nil || errors.As(err, &sys) {
		return err
	}
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EACCES, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if strings.Contains(err.Error(), e.Error()) {
			return flattened{err, e}
		}
	}
	return err
}
