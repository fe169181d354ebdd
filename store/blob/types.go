// Package blob reads and writes blobs: self-describing files that hold the
// hidden states, token ids and loss masks of whole samples in independently
// compressed, checksummed chunks with an index at the end. store/FORMAT.md
// specifies the bytes.
package blob

// Meta describes every entry of a blob. It is written into the header, so the
// file can be read with no other file at hand. It holds no time, host, root id
// or attempt count: the same plan and states give the same bytes.
type Meta struct {
	Generation  uint32   `json:"generation"`
	Blob        uint32   `json:"blob"`
	Layers      []int    `json:"layers"` // residual stream after k layers, ascending
	Hidden      int      `json:"hidden_size"`
	DType       string   `json:"dtype"` // bf16, fp16, fp32
	LastPreNorm bool     `json:"last_prenorm"`
	Codec       string   `json:"codec"`       // raw, lz4, lz4-planes, dense: the one asked for
	ChunkBytes  int      `json:"chunk_bytes"` // raw bytes a chunk aims at
	Model       string   `json:"model"`       // model fingerprint
	Tokenizer   string   `json:"tokenizer,omitempty"`
	Engine      string   `json:"engine"` // engine and version
	Synthetic   bool     `json:"synthetic,omitempty"`
	Datasets    []string `json:"datasets"` // Entry.Dataset indexes it
}

// Entry is one sample as a blob stores it.
type Entry struct {
	Dataset uint32   // index into Meta.Datasets
	Sample  uint64   // index within the dataset
	Rows    uint32   // tokens stored
	Tokens  [16]byte // sha256/128 of all the sample's ids (LE uint32), before any cap
	Content [16]byte // the same over ids and mask: equal means the same training sample
}

// RowBytes is the size of one layer's row.
func (m Meta) RowBytes() int { return m.Hidden * DTypeSize(m.DType) }

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
