package export

import "fmt"

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
