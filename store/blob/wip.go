package blob

import (
	"context"
	"io"

	"eaglebatch/internal/fsx"
)

// Writer writes one blob. Entries are written one after the other, in physical
// order; rows of an entry may come in pieces. Encoding runs on Threads
// goroutines behind it, in bounded memory, and does not change the bytes.
type Writer struct{}

// WriterOptions bounds a writer.
type WriterOptions struct {
	FS      *fsx.FS
	Threads int // encoders; 0: all cores
}

// Create begins path, under a temporary name until Commit.
func Create(path string, m Meta, o WriterOptions) (*Writer, error) { panic("wip") }

// Begin starts the next entry with its token ids and mask (one byte a token).
func (w *Writer) Begin(e Entry, ids []uint32, mask []byte) error { panic("wip") }

// Rows appends rows of the entry begun: row-major [n, layers, hidden] in
// Meta.DType. data may be reused once Rows returns.
func (w *Writer) Rows(ctx context.Context, data []byte, n int) error { panic("wip") }

// End closes the entry begun; all its rows must have come.
func (w *Writer) End() error { panic("wip") }

// Skip records the next entry as absent (quarantined), with a reason.
func (w *Writer) Skip(e Entry, reason string) error { panic("wip") }

// Info is what a finished blob is.
type Info struct {
	Bytes, RawBytes int64
	Entries, Absent int
	Tokens          int64
	Hash            string // xxh64 of the whole file, hex
}

// Commit writes footer and index, fsyncs, renames, fsyncs the directory.
func (w *Writer) Commit(ctx context.Context) (Info, error) { panic("wip") }

// Abort removes the unfinished file.
func (w *Writer) Abort() error { panic("wip") }

// Reader reads a blob at random; safe for concurrent use.
type Reader struct{}

// Open reads header and footer index and checks them.
func Open(path string) (*Reader, error)                     { panic("wip") }
func (r *Reader) Meta() Meta                                { panic("wip") }
func (r *Reader) Entries() int                              { panic("wip") }
func (r *Reader) Entry(i int) Entry                         { panic("wip") }
func (r *Reader) Absent(i int) (reason string, absent bool) { panic("wip") }
func (r *Reader) IDs(i int) ([]uint32, error)               { panic("wip") }
func (r *Reader) Mask(i int) ([]byte, error)                { panic("wip") }

// Layer decodes rows [first, first+n) of one captured layer (an index into
// Meta.Layers) into dst, which has n*RowBytes bytes.
func (r *Reader) Layer(dst []byte, entry, layer, first, n int) error { panic("wip") }

// Verify decodes and hashes every chunk and reports each damaged one; it goes
// on after damage. It returns the bytes read.
func (r *Reader) Verify(ctx context.Context, damaged func(Damage)) (int64, error) { panic("wip") }
func (r *Reader) Close() error                                                    { panic("wip") }

// Damage is one damaged place.
type Damage struct {
	Path        string
	Offset      int64
	Bytes       int64
	Entry       int // -1: header, footer or index
	Layer       int // index into Meta.Layers; -1: ids or mask
	First, Rows int
	Err         error
}

// HashFile returns the xxh64 of a file, as Info.Hash has it.
func HashFile(ctx context.Context, path string) (string, error) { panic("wip") }

var _ io.Closer = (*Reader)(nil)
