package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inside is how a directory is entered: never through a symbolic link, never
// out of the directory it is named in, never into another mount.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS

// openBelow opens the directory name in d.
func openBelow(d *os.File, name string) (*os.File, error) {
	full := filepath.Join(d.Name(), name)
	fd, err := openat2(int(d.Fd()), name, inside)
	if err != nil {
		return nil, refusal(full, err)
	}
	return os.NewFile(uintptr(fd), full), nil
}

// openReal opens an absolute directory path of which no part may be a symbolic
// link. Mounts on the way to it are fine: it is the way that a person gave.
func openReal(path string) (*os.File, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("%w: %q is not a clean absolute path", ErrRefused, path)
	}
	fd, err := openat2(unix.AT_FDCWD, path, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, refusal(path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openat2(at int, path string, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err = unix.Openat2(at, path, &how)
		// EAGAIN: a rename or mount raced with the lookup, which must not be
		// trusted then.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// refusal says in words what the kernel's answer means.
func refusal(path string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: %s is, or leads through, a symbolic link", ErrRefused, path)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: %s is a mount point or leaves its root", ErrRefused, path)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s is not a directory", ErrRefused, path)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: %s: this kernel has no openat2, without which nothing can be deleted safely", ErrRefused, path)
	}
	return &os.PathError{Op: "open", Path: path, Err: err}
}

// place is an open directory and the open directory that names it.
type place struct {
	parent *os.File
	dir    *os.File
	name   string
}

// openPlace opens the directory at path: its parent by a path without symbolic
// links, and itself from there, so that it can be neither a link nor a mount
// point. root, where given, must hold it.
func openPlace(root, path string) (*place, error) {
	if root != "" {
		rel, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(rel) || rel == "." {
			return nil, fmt.Errorf("%w: %s lies outside %s", ErrRefused, path, root)
		}
	}
	parent, err := openReal(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	dir, err := openBelow(parent, filepath.Base(path))
	if err != nil {
		return nil, errors.Join(err, parent.Close())
	}
	return &place{parent: parent, dir: dir, name: filepath.Base(path)}, nil
}

func (p *place) Close() error { return errors.Join(p.dir.Close(), p.parent.Close()) }

// inode returns the device and inode of an open file.
func inode(f *os.File) (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return uint64(st.Dev), st.Ino, nil
}
