package trainer

import (
	"encoding/binary"
	"math"

	"eaglebatch/extract/model/tensor"
)

// RMSNorm is a target's final norm, computed as HF transformers does: in
// float32, rounded to the states' type, then scaled in that type.
type RMSNorm struct {
	Weight []float32
	Eps    float64
}

// Apply norms rows of len(Weight) values of type dtype (bf16, fp16, fp32) in
// place.
func (n *RMSNorm) Apply(rows []byte, dtype string) {
	get, put, size := access(dtype)
	x := make([]float32, len(n.Weight))
	for ; len(rows) > 0; rows = rows[size*len(x):] {
		var sum float64
		for i := range x {
			x[i] = get(rows[size*i:])
			sum += float64(x[i]) * float64(x[i])
		}
		scale := float32(1 / math.Sqrt(sum/float64(len(x))+n.Eps))
		for i, v := range x {
			b := rows[size*i:]
			put(b, v*scale)
			y := get(b) // as rounded
			put(b, round(n.Weight[i], dtype)*y)
		}
	}
}

// access reads and writes a value of a type, rounding to the nearest.
func access(dtype string) (get func([]byte) float32, put func([]byte, float32), size int) {
	le := binary.LittleEndian
	switch dtype {
	case "bf16":
		return func(b []byte) float32 { return tensor.BF16ToF32(le.Uint16(b)) },
			func(b []byte, v float32) { le.PutUint16(b, tensor.F32ToBF16(v)) }, 2
	case "fp16":
		return func(b []byte) float32 { return tensor.F16ToF32(le.Uint16(b)) },
			func(b []byte, v float32) { le.PutUint16(b, tensor.F32ToF16(v)) }, 2
	}
	return func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) },
		func(b []byte, v float32) { le.PutUint32(b, math.Float32bits(v)) }, 4
}

func round(v float32, dtype string) float32 {
	switch dtype {
	case "bf16":
		return tensor.BF16ToF32(tensor.F32ToBF16(v))
	case "fp16":
		return tensor.F16ToF32(tensor.F32ToF16(v))
	}
	return v
}
