package ingest

import (
	"encoding/binary"
	"math/bits"
)

// seenSet is a set of 128-bit content hashes: open addressing, 16 bytes a
// slot, at most three quarters full. 5M samples take 128 MiB.
type seenSet struct {
	slots [][2]uint64 // zero: free
	n     int
}

// newSeenSet makes a set with room for n hashes.
func newSeenSet(n int64) *seenSet {
	size := max(1<<10, 1<<bits.Len64(uint64(n)*4/3))
	return &seenSet{slots: make([][2]uint64, size)}
}

// add puts h into the set; false means that it was there.
func (s *seenSet) add(h [16]byte) bool {
	if 4*(s.n+1) > 3*len(s.slots) {
		s.grow()
	}
	k := [2]uint64{binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])}
	if k == ([2]uint64{}) {
		k[0] = 1 // zero marks a free slot
	}
	if !s.put(k) {
		return false
	}
	s.n++
	return true
}

func (s *seenSet) put(k [2]uint64) bool {
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

func (s *seenSet) grow() {
	old := s.slots
	s.slots = make([][2]uint64, 2*len(old))
	for _, k := range old {
		if k != ([2]uint64{}) {
			s.put(k)
		}
	}
}
