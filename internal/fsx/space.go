package fsx

import "golang.org/x/sys/unix"

// Space is what a filesystem says of itself, in bytes.
type Space struct {
	Total int64
	Free  int64 // free for this user, root's reserve apart
}

// SpaceAt returns the space of the filesystem that holds path.
func SpaceAt(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, &PathError{Op: "statfs", Path: path, Err: err}
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
