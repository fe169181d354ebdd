package genindex

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

// File is an open index, mapped; safe for concurrent use. Accessors given a
// number that is out of range panic, as slices do.
type File struct {
	path string
	b    []byte
	s    sections
	meta Meta
}

// Open opens path and checks all of it: every byte against its checksum, every
// number against what it points to. It fails with *blob.CorruptError for damage
// and *blob.NewerError for a newer file.
func Open(path string) (*File, error) {
	osf, err := fsx.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := mapFile(path, osf)
	_ = osf.Close() // only read; the mapping stays
	if err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenCommitted is Open for an index of which the ledger says that it is there:
// that it is gone is damage.
func OpenCommitted(path string) (*File, error) {
	f, err := Open(path)
	if errors.Is(err, os.ErrNotExist) {
		err = &blob.CorruptError{Path: path, Offset: -1, What: "index", Err: err}
	}
	return f, err
}

func mapFile(path string, osf *os.File) (*File, error) {
	st, err := osf.Stat()
	if err != nil {
		return nil, err
	}
	size := st.Size()
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	if size < headBytes+trailerBytes || size != int64(int(size)) {
		return nil, &blob.CorruptError{Path: path, What: "index", Err: fmt.Errorf("file has %d bytes", size)}
	}
	b, err := unix.Mmap(int(osf.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	return &File{path: path, b: b}, nil
}

// check does the work of Open and Verify.
func (f *File) check() error {
	if _, err := blob.ReadHead(f.path, f, int64(len(f.b)), magicHead); err != nil {
		return err
	}
	size := int64(len(f.b))
	s, err := parseTrailer(f.b[size-trailerBytes:], size)
	if err != nil {
		return f.corrupt(size-trailerBytes, "trailer", err)
	}
	f.s = s
	tail := f.b[s.metaAt() : size-trailerBytes]
	if crc32.ChecksumIEEE(tail) != s.crc {
		return f.corrupt(s.metaAt(), "meta", errChecksum)
	}
	var m Meta
	err = json.Unmarshal(tail[:s.meta], &m)
	if err == nil {
		err = checkSplits(m.Splits, int64(s.positions))
	}
	if err != nil {
		return f.corrupt(s.metaAt(), "meta", err)
	}
	f.meta = m
	for k := range s.blocks() {
		from, to := k*blockBytes, min((k+1)*blockBytes, s.metaAt())
		if crc32.ChecksumIEEE(f.b[from:to]) != binary.LittleEndian.Uint32(f.b[s.blocksAt()+4*k:]) {
			return f.corrupt(from, fmt.Sprintf("block of %d bytes", to-from), errChecksum)
		}
	}
	return f.checkTables()
}

// checkTables holds every number to what it points to.
func (f *File) checkTables() error {
	if f.first(0) != 0 || f.first(f.Blobs()) != int64(f.s.entries) {
		return f.corrupt(f.s.blobsAt(), "blob table", fmt.Errorf("does not hold %d entries", f.s.entries))
	}
	for no := range f.Blobs() {
		if f.first(no) > f.first(no+1) {
			return f.corrupt(f.s.blobsAt()+8*int64(no), "blob table", errors.New("not ascending"))
		}
	}
	for i := range int64(f.s.entries) {
		e := parseEntry(f.b[headBytes+i*entryBytes:])
		if int(e.Dataset) >= len(f.meta.Datasets) || e.Rows < 1 || e.Rows > maxRows {
			return f.corrupt(headBytes+i*entryBytes, fmt.Sprintf("entry %d", i),
				fmt.Errorf("dataset %d of %d, %d rows", e.Dataset, len(f.meta.Datasets), e.Rows))
		}
	}
	for i := range f.Positions() {
		at := f.s.positionsAt() + i*positionBytes
		if err := f.checkPosition(f.b[at : at+positionBytes]); err != nil {
			return f.corrupt(at, fmt.Sprintf("position %d", i), err)
		}
	}
	return nil
}

func (f *File) checkPosition(b []byte) error {
	p := parsePosition(b)
	switch {
	case binary.LittleEndian.Uint32(b[20:]) != 0:
		return errReserved
	case int(p.Dataset) >= len(f.meta.Datasets):
		return fmt.Errorf("dataset %d of %d", p.Dataset, len(f.meta.Datasets))
	case p.Rows < 1 || p.Rows > maxRows:
		return fmt.Errorf("%d rows", p.Rows)
	case p.Mask != NoMask && (p.Mask > f.s.masks || uint64(p.Rows+7)/8 > f.s.masks-p.Mask):
		return fmt.Errorf("mask of %d rows at %d of %d", p.Rows, p.Mask, f.s.masks)
	}
	if p.Gen != 0 {
		return nil
	}
	if uint64(p.Blob) >= f.s.blobs || int(p.Entry) >= f.BlobEntries(int(p.Blob)) {
		return fmt.Errorf("no entry %d in blob %d", p.Entry, p.Blob)
	}
	if e := f.Entry(int(p.Blob), int(p.Entry)); p.Rows > e.Rows {
		return fmt.Errorf("%d rows of an entry of %d", p.Rows, e.Rows)
	}
	return nil
}

func (f *File) corrupt(off int64, what string, err error) error {
	return &blob.CorruptError{Path: f.path, Offset: off, What: what, Err: err}
}

// ReadAt reads from the mapping.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(f.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Verify checks every byte again, as Open did.
func (f *File) Verify() error {
	return (&File{path: f.path, b: f.b}).check()
}

// Meta returns the description.
func (f *File) Meta() Meta {
	m := f.meta
	m.Datasets, m.Splits = slices.Clone(m.Datasets), slices.Clone(m.Splits)
	return m
}

// Positions returns the number of positions.
func (f *File) Positions() int64 { return int64(f.s.positions) }

// Position returns position i.
func (f *File) Position(i int64) Position {
	if i < 0 || i >= f.Positions() {
		panic(fmt.Sprintf("genindex: position %d of %d", i, f.Positions()))
	}
	return parsePosition(f.b[f.s.positionsAt()+i*positionBytes:])
}

// Blobs returns the number of own blobs.
func (f *File) Blobs() int { return int(f.s.blobs) }

// first returns the number of the first entry of a blob.
func (f *File) first(no int) int64 {
	return int64(binary.LittleEndian.Uint64(f.b[f.s.blobsAt()+8*int64(no):]))
}

// BlobEntries returns the number of entries of an own blob.
func (f *File) BlobEntries(no int) (n int) {
	if no < 0 || no >= f.Blobs() {
		panic(fmt.Sprintf("genindex: blob %d of %d", no, f.Blobs()))
	}
	return int(f.first(no+1) - f.first(no))
}

// Entry returns an entry of an own blob.
func (f *File) Entry(no, entry int) blob.Entry {
	if n := f.BlobEntries(no); entry < 0 || entry >= n {
		panic(fmt.Sprintf("genindex: entry %d of %d in blob %d", entry, n, no))
	}
	return parseEntry(f.b[headBytes+(f.first(no)+int64(entry))*entryBytes:])
}

// Entries returns the entries of an own blob, in physical order.
func (f *File) Entries(no int) iter.Seq2[int, blob.Entry] {
	return func(yield func(int, blob.Entry) bool) {
		for i := range f.BlobEntries(no) {
			if !yield(i, f.Entry(no, i)) {
				return
			}
		}
	}
}

// Mask returns the mask of a position with one of its own, one byte a token: off
// is Position.Mask, rows Position.Rows.
func (f *File) Mask(off uint64, rows int) []byte {
	n := uint64(rows+7) / 8
	if rows < 0 || off > f.s.masks || n > f.s.masks-off {
		panic(fmt.Sprintf("genindex: mask of %d rows at %d of %d", rows, off, f.s.masks))
	}
	bits := f.b[f.s.masksAt()+int64(off):][:n]
	mask := make([]byte, rows)
	for t := range mask {
		mask[t] = bits[t>>3] >> (t & 7) & 1
	}
	return mask
}

// Close unmaps the file; nothing of it may be used afterwards.
func (f *File) Close() error {
	if f.b == nil {
		return nil
	}
	b := f.b
	f.b = nil
	return unix.Munmap(b)
}
