package codec

import (
	"math/bits"

	"golang.org/x/sys/cpu"
)

// treeAsm walks the tree for groups times 64 symbols at top, of which the last
// 64 count only where last has a bit. There is at least one group, inner node
// and leaf.
type treeAsm func(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)

//go:noescape
func encodeTreeAVX2(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)

//go:noescape
func decodeTreeAVX2(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)

//go:noescape
func encodeTreeAVX512(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)

//go:noescape
func decodeTreeAVX512(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)

// downTree makes an encodeTree kernel of asm.
func downTree(asm treeAsm) func(t *tree, top []byte) {
	return func(t *tree, top []byte) {
		for j, s := range t.symbol[:t.leaves] {
			for i := range t.table[j] {
				t.table[j][i] = s
			}
		}
		rare := t.walk(asm, top)
		t.literal = t.literal[:0]
		for g, m := range rare {
			for ; m != 0; m &= m - 1 {
				t.literal = append(t.literal, top[64*g+bits.TrailingZeros64(m)])
			}
		}
	}
}

// upTree makes a decodeTree kernel of asm, which needs a table of each symbol
// 64 times, or 64 times each of its bits.
func upTree(asm treeAsm, byBit bool) func(t *tree, top []byte) {
	return func(t *tree, top []byte) {
		for j, s := range t.symbol[:t.leaves] {
			for i := range t.table[j] {
				t.table[j][i] = s
				if byBit {
					t.table[j][i] = -(s >> (i / 8) & 1)
				}
			}
		}
		rare := t.walk(asm, top)
		lit := t.literal
		if len(lit) == 0 {
			return
		}
		for g, m := range rare {
			for ; m != 0; m &= m - 1 {
				top[64*g+bits.TrailingZeros64(m)] = lit[0]
				lit = lit[1:]
			}
		}
	}
}

// walk runs asm and returns, for each 64 symbols, which are literals.
func (t *tree) walk(asm treeAsm, top []byte) []uint64 {
	n := (len(top) + 63) / 64
	if cap(t.rare) < n {
		t.rare = make([]uint64, n)
	}
	rare := t.rare[:n]
	t.slots = [64]uint64{}
	padded := top[:64*n]
	last := ^uint64(0) >> (uint(-len(top)) & 63)
	asm(&padded[0], &rare[0], &t.streams[0], t, t.inner, t.leaves, n, last)
	return rare
}

// fastPDEP reports whether PDEP and PEXT exist as circuits. AMD had them in
// microcode, slower than portable code, up to Zen 2.
func fastPDEP() bool {
	if !cpu.X86.HasBMI2 || !cpu.X86.HasPOPCNT {
		return false
	}
	_, b, c, d := cpuid(0)
	switch string(le32(b, d, c)) {
	case "AuthenticAMD", "HygonGenuine":
		a, _, _, _ := cpuid(1)
		return a>>8&0xf+a>>20&0xff >= 0x19
	}
	return true
}

func le32(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = append(b, byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
	}
	return b
}

func cpuid(leaf uint32) (a, b, c, d uint32)
