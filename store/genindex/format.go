package genindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"eaglebatch/store/blob"
)

const (
	magicHead = "EBINDX\r\n"
	magicTail = "EBIEND\r\n"

	headBytes     = 32
	entryBytes    = 48
	positionBytes = 40
	trailerBytes  = 64
	blockBytes    = 64 << 10 // with one checksum
	maxMeta       = 16 << 20
	maxBlobs      = 1 << 32 // a position's Blob is a uint32
	maxRows       = 1 << 26 // as in a blob
)

var (
	errChecksum = errors.New("checksum does not match")
	errReserved = errors.New("reserved bytes are not zero")
)

func appendEntry(dst []byte, e blob.Entry) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, e.Sample)
	dst = binary.LittleEndian.AppendUint32(dst, e.Dataset)
	dst = binary.LittleEndian.AppendUint32(dst, e.Rows)
	dst = append(dst, e.Tokens[:]...)
	return append(dst, e.Content[:]...)
}

func parseEntry(b []byte) (e blob.Entry) {
	e.Sample = binary.LittleEndian.Uint64(b)
	e.Dataset = binary.LittleEndian.Uint32(b[8:])
	e.Rows = binary.LittleEndian.Uint32(b[12:])
	copy(e.Tokens[:], b[16:32])
	copy(e.Content[:], b[32:48])
	return e
}

func appendPosition(dst []byte, p Position) []byte {
	for _, v := range [...]uint32{p.Gen, p.Blob, p.Entry, p.Rows, p.Dataset, 0} {
		dst = binary.LittleEndian.AppendUint32(dst, v)
	}
	dst = binary.LittleEndian.AppendUint64(dst, p.Sample)
	return binary.LittleEndian.AppendUint64(dst, p.Mask)
}

func parsePosition(b []byte) Position {
	return Position{
		Gen:     binary.LittleEndian.Uint32(b),
		Blob:    binary.LittleEndian.Uint32(b[4:]),
		Entry:   binary.LittleEndian.Uint32(b[8:]),
		Rows:    binary.LittleEndian.Uint32(b[12:]),
		Dataset: binary.LittleEndian.Uint32(b[16:]),
		Sample:  binary.LittleEndian.Uint64(b[24:]),
		Mask:    binary.LittleEndian.Uint64(b[32:]),
	}
}

// sections says how large the parts of a file are.
type sections struct {
	entries, blobs, positions, masks uint64
	meta                             uint32
	crc                              uint32 // of meta and block checksums
}

// Offsets of the sections.
func (s sections) positionsAt() int64 { return headBytes + int64(s.entries)*entryBytes }
func (s sections) blobsAt() int64     { return s.positionsAt() + int64(s.positions)*positionBytes }
func (s sections) masksAt() int64     { return s.blobsAt() + 8*int64(s.blobs+1) }
func (s sections) metaAt() int64      { return s.masksAt() + int64(s.masks) }
func (s sections) blocksAt() int64    { return s.metaAt() + int64(s.meta) }
func (s sections) blocks() int64      { return (s.metaAt() + blockBytes - 1) / blockBytes }
func (s sections) size() int64        { return s.blocksAt() + 4*s.blocks() + trailerBytes }

func (s sections) appendTrailer(dst []byte) []byte {
	at := len(dst)
	for _, v := range [...]uint64{s.entries, s.blobs, s.positions, s.masks} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = binary.LittleEndian.AppendUint32(dst, s.meta)
	dst = binary.LittleEndian.AppendUint32(dst, blockBytes)
	dst = binary.LittleEndian.AppendUint64(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, s.crc)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:]))
	return append(dst, magicTail...)
}

// parseTrailer checks the trailer of a file of size bytes and that its sections
// fill the file.
func parseTrailer(b []byte, size int64) (s sections, err error) {
	if string(b[56:64]) != magicTail {
		return s, errors.New("no end mark: the file was cut, or something was appended")
	}
	if crc32.ChecksumIEEE(b[:52]) != binary.LittleEndian.Uint32(b[52:]) {
		return s, errChecksum
	}
	s = sections{
		entries:   binary.LittleEndian.Uint64(b),
		blobs:     binary.LittleEndian.Uint64(b[8:]),
		positions: binary.LittleEndian.Uint64(b[16:]),
		masks:     binary.LittleEndian.Uint64(b[24:]),
		meta:      binary.LittleEndian.Uint32(b[32:]),
		crc:       binary.LittleEndian.Uint32(b[48:]),
	}
	if binary.LittleEndian.Uint32(b[36:]) != blockBytes || binary.LittleEndian.Uint64(b[40:]) != 0 {
		return s, errReserved
	}
	// Each count is held to the file's size first, so that their sum cannot
	// overflow.
	n := uint64(size)
	if s.entries > n/entryBytes || s.positions > n/positionBytes || s.blobs > n/8 || s.blobs > maxBlobs ||
		s.masks > n || s.meta > maxMeta || s.size() != size {
		return s, fmt.Errorf("%d entries, %d blobs, %d positions, %d bytes of masks and %d of meta do not make %d bytes",
			s.entries, s.blobs, s.positions, s.masks, s.meta, size)
	}
	return s, nil
}
