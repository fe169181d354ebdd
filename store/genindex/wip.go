// Package genindex reads and writes index files (.ebi): the table from a
// position in the order to the blob entry that holds its states, and the table
// of the entries of a generation's own blobs. A plan is such a file before
// anything is extracted (plans/NNNNNN.ebi, and generations/NNNNNN/plan.ebi); a
// sealed generation's index.ebi is the same with quarantined samples taken
// out.
package genindex

import (
	"iter"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

// Meta is the file's description.
type Meta struct {
	Generation uint32    `json:"generation"`
	Datasets   []string  `json:"datasets"`
	Splits     []Split   `json:"splits"` // in order of position
	Blob       blob.Meta `json:"blob"`   // as every own blob has it, Blob apart
}

// Split is a run of positions.
type Split struct {
	Name  string `json:"name"` // train, eval
	First int64  `json:"first"`
	Count int64  `json:"count"`
}

// NoMask says that a position has the mask of its blob entry.
const NoMask = ^uint64(0)

// Position is one place in the order.
type Position struct {
	Gen, Blob, Entry uint32 // Gen 0: this generation
	Rows             uint32 // tokens exposed: a prefix of the entry's rows
	Dataset          uint32 // index into Meta.Datasets
	Sample           uint64
	Mask             uint64 // offset into the mask section, or NoMask
}

// Writer writes an index file; memory use does not depend on its size.
type Writer struct{}

// Create begins path (written as a temporary file until Finish).
func Create(fs *fsx.FS, path string, m Meta) (*Writer, error) { panic("wip") }

// Blob appends the entries of the next own blob, in physical order.
func (w *Writer) Blob(entries []blob.Entry) error { panic("wip") }

// Position appends the next position; mask, one byte a token, may be nil.
// Calls of Blob and Position may mix.
func (w *Writer) Position(p Position, mask []byte) error { panic("wip") }

// Splits sets the splits, known only at the end.
func (w *Writer) Splits(s []Split) { panic("wip") }

// Finish publishes the file.
func (w *Writer) Finish() error { panic("wip") }

// Abort removes the temporary file.
func (w *Writer) Abort() error { panic("wip") }

// File is an open index, mapped; safe for concurrent use.
type File struct{}

// Open opens path and checks header and footer; Verify checks every byte.
func Open(path string) (*File, error)                     { panic("wip") }
func (f *File) Verify() error                             { panic("wip") }
func (f *File) Meta() Meta                                { panic("wip") }
func (f *File) Positions() int64                          { panic("wip") }
func (f *File) Position(i int64) Position                 { panic("wip") }
func (f *File) Blobs() int                                { panic("wip") }
func (f *File) BlobEntries(no int) (n int)                { panic("wip") }
func (f *File) Entry(no, entry int) blob.Entry            { panic("wip") }
func (f *File) Entries(no int) iter.Seq2[int, blob.Entry] { panic("wip") }
func (f *File) Mask(off uint64, rows int) []byte          { panic("wip") }
func (f *File) Close() error                              { panic("wip") }

// Manifest is MANIFEST.json, written last: its presence seals a generation.
type Manifest struct {
	Format      int            `json:"format"`
	Generation  uint32         `json:"generation"`
	Name        string         `json:"name"`
	Kind        string         `json:"kind"` // states, proof, repair
	Meta        blob.Meta      `json:"meta"`
	Identity    []IdentityPart `json:"identity"` // what must agree for reuse
	Plan        map[string]any `json:"plan"`     // max_tokens, overlong, drop, rows …: as planned
	Samples     int64          `json:"samples"`
	Tokens      int64          `json:"tokens"`
	RawBytes    int64          `json:"raw_bytes"`
	Files       []ManifestFile `json:"files"` // blobs, index.ebi, target_head.safetensors, by name
	Needs       []Need         `json:"needs"` // older generations the index points into
	Quarantined int64          `json:"quarantined"`
}

// IdentityPart is one key and value of a generation's identity.
type IdentityPart struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ManifestFile is a file of the generation.
type ManifestFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"hash"` // xxh64 of the file, hex
}

// Need is an older generation, by its manifest.
type Need struct {
	Generation uint32 `json:"generation"`
	Path       string `json:"path"` // relative to this generation's directory
	Hash       string `json:"hash"` // of its MANIFEST.json
}

// WriteManifest writes dir/MANIFEST.json atomically; ReadManifest reads it.
func WriteManifest(fs *fsx.FS, dir string, m Manifest) (hash string, err error) { panic("wip") }
func ReadManifest(dir string) (m Manifest, hash string, err error)              { panic("wip") }
