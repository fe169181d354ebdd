package trainer

import (
	"encoding/binary"
	"fmt"
	"io"

	"eaglebatch/extract/export/torchzip"
)

// specForge is what scripts/prepare_hidden_states.py of SpecForge writes, less
// the padding.
type specForge struct{}

// groupSize is SpecForge's --file-group-size.
const groupSize = 2000

func (specForge) Path(i int64) string {
	g := i / groupSize * groupSize
	return fmt.Sprintf("rows_%010d-%010d/data_%010d.ckpt", g, g+groupSize, i)
}

func (specForge) Check(t *Target) error {
	if t.Prenorm && t.Norm == nil {
		return errNoNorm
	}
	return t.check()
}

func (specForge) Write(w io.Writer, s *Sample) error {
	t, n, h := s.Target, int64(len(s.IDs)), int64(s.Target.Hidden)
	return torchzip.Write(w, "archive", []torchzip.Item{
		{Key: "input_ids", Value: s.ids()},
		{Key: "loss_mask", Value: s.mask()},
		{Key: "hidden_state", Value: s.states([]int64{1, n, h}, t.last(), t.finalNorm())},
		{Key: "aux_hidden_state", Value: s.states([]int64{1, n, h * int64(len(t.aux()))}, t.aux(), nil)},
	})
}

// modelOpt is what compute_hidden_states_hf.py of Model-Optimizer writes.
type modelOpt struct{}

func (modelOpt) Path(i int64) string { return fmt.Sprintf("%010d.pt", i) }

func (modelOpt) Check(t *Target) error { return t.check() }

// Write norms the last state where the norm is known; where it is not, the file
// says that the state is before it.
func (modelOpt) Write(w io.Writer, s *Sample) error {
	t, n, h := s.Target, int64(len(s.IDs)), int64(s.Target.Hidden)
	return torchzip.Write(w, "archive", []torchzip.Item{
		{Key: "input_ids", Value: s.ids()},
		{Key: "loss_mask", Value: s.mask()},
		{Key: "hidden_states", Value: s.states([]int64{n, h}, t.last(), t.finalNorm())},
		{Key: "aux_hidden_states", Value: s.states([]int64{n, h * int64(len(t.aux()))}, t.aux(), nil)},
		{Key: "hidden_states_prenorm", Value: t.Prenorm && t.Norm == nil},
		{Key: "conversation_id", Value: s.Name()},
	})
}

// finalNorm is the norm to apply to the last state.
func (t *Target) finalNorm() *RMSNorm {
	if t.Prenorm {
		return t.Norm
	}
	return nil
}

func (s *Sample) ids() torchzip.Tensor {
	return torchzip.Tensor{DType: torchzip.Int64, Shape: []int64{int64(len(s.IDs))}, Data: s.writeIDs}
}

func (s *Sample) mask() torchzip.Tensor {
	return torchzip.Tensor{DType: torchzip.Int64, Shape: []int64{int64(len(s.Mask))}, Data: func(w io.Writer) error {
		b := make([]byte, 0, 8*len(s.Mask))
		for _, m := range s.Mask {
			b = binary.LittleEndian.AppendUint64(b, uint64(m))
		}
		_, err := w.Write(b)
		return err
	}}
}

func (s *Sample) states(shape []int64, layers []int, norm *RMSNorm) torchzip.Tensor {
	return torchzip.Tensor{DType: torchzip.DType(s.Target.DType), Shape: shape, Data: func(w io.Writer) error {
		return s.write(w, layers, norm)
	}}
}

func (s *Sample) writeIDs(w io.Writer) error {
	b := make([]byte, 0, 8*len(s.IDs))
	for _, id := range s.IDs {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	_, err := w.Write(b)
	return err
}
