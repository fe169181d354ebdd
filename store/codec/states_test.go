package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// states returns n values that look like hidden states: every column has its
// own scale and mean, a few are a hundred times larger, and neighbouring rows
// agree in part.
func states(dtype string, n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 99))
	const cols = 576
	var scale, mean, prev [cols]float64
	for c := range cols {
		scale[c] = math.Exp(0.8 * r.NormFloat64())
		if c%300 == 7 {
			scale[c] *= 100
		}
		mean[c] = 0.5 * r.NormFloat64()
	}
	out := make([]byte, 0, 4*n)
	row := 1.0
	for i := range n {
		c := i % cols
		if c == 0 {
			row = math.Exp(0.2 * r.NormFloat64())
		}
		prev[c] = 0.5*prev[c] + math.Sqrt(0.75)*r.NormFloat64()
		out = appendValue(out, dtype, float32(scale[c]*row*(prev[c]+mean[c])))
	}
	return out
}

func appendValue(out []byte, dtype string, f float32) []byte {
	b := math.Float32bits(f)
	switch dtype {
	case "bf16":
		return binary.LittleEndian.AppendUint16(out, uint16((b+0x7fff+b>>16&1)>>16))
	case "fp16":
		// Within fp16's normal range, cut short instead of rounded.
		e := min(max(int(b>>23&0xff)-127+15, 0), 30)
		return binary.LittleEndian.AppendUint16(out, uint16(b>>31<<15|uint32(e)<<10|b>>13&0x3ff))
	case "fp32":
		return binary.LittleEndian.AppendUint32(out, b)
	}
	e := min(max(int(b>>23&0xff)-127+7, 0), 15)
	return append(out, byte(b>>31<<7|uint32(e)<<3|b>>20&7))
}

// upcast widens bf16 values to fp32.
func upcast(bf16 []byte) []byte {
	out := make([]byte, 0, 2*len(bf16))
	for i := 0; i < len(bf16); i += 2 {
		out = append(out, 0, 0, bf16[i], bf16[i+1])
	}
	return out
}
