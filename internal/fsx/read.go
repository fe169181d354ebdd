package fsx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is matched by the error for a directory, a named pipe, a device or a
// socket in the place of a file.
var ErrNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading. Whatever else bears its name is refused:
// opening a named pipe would wait for somebody who writes to it, for ever.
func Open(path string) (*os.File, error) {
	// O_NONBLOCK means nothing to a regular file and keeps others from blocking.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("is %s: %w", kindOf(st.Mode()), ErrNotRegular)}
	}
	if err != nil {
		_ = f.Close() // nothing was written to it
		return nil, err
	}
	return f, nil
}

// ReadFile reads a regular file, as Open opens it.
func ReadFile(path string) (b []byte, err error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b = make([]byte, 0, st.Size()+1)
	for {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// kindOf is what a file is in words.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return m.Type().String()
}
