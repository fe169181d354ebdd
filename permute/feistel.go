package permute

import "math/bits"

const (
	feistelRounds = 6
	// feistelLeast is the smallest n whose Feistel permutations pass for
	// uniform.
	feistelLeast = 1 << 16
)

// feistel is a permutation of [0, n) that needs no memory: a balanced Feistel
// network over the smallest even number of bits, walked until it falls below n.
type feistel struct {
	n    uint64
	half uint
	mask uint64
	keys [feistelRounds]uint64
}

func newFeistel(n, seed uint64) *feistel {
	f := &feistel{n: n, half: uint(max(2, bits.Len64(n-1))+1) / 2}
	f.mask = 1<<f.half - 1
	for i := range f.keys {
		seed += 0x9e3779b97f4a7c15
		f.keys[i] = mix(seed)
	}
	return f
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// at returns the element at place i.
func (f *feistel) at(i uint64) uint64 {
	for {
		l, r := i>>f.half, i&f.mask
		for _, k := range f.keys {
			l, r = r, l^mix(r+k)&f.mask
		}
		if i = l<<f.half | r; i < f.n {
			return i
		}
	}
}
