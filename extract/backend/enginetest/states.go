package enginetest

import (
	"encoding/binary"
	"math"
)

// prefix hashes: the hash of ids[:t+1] from that of ids[:t].
func step(h uint64, id uint32) uint64 {
	h ^= uint64(id) + 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// value is the state of channel d after a layer, of the prefix with hash h: in
// [-2, -0.5] or [0.5, 2], never zero and exact in bf16.
func value(h uint64, layer, d int) float32 {
	x := step(step(h, uint32(layer)), uint32(d))
	v := 0.5 + float32(x>>40&127)*1.5/128
	if x>>63 != 0 {
		v = -v
	}
	return math.Float32frombits(math.Float32bits(v) &^ 0xffff)
}

// Rows returns the states of ids, row-major [len(ids), len(layers), hidden], as
// bf16, little endian.
func Rows(ids []uint32, layers []int, hidden int) []byte {
	out := make([]byte, 0, len(ids)*len(layers)*hidden*2)
	var h uint64
	for _, id := range ids {
		h = step(h, id)
		for _, l := range layers {
			for d := range hidden {
				out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(value(h, l, d))>>16))
			}
		}
	}
	return out
}
