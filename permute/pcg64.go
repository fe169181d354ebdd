package permute

import "math/bits"

// pcg64 is numpy's default generator: PCG64 (XSL-RR, 128 bits), seeded through
// SeedSequence. math/rand/v2's PCG is another variant with other values.
type pcg64 struct {
	hi, lo       uint64 // state
	incHi, incLo uint64
	half         uint32 // the upper half of the last 64 bits, where not used yet
	hasHalf      bool
}

// seedWords is numpy's SeedSequence(seed).generate_state(n, uint32).
func seedWords(seed uint64, n int) []uint32 {
	const (
		initA, multA = 0x43b0d7e5, 0x931e8875
		initB, multB = 0x8b51f9dd, 0x58f38ded
		mixL, mixR   = 0xca01f9dd, 0x4973f715
	)
	// Of the four words of the pool a 64-bit seed fills two at most.
	pool := [4]uint32{uint32(seed), uint32(seed >> 32)}
	h := uint32(initA)
	hash := func(v uint32) uint32 {
		v ^= h
		h *= multA
		v *= h
		return v ^ v>>16
	}
	for i := range pool {
		pool[i] = hash(pool[i])
	}
	for s := range pool {
		for d := range pool {
			if s != d {
				v := mixL*pool[d] - mixR*hash(pool[s])
				pool[d] = v ^ v>>16
			}
		}
	}
	out := make([]uint32, n)
	h = initB
	for i := range out {
		v := pool[i%len(pool)] ^ h
		h *= multB
		v *= h
		out[i] = v ^ v>>16
	}
	return out
}

func newPCG64(seed uint64) *pcg64 {
	w := seedWords(seed, 8)
	u := func(i int) uint64 { return uint64(w[2*i]) | uint64(w[2*i+1])<<32 }
	g := &pcg64{incHi: u(2)<<1 | u(3)>>63, incLo: u(3)<<1 | 1}
	g.step()
	var carry uint64
	g.lo, carry = bits.Add64(g.lo, u(1), 0)
	g.hi, _ = bits.Add64(g.hi, u(0), carry)
	g.step()
	return g
}

func (g *pcg64) step() {
	const mulHi, mulLo = 2549297995355413924, 4865540595714422341
	hi, lo := bits.Mul64(g.lo, mulLo)
	hi += g.hi*mulLo + g.lo*mulHi
	var carry uint64
	g.lo, carry = bits.Add64(lo, g.incLo, 0)
	g.hi, _ = bits.Add64(hi, g.incHi, carry)
}

func (g *pcg64) uint64() uint64 {
	g.step()
	return bits.RotateLeft64(g.hi^g.lo, -int(g.hi>>58))
}

// uint32 hands out the lower half of a 64-bit value, then the upper.
func (g *pcg64) uint32() uint32 {
	if g.hasHalf {
		g.hasHalf = false
		return g.half
	}
	x := g.uint64()
	g.half, g.hasHalf = uint32(x>>32), true
	return uint32(x)
}

// upTo returns a number in [0, most] by masked rejection, as numpy's shuffle
// draws it (random_interval; Generator.integers draws otherwise).
func (g *pcg64) upTo(most uint32) uint32 {
	if most == 0 {
		return 0
	}
	mask := uint32(1)<<bits.Len32(most) - 1
	for {
		if v := g.uint32() & mask; v <= most {
			return v
		}
	}
}

// shuffle permutes a in place, as numpy does: a[i] becomes what
// permutation(len(a)) has at i of the old a.
func (g *pcg64) shuffle(a []uint32) {
	for i := len(a) - 1; i > 0; i-- {
		j := g.upTo(uint32(i))
		a[i], a[j] = a[j], a[i]
	}
}
