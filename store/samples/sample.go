package samples

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

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

// MakeRow computes a sample's row. First and Last are 0 where nothing is
// supervised.
func MakeRow(s *Sample) Row { return NewHasher().Row(s) }

// Hasher computes rows without allocating. It belongs to one goroutine.
type Hasher struct {
	h   hash.Hash
	buf [4096]byte
	sum []byte
}

// NewHasher returns a Hasher.
func NewHasher() *Hasher { return &Hasher{h: sha256.New()} }

// Row computes a sample's row, as MakeRow does.
func (h *Hasher) Row(s *Sample) Row {
	r := Row{Length: uint32(len(s.IDs))}
	r.Supervised = uint32(bytes.Count(s.Mask, []byte{1}))
	if r.Supervised > 0 {
		r.First = uint32(bytes.IndexByte(s.Mask, 1))
		r.Last = uint32(bytes.LastIndexByte(s.Mask, 1) + 1)
	}
	h.h.Reset()
	for ids := s.IDs; len(ids) > 0; {
		n := min(len(ids), len(h.buf)/4)
		for i, id := range ids[:n] {
			binary.LittleEndian.PutUint32(h.buf[4*i:], id)
		}
		h.h.Write(h.buf[:4*n])
		ids = ids[n:]
	}
	h.sum = h.h.Sum(h.sum[:0])
	copy(r.Tokens[:], h.sum)
	h.h.Write(s.Mask)
	h.sum = h.h.Sum(h.sum[:0])
	copy(r.Content[:], h.sum)
	return r
}

// Options opens a samples generation.
type Options struct {
	FS     *fsx.FS
	Memory int64 // bytes for memtables and batches; 0: 128 MiB
	// Fail is called with the first ERROR line that Badger logs: an error it
	// swallowed. The run must end. May be nil.
	Fail func(error)
	// Guard is asked before each step that takes disk space: need is an upper
	// bound in bytes. Badger maps its files and dies of SIGBUS on a full disk,
	// so its error must stop the writer. May be nil.
	Guard func(need int64) error
}

func (o Options) memory() int64 {
	if o.Memory <= 0 {
		return 128 << 20
	}
	return o.Memory
}

func (o Options) guard(need int64) error {
	if o.Guard == nil {
		return nil
	}
	return o.Guard(need)
}

// CorruptError is damage found in a samples generation.
type CorruptError struct {
	Path string // the generation's directory, or its row index
	Key  string // the record or row, where there is one
	Err  error
}

func (e *CorruptError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Path, e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }
