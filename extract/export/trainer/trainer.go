// Package trainer writes samples with their hidden states in the files that
// other projects' offline loaders read.
//
// # Layout
//
//	specforge    rows_A-B/data_I.ckpt           torch.save: input_ids, loss_mask [N] int64; aux_hidden_state
//	                                            [1, N, (L-1) H]; hidden_state [1, N, H] after the final norm
//	speculators  hidden_states/hs_I.safetensors hidden_states [N, L, H], token_ids [N] int64; the last layer before
//	                                            the final norm. prep/ is the HF dataset of ids and masks
//	modelopt     I.pt                           torch.save: input_ids, loss_mask [N] int64; aux_hidden_states
//	                                            [N, (L-1) H]; hidden_states [N, H]; hidden_states_prenorm;
//	                                            conversation_id
//
// N is the tokens of the sample, L the captured layers, the last of which is the
// target's last state, H the hidden size. Numbers in names have leading zeros
// where the loaders sort names, so that the order on disk is the shuffled one.
//
// # Concurrency
//
// A Layout holds nothing; Write may be called from many goroutines.
package trainer

import (
	"errors"
	"fmt"
	"io"

	"eaglebatch/extract/export"
)

// Target says what the states of an export are.
type Target struct {
	DType   string // bf16, fp16 or fp32
	Hidden  int
	Layers  []int    // ascending; the last is the target's last state
	Prenorm bool     // which is before the final norm
	Norm    *RMSNorm // that norm; nil where it is not known
}

// rowBytes is the size of one layer's row.
func (t *Target) rowBytes() int {
	if t.DType == "fp32" {
		return 4 * t.Hidden
	}
	return 2 * t.Hidden
}

// Sample is a row of the order with its states.
type Sample struct {
	*export.Row
	Target *Target
	// Rows reads rows [first, first+n) of a layer, an index into Target.Layers.
	Rows func(dst []byte, layer, first, n int) error
}

// Layout is how a project lays samples out.
type Layout interface {
	// Path is the file of sample i, relative to the export's directory.
	Path(i int64) string
	// Check says why states of t cannot be laid out so.
	Check(t *Target) error
	// Write writes the file of s.
	Write(w io.Writer, s *Sample) error
}

// Names are the layouts there are.
func Names() []string { return []string{"specforge", "speculators", "modelopt"} }

// Named returns the layout of a name.
func Named(name string) (Layout, bool) {
	switch name {
	case "specforge":
		return specForge{}, true
	case "speculators":
		return speculators{}, true
	case "modelopt":
		return modelOpt{}, true
	}
	return nil, false
}

var errNoNorm = errors.New("the last states are before the final norm, this layout wants them after it, and the generation keeps no norm (target_head.safetensors)")

// check holds for every layout.
func (t *Target) check() error {
	if len(t.Layers) < 2 {
		return fmt.Errorf("layers %v: at least one auxiliary layer and the last are needed", t.Layers)
	}
	return nil
}

// blockBytes bounds the rows that are in memory at once, twice.
const blockBytes = 4 << 20

// write writes the rows of some layers side by side: [N, len(layers), H]. norm is
// applied to them if it is not nil.
func (s *Sample) write(w io.Writer, layers []int, norm *RMSNorm) error {
	rb := s.Target.rowBytes()
	total, step := len(s.IDs), max(1, blockBytes/(len(layers)*rb))
	step = min(step, total)
	one, all := make([]byte, step*rb), make([]byte, step*rb*len(layers))
	for first := 0; first < total; first += step {
		n := min(step, total-first)
		for k, layer := range layers {
			if err := s.Rows(one[:n*rb], layer, first, n); err != nil {
				return err
			}
			if norm != nil {
				norm.Apply(one[:n*rb], s.Target.DType)
			}
			for r := range n {
				copy(all[(r*len(layers)+k)*rb:], one[r*rb:(r+1)*rb])
			}
		}
		if _, err := w.Write(all[:n*rb*len(layers)]); err != nil {
			return err
		}
	}
	return nil
}

// aux are the indices of the auxiliary layers, last that of the last.
func (t *Target) aux() []int {
	out := make([]int, len(t.Layers)-1)
	for i := range out {
		out[i] = i
	}
	return out
}

func (t *Target) last() []int { return []int{len(t.Layers) - 1} }
