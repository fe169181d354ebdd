package ingest

import (
	"encoding/binary"
	"math/bits"
)

// seenSet is a set of 128-bit content hashes. It is cut into shards that grow
// by themselves, so that growing does not hold the whole set twice. 5M samples
// take 128 MiB.
type seenSet struct {
	shards [64]seenShard
}

// seenShard is open addressing, 16 bytes a slot, at most three quarters full.
type seenShard struct {
	slots [][2]uint64 // zero: free
	n     int
}

// newSeenSet makes a set with room for n hashes.
func newSeenSet(n int64) *seenSet {
	s := &seenSet{}
	each := max(64, 1<<bits.Len64(uint64(n)*4/3/uint64(len(s.shards))))
	for i := range s.shards {
		s.shards[i].slots = make([][2]uint64, each)
	}
	return s
}

// add puts h into the set; false means that it was there.
func (s *seenSet) add(h [16]byte) bool {
	k := [2]uint64{binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])}
	if k == ([2]uint64{}) {
		k[0] = 1 // zero marks a free slot
	}
	return s.shards[k[1]%uint64(len(s.shards))].add(k)
}

func (s *seenShard) add(k [2]uint64) bool {
	if 4*(s.n+1) > 3*len(s.slots) {
		s.grow()
	}
	if !s.put(k) {
		return false
	}
	s.n++
	return true
}

func (s *seenShard) put(k [2]uint64) bool {
	m := uint64(len(s.slots) - 1)
	for i := k[0] & m; ; i = (i + 1) & m {
		switch s.slots[i] {
		case [2]uint64{}:
			s.slots[i] = k
			return true
		case k:
			return false
		}
	}
}

func (s *seenShard) grow() {
	old := s.slots
	s.slots = make([][2]uint64, 2*len(old))
	for _, k := range old {
		if k != ([2]uint64{}) {
			s.put(k)
		}
	}
}
