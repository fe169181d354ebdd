package samples

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

const (
	manifestName = "MANIFEST"
	manifestHead = 8 // bytes before its first record
)

// mendManifest takes off the end of Badger's MANIFEST what keeps an unfinished
// database from being opened: a record that is torn, or that names a table
// which is not there. Both are what a failed flush leaves, since Badger writes
// the record first and removes the table when that fails. The rows of the
// table are still in the write-ahead log, which goes only after the record is
// durable. A sealed database is left as it is: nothing of it may be missing.
func mendManifest(fsys *fsx.FS, dir string) error {
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), sealName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := fsys.SweepTemp(dir); err != nil {
		return err
	}
	path := filepath.Join(dir, manifestName)
	b, err := fsx.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ends := manifestRecords(b)
	if len(ends) == 0 {
		return nil // not even a head: Badger says so
	}
	tables, err := manifestTables(path, b[:ends[len(ends)-1]])
	if err != nil {
		return err
	}
	keep := len(ends)
	for ; keep > 1; keep-- {
		before, err := manifestTables(path, b[:ends[keep-2]])
		if err != nil {
			return err
		}
		if gone, err := onlyMissing(dir, tables, before); err != nil {
			return err
		} else if !gone {
			break
		}
		tables = before
	}
	if ends[keep-1] == len(b) {
		return nil
	}
	return fsys.WriteFileAtomic(path, func(w io.Writer) error {
		_, err := w.Write(b[:ends[keep-1]])
		return err
	})
}

// manifestRecords returns where the head and each whole record end.
func manifestRecords(b []byte) (ends []int) {
	if len(b) < manifestHead {
		return nil
	}
	at := manifestHead
	for {
		ends = append(ends, at)
		if len(b)-at < 8 {
			return ends
		}
		n := int(binary.BigEndian.Uint32(b[at:]))
		if n > len(b)-at-8 || crc32.Checksum(b[at+8:][:n], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(b[at+4:]) {
			return ends
		}
		at += 8 + n
	}
}

// manifestTables returns the tables that the records in b add up to.
func manifestTables(path string, b []byte) (_ map[uint64]badger.TableManifest, err error) {
	fd, err := unix.MemfdCreate(manifestName, unix.MFD_CLOEXEC) // Badger reads files only
	if err != nil {
		return nil, &fsx.PathError{Op: "memfd_create", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(b, 0); err != nil {
		return nil, err
	}
	m, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions("").WithLogger(nil))
	if err != nil {
		return nil, &CorruptError{Path: path, Err: err}
	}
	return m.Tables, nil
}

// onlyMissing reports whether all that sets tables apart from before is at
// least one table that is not there.
func onlyMissing(dir string, tables, before map[uint64]badger.TableManifest) (bool, error) {
	if len(tables) <= len(before) {
		return false, nil
	}
	for id := range tables {
		if _, old := before[id]; old {
			continue
		}
		_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%06d.sst", id)))
		if err == nil {
			return false, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, nil
}

// namedTables returns the file names of the tables that Badger's MANIFEST names; nil
// where it cannot be read, which Badger tells.
func namedTables(dir string) (map[string]bool, error) {
	path := filepath.Join(dir, manifestName)
	b, err := fsx.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ends := manifestRecords(b)
	if len(ends) == 0 {
		return nil, nil
	}
	tables, err := manifestTables(path, b[:ends[len(ends)-1]])
	var c *CorruptError
	if errors.As(err, &c) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for id := range tables {
		named[fmt.Sprintf("%06d.sst", id)] = true
	}
	return named, nil
}
