package trainer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// speculators is what speculators' generate-offline-data writes.
type speculators struct{}

func (speculators) Path(i int64) string { return fmt.Sprintf("hidden_states/hs_%d.safetensors", i) }

func (speculators) Check(t *Target) error {
	if !t.Prenorm {
		return errors.New("the last states are after the final norm; speculators norms them itself and would do so twice")
	}
	return t.check()
}

// Write writes a safetensors file, streaming: a sample may be larger than
// memory.
func (speculators) Write(w io.Writer, s *Sample) error {
	t, n := s.Target, int64(len(s.IDs))
	size := n * int64(len(t.Layers)*t.rowBytes())
	kind := map[string]string{"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[t.DType]
	head, err := json.Marshal(map[string]any{
		"hidden_states": entry(kind, []int64{n, int64(len(t.Layers)), int64(t.Hidden)}, 0, size),
		"token_ids":     entry("I64", []int64{n}, size, size+8*n),
	})
	if err != nil {
		return err
	}
	for len(head)%8 != 0 { // so that mapped values are aligned
		head = append(head, ' ')
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)); err != nil {
		return err
	}
	all := append(t.aux(), t.last()...)
	if err := s.write(w, all, nil); err != nil {
		return err
	}
	return s.writeIDs(w)
}

func entry(dtype string, shape []int64, begin, end int64) map[string]any {
	return map[string]any{"dtype": dtype, "shape": shape, "data_offsets": [2]int64{begin, end}}
}
