package genindex

import (
	"fmt"

	"eaglebatch/store/blob"
)

// Meta is the file's description.
type Meta struct {
	Generation uint32    `json:"generation"`
	Datasets   []string  `json:"datasets"`
	Splits     []Split   `json:"splits"` // in order of position
	Blob       blob.Meta `json:"blob"`   // as every own blob has it, Blob apart
}

// Split is a run of positions.
type Split struct {
	Name  string `json:"name"` // train, eval
	First int64  `json:"first"`
	Count int64  `json:"count"`
}

// NoMask says that a position has the mask of its blob entry.
const NoMask = ^uint64(0)

// Position is one place in the order. A repeated sample has several positions
// with the same entry.
type Position struct {
	Gen, Blob, Entry uint32 // Gen 0: this generation
	Rows             uint32 // tokens exposed: a prefix of the entry's rows
	Dataset          uint32 // index into Meta.Datasets
	Sample           uint64
	Mask             uint64 // offset into the mask section, or NoMask
}

// checkSplits holds splits to the positions that they divide.
func checkSplits(splits []Split, positions int64) error {
	next := int64(0)
	for _, s := range splits {
		if s.First != next || s.Count < 0 || s.Count > positions-next {
			return fmt.Errorf("split %q: positions [%d, +%d) after %d of %d", s.Name, s.First, s.Count, next, positions)
		}
		next += s.Count
	}
	if len(splits) > 0 && next != positions {
		return fmt.Errorf("splits have %d of %d positions", next, positions)
	}
	return nil
}
