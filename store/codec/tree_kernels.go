package codec

import (
	"encoding/binary"
	"math/bits"
)

// encodeTreeGo sends top down the tree: it appends the bits of every inner
// node and notes in rare where the literals are.
func encodeTreeGo(t *tree, top []byte) {
	var slotOf [256]uint8
	for i := range slotOf {
		slotOf[i] = slotLiteral
	}
	for i, s := range t.symbol[:t.leaves] {
		slotOf[s] = uint8(slotLeaf + i)
	}
	for g := range t.rare {
		t.slots = [64]uint64{}
		for i, s := range top[64*g : min(64*g+64, len(top))] {
			t.slots[slotOf[s]&63] |= 1 << i
		}
		t.rare[g] = t.slots[slotLiteral]
		for i := t.inner - 1; i >= 0; i-- {
			n := &t.nodes[i]
			right := t.slots[n.right&63]
			m := t.slots[n.left&63] | right
			t.slots[i] = m
			at := t.streams[n.pos>>6<<3:]
			b := pext(right, m)
			binary.LittleEndian.PutUint64(at, binary.LittleEndian.Uint64(at)|b<<(n.pos&63))
			binary.LittleEndian.PutUint64(at[8:], b>>1>>(^n.pos&63))
			n.pos += uint64(bits.OnesCount64(m))
		}
	}
}

// decodeTreeGo is the inverse of encodeTreeGo but for the literals, in whose
// place it leaves anything.
func decodeTreeGo(t *tree, top []byte) {
	count, last := groups(len(top))
	for g := range count {
		t.slots[0] = ^uint64(0)
		if g == count-1 {
			t.slots[0] = last
		}
		for i := range t.inner {
			n := &t.nodes[i]
			m := t.slots[i]
			at := t.streams[n.pos>>6<<3:]
			b := binary.LittleEndian.Uint64(at)>>(n.pos&63) | binary.LittleEndian.Uint64(at[8:])<<1<<(^n.pos&63)
			right := pdep(b, m)
			t.slots[n.right&63] = right
			t.slots[n.left&63] = m ^ right
			n.pos += uint64(bits.OnesCount64(m))
		}
		t.rare[g] = t.slots[slotLiteral]
		out := top[64*g : min(64*g+64, len(top))]
		for j, s := range t.symbol[:t.leaves] {
			for m := t.slots[slotLeaf+j]; m != 0; m &= m - 1 {
				out[bits.TrailingZeros64(m)] = s
			}
		}
	}
}

// pext packs the bits of x that m selects into the lowest ones.
func pext(x, m uint64) uint64 {
	var r uint64
	for i := 0; m != 0; i++ {
		r |= x >> bits.TrailingZeros64(m) & 1 << i
		m &= m - 1
	}
	return r
}

// pdep is the inverse of pext: it deals the lowest bits of x to those of m.
func pdep(x, m uint64) uint64 {
	var r uint64
	for m != 0 {
		r |= m & -m & -(x & 1)
		x >>= 1
		m &= m - 1
	}
	return r
}
