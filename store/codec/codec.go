package codec

import (
	"errors"
	"fmt"

	"github.com/pierrec/lz4/v4"
)

// ID names a codec in a chunk header.
type ID uint8

// The codecs. A chunk that gains less than 2% is stored Raw whatever was asked.
const (
	Raw    ID = 0
	LZ4    ID = 1
	Planes ID = 2 // lz4-planes
	Dense  ID = 3
)

// MaxChunk is the largest raw chunk in bytes. It keeps every length of the
// format within 32 bits and what a decoder allocates within reason.
const MaxChunk = 1 << 26

// ErrMalformed marks an encoded chunk that no encoder wrote.
var ErrMalformed = errors.New("malformed chunk")

// Parse turns a name (raw, lz4, lz4-planes, dense) into an ID.
func Parse(name string) (ID, error) {
	for _, c := range []ID{Raw, LZ4, Planes, Dense} {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unknown codec %q (want raw, lz4, lz4-planes or dense)", name)
}

// String returns the codec's name.
func (c ID) String() string {
	switch c {
	case Raw:
		return "raw"
	case LZ4:
		return "lz4"
	case Planes:
		return "lz4-planes"
	case Dense:
		return "dense"
	}
	return fmt.Sprintf("codec-%d", uint8(c))
}

// Encoder holds scratch space; not safe for concurrent use.
type Encoder struct {
	codec  ID
	layout layout
	k      kernels
	lz     lz4.Compressor
	split  split
	zigzag []byte // centred exponents
	buf    []byte // one compressed plane
	tree   tree
}

// NewEncoder returns an encoder for values of dtype (bf16, fp16, fp32, fp8).
func NewEncoder(c ID, dtype string) (*Encoder, error) {
	if c > Dense {
		return nil, fmt.Errorf("new encoder: unknown %v", c)
	}
	l, err := layoutOf(dtype)
	if err != nil {
		return nil, err
	}
	return &Encoder{codec: c, layout: l, k: fastKernels()}, nil
}

// Encode appends the encoded form of raw to dst and says which codec it used.
// Equal input gives equal output on every machine.
func (e *Encoder) Encode(dst, raw []byte) (out []byte, used ID, err error) {
	if len(raw) > MaxChunk {
		return dst, Raw, fmt.Errorf("encode chunk: %d bytes are more than the limit of %d", len(raw), MaxChunk)
	}
	start := len(dst)
	out = dst
	switch {
	case e.codec == LZ4:
		out, err = e.appendLZ4(dst, raw)
	case len(raw) == 0 || len(raw)%e.layout.width != 0:
		// No whole number of values: nothing to take apart.
		return append(dst, raw...), Raw, nil
	case e.codec == Planes:
		out, err = e.appendPlanes(dst, raw)
	case e.codec == Dense:
		out, err = e.appendDense(dst, raw)
	}
	if err != nil {
		return dst, Raw, fmt.Errorf("encode chunk as %v: %w", e.codec, err)
	}
	if n := len(out) - start; e.codec != Raw && n+len(raw)/50 < len(raw) {
		return out, e.codec, nil
	}
	return append(out[:start], raw...), Raw, nil
}

// appendLZ4 appends src as one LZ4 block. The compressor clears its table for
// every block, and the room it is given never makes it cut the block short, so
// neither changes the bytes.
func (e *Encoder) appendLZ4(dst, src []byte) ([]byte, error) {
	e.buf = grow(e.buf, lz4.CompressBlockBound(len(src)))
	n, err := e.lz.CompressBlock(src, e.buf)
	if err != nil {
		return dst, err
	}
	return append(dst, e.buf[:n]...), nil
}

// Decoder holds scratch space; not safe for concurrent use.
type Decoder struct {
	layout layout
	k      kernels
	split  split
	planes []byte
	low    []byte // mantissa bits of the top bytes
	tree   tree
}

// NewDecoder returns a decoder for values of dtype.
func NewDecoder(dtype string) (*Decoder, error) {
	l, err := layoutOf(dtype)
	if err != nil {
		return nil, err
	}
	return &Decoder{layout: l, k: fastKernels()}, nil
}

// Decode fills dst, which has exactly the raw size. It never panics and never
// writes past dst, whatever enc holds; it fails on anything that Encode would
// not have written where that can be told.
func (d *Decoder) Decode(dst, enc []byte, c ID) error {
	err := d.decode(dst, enc, c)
	if err != nil {
		return fmt.Errorf("decode %v chunk of %d bytes into %d: %w", c, len(enc), len(dst), err)
	}
	return nil
}

func (d *Decoder) decode(dst, enc []byte, c ID) error {
	if len(dst) > MaxChunk {
		return fmt.Errorf("%w: the limit is %d bytes", ErrMalformed, MaxChunk)
	}
	if c == Raw {
		if len(enc) != len(dst) {
			return fmt.Errorf("%w: sizes differ", ErrMalformed)
		}
		copy(dst, enc)
		return nil
	}
	if len(enc)+len(dst)/50 >= len(dst) {
		return fmt.Errorf("%w: gains less than 2%%", ErrMalformed)
	}
	switch c {
	case LZ4:
		return unLZ4(dst, enc)
	case Planes, Dense:
		if len(dst)%d.layout.width != 0 {
			return fmt.Errorf("%w: no whole number of %d-byte values", ErrMalformed, d.layout.width)
		}
		if c == Dense {
			return d.decodeDense(dst, enc)
		}
		return d.decodePlanes(dst, enc)
	}
	return fmt.Errorf("%w: unknown codec", ErrMalformed)
}

// unLZ4 fills dst from the LZ4 block src. Capping dst keeps the block decoder,
// which may write in wide strides, within it.
func unLZ4(dst, src []byte) error {
	n, err := lz4.UncompressBlock(src, dst[:len(dst):len(dst)])
	if err != nil {
		return fmt.Errorf("%w: lz4: %w", ErrMalformed, err)
	}
	if n != len(dst) {
		return fmt.Errorf("%w: lz4 block of %d bytes, want %d", ErrMalformed, n, len(dst))
	}
	return nil
}

// grow returns a slice of n bytes, b itself where it has the room.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
