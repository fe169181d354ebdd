// Package codec compresses chunks of hidden states without loss.
package codec

// ID names a codec in a chunk header.
type ID uint8

// The codecs. A chunk that gains less than 2% is stored Raw whatever was asked.
const (
	Raw    ID = 0
	LZ4    ID = 1
	Planes ID = 2 // lz4-planes
	Dense  ID = 3
)

// Parse turns a name (raw, lz4, lz4-planes, dense) into an ID.
func Parse(name string) (ID, error) { panic("wip") }
func (c ID) String() string         { panic("wip") }

// Encoder holds scratch space; not safe for concurrent use.
type Encoder struct{}

// NewEncoder returns an encoder for values of dtype (bf16, fp16, fp32, fp8).
func NewEncoder(c ID, dtype string) (*Encoder, error) { panic("wip") }

// Encode appends the encoded form of raw to dst and says which codec it used.
// Equal input gives equal output on every machine.
func (e *Encoder) Encode(dst, raw []byte) (out []byte, used ID, err error) { panic("wip") }

// Decoder holds scratch space; not safe for concurrent use.
type Decoder struct{}

// NewDecoder returns a decoder for values of dtype.
func NewDecoder(dtype string) (*Decoder, error) { panic("wip") }

// Decode fills dst, which has exactly the raw size. It never panics and never
// writes past dst, whatever enc holds; it fails on anything that Encode would
// not have written where that can be told.
func (d *Decoder) Decode(dst, enc []byte, c ID) error { panic("wip") }
