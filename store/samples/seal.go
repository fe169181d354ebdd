package samples

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/internal/fsx"
)

const (
	sealName   = "SEALED"
	listName   = "db.json"
	sealFormat = 2 // 1 had no list of Badger's files
)

// seal is the content of the SEALED file.
type seal struct {
	Format int   `json:"format"`
	Rows   int64 `json:"rows"`
}

// dbFile is one of Badger's files as it was when the generation was sealed.
// Badger trusts the sizes of its files and maps them: a short one is found here
// or ends the process.
type dbFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"hash"` // xxh64, hex
}

// writeSeal marks the generation in dir as complete. The database must be
// closed: from now on it is only read.
func writeSeal(ctx context.Context, fs *fsx.FS, dir string, rows int64) error {
	ents, err := os.ReadDir(filepath.Join(dir, dbName))
	if err != nil {
		return err
	}
	var list []dbFile
	for _, e := range ents {
		f := dbFile{Name: e.Name()}
		if err := syncFile(fs, filepath.Join(dir, dbName, f.Name)); err != nil {
			return err
		}
		if f.Bytes, f.Hash, err = hashFile(ctx, filepath.Join(dir, dbName, f.Name)); err != nil {
			return err
		}
		list = append(list, f)
	}
	if err := fs.SyncDir(filepath.Join(dir, dbName)); err != nil {
		return err
	}
	if err := writeJSON(fs, filepath.Join(dir, listName), list); err != nil {
		return err
	}
	return writeJSON(fs, filepath.Join(dir, sealName), seal{Format: sealFormat, Rows: rows})
}

// syncFile makes durable what Badger did to a file last: it cuts its logs to
// their length as it closes, and does not fsync that.
func syncFile(fs *fsx.FS, path string) error {
	f, err := fs.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func writeJSON(fs *fsx.FS, path string, v any) error {
	return fs.WriteFileAtomic(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(v) })
}

func hashFile(ctx context.Context, path string) (n int64, hash string, err error) {
	f, err := fsx.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := xxhash.New()
	for b := make([]byte, 1<<20); ; {
		k, err := f.Read(b)
		n += int64(k)
		_, _ = sum.Write(b[:k]) // a hash does not fail
		if err == io.EOF {
			return n, fmt.Sprintf("%016x", sum.Sum64()), nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return n, "", err
		}
	}
}

// readSeal reads the mark of a sealed generation.
func readSeal(dir string) (s seal, ok bool, err error) {
	path := filepath.Join(dir, sealName)
	b, err := fsx.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, err
	}
	err = json.Unmarshal(b, &s)
	if err == nil && (s.Format < 1 || s.Format > sealFormat || s.Rows < 0) {
		err = fmt.Errorf("format %d, %d rows", s.Format, s.Rows)
	}
	if err != nil {
		return s, false, &CorruptError{Path: path, Err: err}
	}
	return s, true, nil
}

// Sealed reads the mark of a sealed generation: its number of rows.
func Sealed(dir string) (rows int64, ok bool, err error) {
	s, ok, err := readSeal(dir)
	return s.Rows, ok, err
}

// CheckSealed looks at a generation that the ledger has as sealed with rows
// rows: its mark, the size of its row index, and the sizes of Badger's files.
func CheckSealed(dir string, rows int64) error {
	s, ok, err := readSeal(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, sealName)
	if !ok {
		return &CorruptError{Path: path, Err: errors.New("is missing, the ledger has the generation as sealed")}
	}
	if s.Rows != rows {
		return &CorruptError{Path: path, Err: fmt.Errorf("says %d rows, the ledger counts %d", s.Rows, rows)}
	}
	if err := CheckRows(dir, rows); err != nil {
		return err
	}
	return checkFiles(context.Background(), dir, s, false)
}

// CheckRows looks at the size of a row index that must hold rows rows.
func CheckRows(dir string, rows int64) error {
	path := filepath.Join(dir, rowsName)
	st, err := os.Stat(path)
	if err != nil {
		return &CorruptError{Path: path, Err: err}
	}
	if st.Size() < rowsHead+rows*rowSize {
		return shortRows(path, st.Size(), rows)
	}
	return nil
}

// checkFiles compares Badger's files with their list: sizes, or hashes too.
func checkFiles(ctx context.Context, dir string, s seal, hashes bool) error {
	if s.Format < sealFormat {
		return nil
	}
	path := filepath.Join(dir, listName)
	b, err := fsx.ReadFile(path)
	var list []dbFile
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return &CorruptError{Path: path, Err: err}
	}
	for _, f := range list {
		if f.Name != filepath.Base(f.Name) {
			return &CorruptError{Path: path, Err: fmt.Errorf("file name %q", f.Name)}
		}
		path := filepath.Join(dir, dbName, f.Name)
		st, err := os.Stat(path)
		if err == nil && st.Size() != f.Bytes {
			err = fmt.Errorf("has %d bytes, sealed with %d", st.Size(), f.Bytes)
		}
		if err == nil && hashes {
			var hash string
			if _, hash, err = hashFile(ctx, path); err == nil && hash != f.Hash {
				err = fmt.Errorf("hash is %s, sealed with %s", hash, f.Hash)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return &CorruptError{Path: path, Err: err}
		}
	}
	return nil
}

// checkTables looks at the ends of Badger's tables, where a table says how long
// its last parts are: Badger panics in a goroutine of its own where they do not
// fit into the file. One that Badger's MANIFEST does not name was not finished when
// a writer ended: Badger removes it.
func checkTables(dir string) error {
	named, err := namedTables(dir)
	if err != nil {
		return err
	}
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range ents {
		if !strings.HasSuffix(e.Name(), ".sst") || named != nil && !named[e.Name()] {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := fsx.Open(path)
		if err != nil {
			return err
		}
		st, err := f.Stat()
		whole := err == nil && tableEnds(f, st.Size())
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if !whole {
			return &CorruptError{Path: path, Err: errors.New("does not end as a table does")}
		}
	}
	return nil
}

// tableEnds: a table ends with index, length, checksum, length; the lengths are
// 4 bytes, big-endian.
func tableEnds(r io.ReaderAt, at int64) bool {
	for part := range 2 {
		var n [4]byte
		if at -= 4; at < 0 {
			return false
		}
		if _, err := r.ReadAt(n[:], at); err != nil {
			return false
		}
		// Badger reads an index of no bytes, which zeros look like, and panics.
		size := int64(binary.BigEndian.Uint32(n[:]))
		if at -= size; at < 0 || size == 0 && part == 1 {
			return false
		}
	}
	return true
}
