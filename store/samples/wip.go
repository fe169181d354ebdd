// Package samples keeps the merged samples: one Badger directory a merge
// generation beside a file of fixed rows (the row index).
package samples

import (
	"context"

	"eaglebatch/internal/fsx"
)

// Sample is one training sample. Mask[t] is 1 exactly when token t is
// supervised; nothing here is ever shifted.
type Sample struct {
	Dataset  uint32 // DatasetRow.ID
	Index    uint64 // within the dataset, accepted samples only, from 0
	ID       string // as in the source, "" where it had none
	File     uint32 // index into DatasetRow.Sources
	Line     int64  // 1-based
	IDs      []uint32
	Mask     []byte // one byte a token, 0 or 1
	Segments []Segment
}

// Segment ends a part of the sample.
type Segment struct {
	Kind string // prompt, reasoning, response, tool_calls
	End  uint32 // first token after it
}

// Row is a sample's row in the index: fixed width, readable without Badger.
type Row struct {
	Length, Supervised uint32
	First, Last        uint32   // first supervised token; one past the last
	Tokens             [16]byte // first 16 bytes of sha256 over the ids as LE uint32
	Content            [16]byte // the same over ids then mask bytes
}

// MakeRow computes a sample's row.
func MakeRow(s *Sample) Row { panic("wip") }

// Options opens a samples generation.
type Options struct {
	FS     *fsx.FS
	Memory int64 // bound for memtables and batches
	// Fail is called with the first ERROR line that Badger logs: an error it
	// swallowed. The run must end.
	Fail func(error)
}

// Writer fills one generation. Not safe for concurrent use.
type Writer struct{}

// OpenWriter opens dir (samples/NNNNNN), making it if need be, and truncates
// the row index to rows, the ledger's cursor.
func OpenWriter(dir string, rows int64, o Options) (*Writer, error) { panic("wip") }

// Append makes batch durable: Badger batch with SyncWrites, then rows, fsynced.
// The caller then moves the ledger's cursor. Appending the same samples again
// after a crash gives the same bytes.
func (w *Writer) Append(ctx context.Context, batch []Sample) error { panic("wip") }
func (w *Writer) Rows() int64                                      { panic("wip") }

// Seal closes Badger, opens it again, counts, and makes the generation
// read-only.
func (w *Writer) Seal(ctx context.Context) error { panic("wip") }
func (w *Writer) Close() error                   { panic("wip") }

// Store reads a sealed or unfinished generation; safe for concurrent use.
type Store struct{}

// Open opens dir for reading; rows bounds what counts.
func Open(dir string, rows int64, o Options) (*Store, error) { panic("wip") }

// Get returns one sample, verified against its own checksum.
func (s *Store) Get(ctx context.Context, dataset uint32, index uint64) (*Sample, error) { panic("wip") }
func (s *Store) Close() error                                                           { panic("wip") }

// Rows is the mapped row index of a generation.
type Rows struct{}

// OpenRows maps the row index in dir; it needs no Badger.
func OpenRows(dir string, rows int64) (*Rows, error) { panic("wip") }
func (r *Rows) Len() int64                           { panic("wip") }
func (r *Rows) At(i int64) Row                       { panic("wip") }
func (r *Rows) Close() error                         { panic("wip") }
