// Package mapped maps files read-only.
//
// The bytes are the file's pages: they cost no anonymous memory, and they are
// gone after Close. A file that another process truncates while it is mapped
// ends the program with a bus error, as with every mapping.
package mapped

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is a mapped file. Data may be read by many goroutines until Close.
type File struct {
	Path string
	Data []byte
}

// OpenFile opens a regular file for reading. A named pipe in its place is refused:
// opening it would wait for a writer.
func OpenFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Open maps the file at path. An empty file has empty Data.
func Open(path string) (*File, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	data, err := mapFile(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &File{Path: path, Data: data}, nil
}

func mapFile(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 {
		return nil, nil
	}
	if int64(int(st.Size())) != st.Size() {
		return nil, errors.New("is too large for this machine's address space")
	}
	return unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

// Close unmaps the file.
func (f *File) Close() error {
	if f.Data == nil {
		return nil
	}
	data := f.Data
	f.Data = nil
	return unix.Munmap(data)
}
