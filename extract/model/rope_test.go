package model

import (
	"math"
	"testing"
)

// TestRopeBits holds scaled frequencies to those of transformers 5.24, of its
// ROPE_INIT_FUNCTIONS for heads of 64, within the last bit: an error grows with
// the position, and the short samples of the goldens do not show it.
func TestRopeBits(t *testing.T) {
	for _, tc := range []struct {
		keys  map[string]string
		n     int
		scale float64
		want  []uint32
	}{
		{map[string]string{"max_position_embeddings": "32768", "rope_parameters": `{"rope_type":"yarn","rope_theta":1e6,"factor":4,"original_max_position_embeddings":8192}`}, 32768, 1.138629436111989, []uint32{
			0x3f800000, 0x3f263de0, 0x3ed7e89b, 0x3e8c3504, 0x3e361887, 0x3dec7fd6, 0x3d99940d, 0x3d47763f,
			0x3d0186e3, 0x3c9a34c0, 0x3c3611f4, 0x3bd4d1c3, 0x3b75b0d0, 0x3b0b9a88, 0x3a9b690c, 0x3a283377,
			0x39aec33f, 0x392a3b44, 0x38dd1725, 0x388f9272, 0x383a7753, 0x37f22ce2, 0x379d43a4, 0x374c3fbe,
			0x3704a2b2, 0x36ac431d, 0x365fba4f, 0x361148e3, 0x35bcb0c1, 0x35751070, 0x351f23e4, 0x34ceaf79,
		}},
		{map[string]string{"max_position_embeddings": "131072", "rope_parameters": `{"rope_type":"llama3","rope_theta":500000,"factor":32,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}`}, 32768, 1, []uint32{
			0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad, 0x3d681e67,
			0x3d1a08c8, 0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402, 0x3b527720, 0x3aa9279b,
			0x39e13620, 0x38cb98f7, 0x37a3418d, 0x3758ac81, 0x370fc8f8, 0x36bed4f4, 0x367d45c3, 0x3628126b,
			0x35df10c4, 0x359406cb, 0x35447610, 0x35025f34, 0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0,
		}},
		{map[string]string{"max_position_embeddings": "777", "rope_parameters": `{"rope_type":"dynamic","rope_theta":10000,"factor":3.3}`}, 2777, 1, []uint32{
			0x3f800000, 0x3f328774, 0x3ef9014a, 0x3eada6a6, 0x3e723380, 0x3e28e7f6, 0x3deb9550, 0x3da44a78,
			0x3d65256a, 0x3d1fcd42, 0x3cdee28a, 0x3c9b6f72, 0x3c58cb77, 0x3c17302e, 0x3bd2defe, 0x3b930e9f,
			0x3b4d1bf3, 0x3b0f09f5, 0x3ac78137, 0x3a8b2168, 0x3a420daf, 0x3a075431, 0x39bcc049, 0x3983a192,
			0x393797fa, 0x390008d0, 0x38b293be, 0x3879126d, 0x382db299, 0x37f2442d, 0x37a8f397, 0x376ba587,
		}},
	} {
		s, err := respec(t, tc.keys)
		if err != nil {
			t.Fatal(err)
		}
		got, scale := s.Rope.Frequencies(64, tc.n)
		differ := 0
		for i, u := range tc.want {
			by := int64(math.Float32bits(got[i])) - int64(u)
			if differ += min(1, int(max(by, -by))); by > 1 || by < -1 {
				t.Errorf("%s: frequency %d is %g, want %g", s.Rope.Type, i, got[i], math.Float32frombits(u))
			}
		}
		if differ > 2 || scale != float32(tc.scale) { // torch's own power function is off by one now and then
			t.Errorf("%s: %d of %d frequencies differ in the last bit; the factor of cos and sin is %g, want %g", s.Rope.Type, differ, len(got), scale, tc.scale)
		}
	}
}
