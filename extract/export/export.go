package export

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrUnsuited marks states that a layout cannot hold, such as other layers than
// its reader expects.
var ErrUnsuited = errors.New("not possible with these states")

// Segment is a part of a sample: prompt, reasoning, response or tool_calls.
type Segment struct {
	Kind string
	End  uint32 // first token after it
}

// Row is one position of the order.
type Row struct {
	Position int64 // in the order
	Dataset  string
	Sample   uint64 // index within the dataset
	Window   uint32 // of a sample that is split into several
	ID       string // as in the source, "" where it had none
	File     string // the source's base name
	Line     int64  // 1-based
	IDs      []uint32
	Mask     []byte // one byte a token; 1 exactly where supervised, never shifted
	Segments []Segment
}

// Name identifies the row's sample: DATASET/INDEX, or DATASET/INDEX.WINDOW of
// one that is split.
func (r *Row) Name() string {
	if r.Window > 0 {
		return fmt.Sprintf("%s/%d.%d", r.Dataset, r.Sample, r.Window)
	}
	return fmt.Sprintf("%s/%d", r.Dataset, r.Sample)
}

// Shape describes the states of every row.
type Shape struct {
	Layers  []int  // residual stream after k layers, ascending
	Hidden  int    // values a row
	DType   string // bf16, fp16 or fp32
	PreNorm bool   // the last layer is as it was before the final norm
}

// States reads the hidden states of one row.
type States interface {
	// Read fills dst with rows [first, first+n) of a captured layer, an index
	// into Shape.Layers: [n, Hidden] in Shape.DType.
	Read(dst []byte, layer, first, n int) error
}

// Sink is a layout of one file a row.
type Sink interface {
	// Path names the file of the i-th exported row, relative to the directory of
	// the export, with slashes.
	Path(i int64) string
	// Write writes the file. It reads the states in pieces, so that memory does
	// not depend on the length of the sample, and the same row gives the same
	// bytes.
	Write(ctx context.Context, w io.Writer, r *Row, s States) error
}
