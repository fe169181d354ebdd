package samples

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/vmihailenco/msgpack/v5"
)

const (
	recordMagic   = "EBSM"
	recordVersion = 1
	recordHead    = 28
	recordTail    = 8 // xxh64
	keySize       = 12
	// maxRecord keeps a record well below Badger's value log file.
	maxRecord = 256 << 20
)

func appendKey(dst []byte, dataset uint32, index uint64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, dataset)
	return binary.BigEndian.AppendUint64(dst, index)
}

func splitKey(k []byte) (dataset uint32, index uint64, ok bool) {
	if len(k) != keySize {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(k), binary.BigEndian.Uint64(k[4:]), true
}

func keyName(dataset uint32, index uint64) string {
	return fmt.Sprintf("dataset %d sample %d", dataset, index)
}

// meta is the part of a record that is no token: small, so msgpack.
type meta struct {
	ID    string   `msgpack:"i"`
	File  uint32   `msgpack:"f"`
	Line  int64    `msgpack:"l"`
	Kinds []string `msgpack:"k"` // of the segments
	Ends  []uint32 `msgpack:"e"`
}

// encoder makes records. It belongs to one goroutine.
type encoder struct {
	meta bytes.Buffer
	enc  *msgpack.Encoder
}

func newEncoder() *encoder {
	e := &encoder{}
	e.enc = msgpack.NewEncoder(&e.meta)
	return e
}

// encodeMeta writes what decodes into a meta, without reflection: with short
// samples it is half of the work. A buffer returns no errors.
func (e *encoder) encodeMeta(s *Sample) []byte {
	e.meta.Reset()
	n := 3
	if len(s.Segments) > 0 {
		n = 5
	}
	must := func(err error) {
		if err != nil {
			panic(err) // writing to memory
		}
	}
	must(e.enc.EncodeMapLen(n))
	must(e.enc.EncodeString("i"))
	must(e.enc.EncodeString(s.ID))
	must(e.enc.EncodeString("f"))
	must(e.enc.EncodeUint(uint64(s.File)))
	must(e.enc.EncodeString("l"))
	must(e.enc.EncodeInt(s.Line))
	if n == 3 {
		return e.meta.Bytes()
	}
	must(e.enc.EncodeString("k"))
	must(e.enc.EncodeArrayLen(len(s.Segments)))
	for _, g := range s.Segments {
		must(e.enc.EncodeString(g.Kind))
	}
	must(e.enc.EncodeString("e"))
	must(e.enc.EncodeArrayLen(len(s.Segments)))
	for _, g := range s.Segments {
		must(e.enc.EncodeUint(uint64(g.End)))
	}
	return e.meta.Bytes()
}

// append appends the record of s to dst.
func (e *encoder) append(dst []byte, s *Sample) ([]byte, error) {
	if len(s.IDs) != len(s.Mask) {
		return dst, fmt.Errorf("%s: %d ids but %d mask values", keyName(s.Dataset, s.Index), len(s.IDs), len(s.Mask))
	}
	mb := e.encodeMeta(s)
	var all uint32
	for _, id := range s.IDs {
		all |= id
	}
	n, w := len(s.IDs), max(1, bits.Len32(all))
	size := recordHead + (n+7)/8 + packedSize(n, w) + len(mb) + recordTail
	if size > maxRecord {
		return dst, fmt.Errorf("%s: a record of %d bytes; the largest is %d", keyName(s.Dataset, s.Index), size, maxRecord)
	}
	start := len(dst)
	dst = slices.Grow(dst, size)
	dst = append(dst, recordMagic...)
	dst = append(dst, recordVersion, byte(w), 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, s.Dataset)
	dst = binary.LittleEndian.AppendUint64(dst, s.Index)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(mb)))
	dst = appendMask(dst, s.Mask)
	dst = appendPacked(dst, s.IDs, w)
	dst = append(dst, mb...)
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[start:])), nil
}

var (
	errEmptyValue = errors.New("the value is empty: it did not reach the disk")
	errChecksum   = errors.New("checksum mismatch")
)

// head is the checked fixed part of a record.
type head struct {
	dataset uint32
	index   uint64
	n, w    int
	meta    int
}

// checkRecord checks everything about a record but the meaning of its
// metadata.
func checkRecord(b []byte) (head, error) {
	if len(b) == 0 {
		return head{}, errEmptyValue
	}
	if len(b) < recordHead+recordTail {
		return head{}, fmt.Errorf("%d bytes are no record", len(b))
	}
	if string(b[:4]) != recordMagic {
		return head{}, fmt.Errorf("begins with %q, not %q", b[:4], recordMagic)
	}
	if b[4] != recordVersion {
		return head{}, fmt.Errorf("record version %d; this program reads %d", b[4], recordVersion)
	}
	h := head{
		w:       int(b[5]),
		dataset: binary.LittleEndian.Uint32(b[8:]),
		index:   binary.LittleEndian.Uint64(b[12:]),
		n:       int(binary.LittleEndian.Uint32(b[20:])),
		meta:    int(binary.LittleEndian.Uint32(b[24:])),
	}
	if h.w < 1 || h.w > 32 || b[6] != 0 || b[7] != 0 {
		return head{}, fmt.Errorf("ids of %d bits", h.w)
	}
	if want := recordHead + (h.n+7)/8 + packedSize(h.n, h.w) + h.meta + recordTail; want != len(b) {
		return head{}, fmt.Errorf("%d bytes where the header says %d", len(b), want)
	}
	body := b[:len(b)-recordTail]
	if xxhash.Sum64(body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return head{}, errChecksum
	}
	return h, nil
}

// decodeRecord reads a record into a new sample; b is not kept.
func decodeRecord(b []byte) (*Sample, error) {
	h, err := checkRecord(b)
	if err != nil {
		return nil, err
	}
	mask := b[recordHead:]
	ids := mask[(h.n+7)/8:]
	var m meta
	if err := msgpack.Unmarshal(ids[packedSize(h.n, h.w):len(ids)-recordTail], &m); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	s := &Sample{
		Dataset: h.dataset, Index: h.index, ID: m.ID, File: m.File, Line: m.Line,
		IDs: unpackIDs(ids, h.n, h.w), Mask: unpackMask(mask, h.n),
	}
	if len(m.Kinds) != len(m.Ends) {
		return nil, fmt.Errorf("metadata: %d kinds for %d segments", len(m.Kinds), len(m.Ends))
	}
	for i, k := range m.Kinds {
		s.Segments = append(s.Segments, Segment{Kind: k, End: m.Ends[i]})
	}
	return s, nil
}
