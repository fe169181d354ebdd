package permute

import (
	"crypto/sha256"
	"encoding/binary"
)

// drawer returns a generator for one purpose and one dataset, independent of
// all others.
func drawer(seed uint64, purpose, dataset string) *pcg64 {
	h := sha256.New()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seed)
	h.Write(b[:])
	h.Write([]byte(purpose + "\x00" + dataset))
	return newPCG64(binary.LittleEndian.Uint64(h.Sum(nil)))
}

// set is a set of row numbers below a bound.
type set []uint64

func newSet(n int64) set { return make(set, (n+63)/64) }

func (s set) has(i int64) bool { return s[i/64]>>(i%64)&1 != 0 }
func (s set) put(i int64)      { s[i/64] |= 1 << (i % 64) }

// choose returns k of n, each choice equally likely (Floyd's algorithm: k
// draws, n bits).
func choose(g *pcg64, n, k int64) set {
	s := newSet(n)
	for j := n - k; j < n; j++ {
		if t := int64(g.upTo(uint32(j))); !s.has(t) {
			s.put(t)
		} else {
			s.put(j)
		}
	}
	return s
}
