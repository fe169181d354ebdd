package samples

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

const (
	rowsName    = "index.rows"
	rowsMagic   = "ebrows\r\n"
	rowsVersion = 1
	rowsHead    = 16
	rowSize     = 52
)

func rowsHeader() []byte {
	b := append([]byte(nil), rowsMagic...)
	b = binary.LittleEndian.AppendUint32(b, rowsVersion)
	return binary.LittleEndian.AppendUint32(b, rowSize)
}

func checkRowsHeader(b []byte) error {
	if len(b) < rowsHead || string(b[:8]) != rowsMagic {
		return errors.New("is no row index")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != rowsVersion {
		return fmt.Errorf("row index version %d; this program reads %d", v, rowsVersion)
	}
	if n := binary.LittleEndian.Uint32(b[12:]); n != rowSize {
		return fmt.Errorf("rows of %d bytes instead of %d", n, rowSize)
	}
	return nil
}

// rowSum continues from the row's number, so that a row in the wrong place is
// found.
func rowSum(b []byte, i int64) uint32 {
	return crc32.Update(uint32(i), crc32.MakeTable(crc32.Castagnoli), b[:rowSize-4])
}

func appendRow(dst []byte, r *Row, i int64) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, r.Length)
	dst = binary.LittleEndian.AppendUint32(dst, r.Supervised)
	dst = binary.LittleEndian.AppendUint32(dst, r.First)
	dst = binary.LittleEndian.AppendUint32(dst, r.Last)
	dst = append(dst, r.Tokens[:]...)
	dst = append(dst, r.Content[:]...)
	return binary.LittleEndian.AppendUint32(dst, rowSum(dst[start:start+rowSize-4], i))
}

func decodeRow(b []byte) (r Row) {
	r.Length = binary.LittleEndian.Uint32(b)
	r.Supervised = binary.LittleEndian.Uint32(b[4:])
	r.First = binary.LittleEndian.Uint32(b[8:])
	r.Last = binary.LittleEndian.Uint32(b[12:])
	copy(r.Tokens[:], b[16:])
	copy(r.Content[:], b[32:])
	return r
}

// openRowsWriter opens the row index in dir for appending after rows rows and
// cuts what a crash left behind them.
func openRowsWriter(fs *fsx.FS, dir string, rows int64) (*fsx.File, error) {
	path := filepath.Join(dir, rowsName)
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := prepareRows(f, rows); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := fs.SyncDir(dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func prepareRows(f *fsx.File, rows int64) error {
	st, err := f.OS().Stat()
	if err != nil {
		return err
	}
	end := rowsHead + rows*rowSize
	if rows == 0 {
		// Nothing counts yet: what a crash left may be a length without bytes.
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.WriteAt(rowsHeader(), 0); err != nil {
			return err
		}
	} else if st.Size() < end {
		return shortRows(f.Name(), st.Size(), rows)
	}
	var h [rowsHead]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return err
	}
	if err := checkRowsHeader(h[:]); err != nil {
		return &CorruptError{Path: f.Name(), Err: err}
	}
	if rows > 0 && st.Size() > end {
		if err := f.Truncate(end); err != nil {
			return err
		}
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return err
	}
	return f.Sync()
}

func shortRows(path string, size, rows int64) error {
	return &CorruptError{Path: path, Err: fmt.Errorf("%d bytes are fewer than the %d rows the ledger counts", size, rows)}
}

// Rows is the mapped row index of a generation. Every row that counts was
// checked when it was opened.
type Rows struct {
	b []byte // the mapping
	n int64
}

// OpenRows maps the row index in dir and checks its first rows rows; it needs
// no Badger.
func OpenRows(dir string, rows int64) (*Rows, error) {
	path := filepath.Join(dir, rowsName)
	f, err := fsx.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &CorruptError{Path: path, Err: err}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := rowsHead + rows*rowSize
	if rows < 0 || st.Size() < size {
		return nil, shortRows(path, st.Size(), rows)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &fsx.PathError{Op: "mmap", Path: path, Err: err}
	}
	r := &Rows{b: b, n: rows}
	if err := r.check(path); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rows) check(path string) error {
	if err := checkRowsHeader(r.b); err != nil {
		return &CorruptError{Path: path, Err: err}
	}
	for i := range r.n {
		b := r.row(i)
		if rowSum(b, i) != binary.LittleEndian.Uint32(b[rowSize-4:]) {
			return &CorruptError{Path: path, Key: fmt.Sprintf("row %d", i), Err: errChecksum}
		}
	}
	return nil
}

func (r *Rows) row(i int64) []byte { return r.b[rowsHead+i*rowSize:][:rowSize] }

// Len returns the number of rows.
func (r *Rows) Len() int64 { return r.n }

// At returns row i.
func (r *Rows) At(i int64) Row { return decodeRow(r.row(i)) }

// Content returns the content hash of row i.
func (r *Rows) Content(i int64) (h [16]byte) {
	copy(h[:], r.row(i)[32:])
	return h
}

// Close unmaps the index.
func (r *Rows) Close() error {
	b := r.b
	r.b, r.n = nil, 0
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}
