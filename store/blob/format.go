package blob

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"eaglebatch/store/codec"
)

// Version is the newest file version that this package reads, and the one that
// it writes.
const Version = 1

const (
	magicHead = "EBBLOB\r\n"
	magicTail = "EBBEND\r\n"

	headBytes    = 32
	trailerBytes = 64
	entryBytes   = 64
	chunkBytes   = 24

	flagAbsent   = 1
	flagSelected = 2
	flagLosses   = 4 // the last chunk holds what quantizing cost
)

// FileName is the name of blob no in the directory of its generation.
func FileName(no uint32) string { return fmt.Sprintf("blob-%06d.ebb", no) }

// AppendHead appends the 32 bytes that blobs and indexes begin with, and then
// js, the header JSON.
func AppendHead(dst []byte, magic string, js []byte) []byte {
	at := len(dst)
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, Version)
	dst = binary.LittleEndian.AppendUint32(dst, 0) // features
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(js)))
	dst = append(dst, make([]byte, 8)...)
	sum := crc32.Update(crc32.ChecksumIEEE(dst[at:]), crc32.IEEETable, js)
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	return append(dst, js...)
}

// ReadHead reads and checks what AppendHead wrote, in the order that FORMAT.md
// gives: damage is told apart from a newer version. path is for errors.
func ReadHead(path string, r io.ReaderAt, size int64, magic string) (js []byte, err error) {
	bad := func(format string, a ...any) error {
		return &CorruptError{Path: path, What: "header", Err: fmt.Errorf(format, a...)}
	}
	if size < headBytes {
		return nil, bad("file has only %d bytes", size)
	}
	var h [headBytes]byte
	if err := readAt(r, h[:], 0); err != nil {
		return nil, bad("%w", err)
	}
	if string(h[:8]) != magic {
		return nil, bad("begins with %q, want %q", h[:8], magic)
	}
	n := int64(binary.LittleEndian.Uint32(h[16:]))
	if n > maxJSON || headBytes+n > size {
		return nil, bad("header JSON of %d bytes does not fit", n)
	}
	js = make([]byte, n)
	if err := readAt(r, js, headBytes); err != nil {
		return nil, bad("%w", err)
	}
	sum := crc32.Update(crc32.ChecksumIEEE(h[:28]), crc32.IEEETable, js)
	if sum != binary.LittleEndian.Uint32(h[28:]) {
		return nil, bad("%w", errChecksum)
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v != Version {
		return nil, &NewerError{Path: path, What: fmt.Sprintf("version %d", v)}
	}
	if f := binary.LittleEndian.Uint32(h[12:]); f != 0 {
		return nil, &NewerError{Path: path, What: fmt.Sprintf("feature bits %#x", f)}
	}
	if binary.LittleEndian.Uint64(h[20:]) != 0 {
		return nil, bad("%w", errReserved)
	}
	return js, nil
}

var (
	errChecksum = errors.New("checksum does not match")
	errReserved = errors.New("reserved bytes are not zero")
)

// readAt fills p; the end of the file is an unexpected one.
func readAt(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == io.EOF {
		return fmt.Errorf("file ends early: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func parseMeta(path string, js []byte) (Meta, error) {
	var m Meta
	err := json.Unmarshal(js, &m)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return m, &CorruptError{Path: path, Offset: headBytes, What: "header JSON", Err: err}
	}
	return m, nil
}

// entryRec is an entry record of the footer.
type entryRec struct {
	Entry
	first  uint32 // chunk
	chunks uint32
	flags  uint32
	reason string
}

func (e *entryRec) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, e.Sample)
	dst = binary.LittleEndian.AppendUint32(dst, e.Dataset)
	dst = binary.LittleEndian.AppendUint32(dst, e.Rows)
	dst = append(dst, e.Tokens[:]...)
	dst = append(dst, e.Content[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, e.first)
	dst = binary.LittleEndian.AppendUint32(dst, e.chunks)
	dst = binary.LittleEndian.AppendUint32(dst, e.flags)
	return binary.LittleEndian.AppendUint32(dst, uint32(len(e.reason)))
}

// chunkRec is a chunk record of the footer, and where the chunk lies.
type chunkRec struct {
	off   int64
	hash  uint64 // xxh64 of the raw bytes
	crc   uint32 // crc32 of the raw bytes
	raw   uint32
	enc   uint32
	codec codec.ID
}

func (c *chunkRec) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, c.hash)
	dst = binary.LittleEndian.AppendUint32(dst, c.crc)
	dst = binary.LittleEndian.AppendUint32(dst, c.raw)
	dst = binary.LittleEndian.AppendUint32(dst, c.enc)
	return append(dst, byte(c.codec), 0, 0, 0)
}

// trailer is the end of a blob.
type trailer struct {
	footer, length           uint64
	entries, chunks, reasons uint32
	hash                     uint64 // of everything before
	crc                      uint32 // of the footer
}

func (t *trailer) append(dst []byte) []byte {
	at := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, t.footer)
	dst = binary.LittleEndian.AppendUint64(dst, t.length)
	dst = binary.LittleEndian.AppendUint32(dst, t.entries)
	dst = binary.LittleEndian.AppendUint32(dst, t.chunks)
	dst = binary.LittleEndian.AppendUint32(dst, t.reasons)
	dst = append(dst, make([]byte, 12)...)
	dst = binary.LittleEndian.AppendUint64(dst, t.hash)
	dst = binary.LittleEndian.AppendUint32(dst, t.crc)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:]))
	return append(dst, magicTail...)
}

// parseTrailer checks the trailer of a file of size bytes and that the footer
// ends where it begins.
func parseTrailer(b []byte, size int64) (t trailer, err error) {
	if string(b[56:64]) != magicTail {
		return t, fmt.Errorf("no end mark: the file was cut, or something was appended")
	}
	if crc32.ChecksumIEEE(b[:52]) != binary.LittleEndian.Uint32(b[52:]) {
		return t, errChecksum
	}
	for _, v := range b[28:40] {
		if v != 0 {
			return t, errReserved
		}
	}
	t = trailer{
		footer:  binary.LittleEndian.Uint64(b),
		length:  binary.LittleEndian.Uint64(b[8:]),
		entries: binary.LittleEndian.Uint32(b[16:]),
		chunks:  binary.LittleEndian.Uint32(b[20:]),
		reasons: binary.LittleEndian.Uint32(b[24:]),
		hash:    binary.LittleEndian.Uint64(b[40:]),
		crc:     binary.LittleEndian.Uint32(b[48:]),
	}
	want := uint64(t.entries)*entryBytes + uint64(t.chunks)*chunkBytes + uint64(t.reasons)
	switch {
	case t.length != want || t.length > maxFooter:
		return t, fmt.Errorf("footer of %d bytes for %d entries, %d chunks and %d bytes of reasons", t.length, t.entries, t.chunks, t.reasons)
	case t.footer > uint64(size) || t.footer+t.length+trailerBytes != uint64(size):
		return t, fmt.Errorf("footer at %d of %d bytes does not end %d bytes before the end of a file of %d", t.footer, t.length, trailerBytes, size)
	}
	return t, nil
}
