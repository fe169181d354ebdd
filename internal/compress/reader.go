package compress

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Format is how a stream is compressed.
type Format string

// The formats.
const (
	Plain Format = "plain"
	Gzip  Format = "gzip"
	Zstd  Format = "zstd"
	LZ4   Format = "lz4"
)

// maxWindow bounds what a zstd decoder may allocate; it is the window of
// `zstd --long`, the largest that the zstd tool reads without being told to.
const maxWindow = 128 << 20

const peekSize = 1 << 18

const (
	magicZstd      = 0xFD2FB528
	magicLZ4       = 0x184D2204
	magicLZ4Legacy = 0x184C2102
	magicSkippable = 0x184D2A50 // to 0x184D2A5F, shared by zstd and lz4
)

// Reader is the uncompressed side of a stream.
type Reader struct {
	io.Reader
	Format Format
	close  func() error
}

// Close frees the decoder; it does not close what lies underneath.
func (r *Reader) Close() error {
	if r.close == nil {
		return nil
	}
	return r.close()
}

// NewReader recognizes the format of r and returns its uncompressed bytes.
// Damage and truncation come as errors of Read, never as a short stream.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReaderSize(r, peekSize)
	f, err := sniff(br)
	if err != nil {
		return nil, err
	}
	switch f {
	case Gzip:
		g, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", noEOF(err))
		}
		return &Reader{Reader: named{g, f}, Format: f, close: g.Close}, nil
	case Zstd:
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", noEOF(err))
		}
		return &Reader{Reader: named{z, f}, Format: f, close: func() error { z.Close(); return nil }}, nil
	case LZ4:
		return &Reader{Reader: named{lz4.NewReader(br), f}, Format: f}, nil
	}
	return &Reader{Reader: br, Format: f}, nil
}

// named puts the format before the error of a decoder, which often says no
// more than "unexpected EOF".
type named struct {
	r io.Reader
	f Format
}

func (n named) Read(p []byte) (int, error) {
	k, err := n.r.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %w", n.f, err)
	}
	return k, err
}

// noEOF keeps a decoder that fails on its header from passing for an empty
// file.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// sniff tells the format, first stepping over skippable frames, which zstd and
// lz4 share and some parallel compressors begin with.
func sniff(br *bufio.Reader) (Format, error) {
	for skipped := false; ; skipped = true {
		head, err := br.Peek(8)
		if err != nil && err != io.EOF {
			return "", err
		}
		if f, err := unsupported(head); err != nil {
			return f, err
		}
		if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) && !skipped {
			return Gzip, nil
		}
		var m uint32 // of fewer than four bytes: no magic
		if len(head) >= 4 {
			m = binary.LittleEndian.Uint32(head)
		}
		switch {
		case m == magicZstd:
			return Zstd, nil
		case m == magicLZ4 || m == magicLZ4Legacy:
			return LZ4, nil
		case m&^0xf == magicSkippable && len(head) == 8:
			n := 8 + int64(binary.LittleEndian.Uint32(head[4:]))
			if _, err := io.CopyN(io.Discard, br, n); err != nil {
				return "", fmt.Errorf("skippable frame of %d bytes: %w", n, noEOF(err))
			}
		case skipped:
			return "", fmt.Errorf("neither zstd nor lz4 follows a skippable frame")
		default:
			return Plain, nil
		}
	}
}

// unsupported names compressions that would otherwise read as plain rubbish.
func unsupported(head []byte) (Format, error) {
	for _, u := range []struct{ magic, name string }{
		{"\xfd7zXZ\x00", "xz"},
		{"BZh", "bzip2"},
		{"PK\x03\x04", "zip"},
		{"PAR1", "parquet"},
	} {
		if bytes.HasPrefix(head, []byte(u.magic)) {
			return "", fmt.Errorf("the file is %s, which is not read here: convert it to plain, gzip, zstd or lz4 JSON lines", u.name)
		}
	}
	return "", nil
}
