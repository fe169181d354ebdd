package cli

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"

	"eaglebatch/store"
	"eaglebatch/store/codec"
	"eaglebatch/store/samples"
)

// floats decodes rows of stored values.
func floats(b []byte, dtype string, hidden int) ([]float64, error) {
	switch dtype {
	case "bf16":
		out := make([]float64, len(b)/2)
		for i := range out {
			out[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
		}
		return out, nil
	case "fp16":
		out := make([]float64, len(b)/2)
		for i := range out {
			out[i] = half(binary.LittleEndian.Uint16(b[2*i:]))
		}
		return out, nil
	case "fp32":
		out := make([]float64, len(b)/4)
		for i := range out {
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		}
		return out, nil
	case "fp8":
		wide, err := codec.DequantizeRows(nil, b, "fp32", hidden)
		if err != nil {
			return nil, err
		}
		return floats(wide, "fp32", hidden)
	}
	return nil, fmt.Errorf("values of dtype %q are not known", dtype)
}

// half decodes an IEEE 754 binary16.
func half(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch exp {
	case 0:
		return sign * math.Ldexp(frac, -24)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// sampleStore is one dataset's samples.
type sampleStore struct{ *samples.Store }

// Get returns one sample.
func (s sampleStore) Get(dataset uint32, index uint64) (*samples.Sample, error) {
	return s.Store.Get(context.Background(), dataset, index)
}

func openSamples(dir string, row store.DatasetRow) (sampleStore, error) {
	st, err := samples.Open(filepath.Join(dir, "samples", fmt.Sprintf("%06d", row.SamplesGen)), row.FirstRow+row.Accepted, samples.Options{})
	return sampleStore{st}, err
}
