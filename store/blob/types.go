package blob

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Meta describes every entry of a blob. It is written into the header, so the
// file can be read with no other file at hand. It holds no time, host, root id
// or attempt count: the same plan and states give the same bytes.
type Meta struct {
	Generation  uint32   `json:"generation"`
	Blob        uint32   `json:"blob"`
	Layers      []int    `json:"layers"` // residual stream after k layers, ascending
	Hidden      int      `json:"hidden_size"`
	DType       string   `json:"dtype"`                  // bf16, fp16, fp32, fp8
	Source      string   `json:"source_dtype,omitempty"` // fp8: what a Writer is given and quantizes; "": fp8 rows
	LastPreNorm bool     `json:"last_prenorm"`
	Codec       string   `json:"codec"`          // raw, lz4, lz4-planes, dense: the one asked for
	ChunkBytes  int      `json:"chunk_bytes"`    // raw bytes a chunk aims at; 0: DefaultChunkBytes
	Rows        string   `json:"rows,omitempty"` // row selection; "" is RowsAll
	Model       string   `json:"model"`          // model fingerprint
	Tokenizer   string   `json:"tokenizer,omitempty"`
	Engine      string   `json:"engine"` // engine and version
	Synthetic   bool     `json:"synthetic,omitempty"`
	Datasets    []string `json:"datasets"` // Entry.Dataset indexes it
}

// DefaultChunkBytes is the raw size of a chunk where Meta does not say: large
// enough that per-chunk costs vanish, small enough that raw and encoded form
// stay in a core's second-level cache.
const DefaultChunkBytes = 512 << 10

// Bounds that a reader holds every file to before it allocates.
const (
	maxLayers = 1024
	maxHidden = 1 << 20
	maxChunk  = 64 << 20  // raw bytes of a chunk of states
	maxRows   = 1 << 26   // tokens of an entry
	maxJSON   = 16 << 20  // header
	maxFooter = 256 << 20 // tables and reasons
)

// Entry is one sample as a blob stores it.
type Entry struct {
	Dataset uint32   // index into Meta.Datasets
	Sample  uint64   // index within the dataset
	Rows    uint32   // tokens stored
	Tokens  [16]byte // sha256/128 of all the sample's ids (LE uint32), before any cap
	Content [16]byte // the same over ids and mask: equal means the same training sample
}

// RowBytes is the size of one layer's row. An fp8 row is a float32 scale and
// then one byte a value.
func (m Meta) RowBytes() int {
	if m.DType == "fp8" {
		return m.Hidden + 4
	}
	return m.Hidden * DTypeSize(m.DType)
}

// GivenDType is the dtype of the rows that a Writer is given.
func (m Meta) GivenDType() string {
	if m.Source != "" {
		return m.Source
	}
	return m.DType
}

// GivenRowBytes is the size of one layer's row as a Writer is given it.
func (m Meta) GivenRowBytes() int {
	m.DType = m.GivenDType()
	return m.RowBytes()
}

// DTypeSize returns the bytes of one value, 0 for an unknown dtype.
func DTypeSize(dtype string) int {
	switch dtype {
	case "bf16", "fp16":
		return 2
	case "fp32":
		return 4
	case "fp8":
		return 1
	}
	return 0
}

// blockRows is how many rows a full chunk of one layer has.
func (m Meta) blockRows() int { return max(1, m.ChunkBytes/m.RowBytes()) }

// Validate says what a blob cannot be made with.
func (m Meta) Validate() error {
	switch {
	case len(m.Layers) == 0 || len(m.Layers) > maxLayers:
		return fmt.Errorf("layers: %d of them, want 1 to %d", len(m.Layers), maxLayers)
	case m.Layers[0] < 0:
		return fmt.Errorf("layers: %d is negative", m.Layers[0])
	case m.Hidden < 1 || m.Hidden > maxHidden:
		return fmt.Errorf("hidden_size %d: want 1 to %d", m.Hidden, maxHidden)
	case DTypeSize(m.DType) == 0:
		return fmt.Errorf("dtype %q: want bf16, fp16, fp32 or fp8", m.DType)
	case m.Source != "" && (m.DType != "fp8" || m.Source == "fp8" || DTypeSize(m.Source) == 0):
		return fmt.Errorf("source_dtype %q for dtype %q: only fp8 is made from another, from bf16, fp16 or fp32", m.Source, m.DType)
	case m.ChunkBytes < 1 || m.ChunkBytes > maxChunk:
		return fmt.Errorf("chunk_bytes %d: want 1 to %d", m.ChunkBytes, maxChunk)
	}
	for i := 1; i < len(m.Layers); i++ {
		if m.Layers[i] <= m.Layers[i-1] {
			return fmt.Errorf("layers %v: not ascending", m.Layers)
		}
	}
	for _, s := range append([]string{m.Codec, m.Model, m.Tokenizer, m.Engine}, m.Datasets...) {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%q: is not UTF-8", s)
		}
	}
	_, _, err := parseSelection(m.Rows)
	return err
}

func (m Meta) clone() Meta {
	m.Layers, m.Datasets = slices.Clone(m.Layers), slices.Clone(m.Datasets)
	return m
}
