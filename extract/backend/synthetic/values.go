package synthetic

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// format says how a dtype lies in memory.
type format struct {
	size int
	// mask covers the sign and mantissa bits of 8 bytes of values: mixing
	// noise into them changes neither exponents nor finiteness.
	mask uint64
	put  func(b []byte, v float32)
}

func formatOf(dtype string) (format, error) {
	switch dtype {
	case "bf16":
		return format{2, 0x807f807f807f807f, func(b []byte, v float32) {
			u := math.Float32bits(v)
			binary.LittleEndian.PutUint16(b, uint16((u+0x7fff+u>>16&1)>>16))
		}}, nil
	case "fp16":
		return format{2, 0x83ff83ff83ff83ff, func(b []byte, v float32) {
			binary.LittleEndian.PutUint16(b, half(v))
		}}, nil
	case "fp32":
		return format{4, 0x807fffff807fffff, func(b []byte, v float32) {
			binary.LittleEndian.PutUint32(b, math.Float32bits(v))
		}}, nil
	}
	return format{}, fmt.Errorf("synthetic: dtype %q: want bf16, fp16 or fp32", dtype)
}

// half rounds v towards zero into fp16's normal range: the pools need no
// subnormals and no infinities.
func half(v float32) uint16 {
	u := math.Float32bits(v)
	e := min(max(int(u>>23&0xff)-127, -14), 15)
	return uint16(u>>16&0x8000 | uint32(e+15)<<10 | u>>13&0x3ff)
}

const (
	poolBytes  = 4 << 20 // of all layers together
	noiseBytes = 64 << 10
)

// values makes rows.
type values struct {
	f        format
	rowBytes int
	layers   []layerPool
	seed     uint64
}

type layerPool struct {
	id    uint64
	rows  int
	pool  []byte // rows of rowBytes
	noise []byte // noiseBytes + rowBytes rounded up to 8
}

func newValues(hidden int, capture []int, dtype string, seed uint64) *values {
	f, err := formatOf(dtype)
	if err != nil {
		panic(err) // New checked it
	}
	v := &values{f: f, rowBytes: hidden * f.size, seed: mix(seed ^ 0x5851f42d4c957f2d)}
	rows := min(max(poolBytes/(v.rowBytes*len(capture)), 16), 1024)
	for _, id := range capture {
		v.layers = append(v.layers, newLayerPool(f, hidden, rows, uint64(id), seed))
	}
	return v
}

// newLayerPool draws rows as measured activations look: channel scales
// log-normal with sigma 0.8, 0.2% of the channels a hundred times larger, token
// scales log-normal with sigma 0.2.
func newLayerPool(f format, hidden, rows int, id, seed uint64) layerPool {
	r := rand.New(rand.NewPCG(seed, id+1))
	scale := make([]float64, hidden)
	for c := range scale {
		scale[c] = math.Exp(0.8*r.NormFloat64()) * (0.25 + 0.05*float64(id))
		if r.Float64() < 0.002 {
			scale[c] *= 100
		}
	}
	p := layerPool{id: id, rows: rows, pool: make([]byte, rows*hidden*f.size)}
	i := 0
	for range rows {
		token := math.Exp(0.2 * r.NormFloat64())
		for c := range scale {
			x := r.NormFloat64() * scale[c] * token
			if math.Abs(x) < 1e-4 {
				x = math.Copysign(1e-4, x)
			}
			f.put(p.pool[i:], float32(x))
			i += f.size
		}
	}
	p.noise = make([]byte, noiseBytes+(hidden*f.size+7)&^7)
	for i := 0; i < len(p.noise); i += 8 {
		binary.LittleEndian.PutUint64(p.noise[i:], r.Uint64())
	}
	return p
}

func (v *values) tokenBytes() int { return v.rowBytes * len(v.layers) }

// start is the state before the first token.
func (v *values) start() uint64 { return v.seed }

// next extends a prefix's state by one token.
func (v *values) next(state uint64, id uint32) uint64 {
	return mix(state + uint64(id)*0x9e3779b97f4a7c15 + 1)
}

// row writes the row of every layer after the prefix with this state: dst has
// tokenBytes bytes, layers in capture order.
func (v *values) row(dst []byte, state uint64) {
	for i := range v.layers {
		l := &v.layers[i]
		h := mix(state ^ l.id*0xd1342543de82ef95)
		base := l.pool[int(h%uint64(l.rows))*v.rowBytes:][:v.rowBytes]
		noise := l.noise[h>>32%(noiseBytes/8)*8:]
		blend(dst[:v.rowBytes], base, noise, h, v.f.mask)
		dst = dst[v.rowBytes:]
	}
}

// blend writes base with its masked bits mixed with noise and h. noise is at
// least len(dst) rounded up to 8 bytes long.
func blend(dst, base, noise []byte, h, mask uint64) {
	le := binary.LittleEndian
	n := len(dst)
	base, noise = base[:n], noise[:(n+7)&^7]
	i := 0
	for ; i+32 <= n; i += 32 {
		d, b, s := dst[i:i+32:i+32], base[i:i+32:i+32], noise[i:i+32:i+32]
		le.PutUint64(d, le.Uint64(b)^(le.Uint64(s)^h)&mask)
		le.PutUint64(d[8:], le.Uint64(b[8:])^(le.Uint64(s[8:])^h)&mask)
		le.PutUint64(d[16:], le.Uint64(b[16:])^(le.Uint64(s[16:])^h)&mask)
		le.PutUint64(d[24:], le.Uint64(b[24:])^(le.Uint64(s[24:])^h)&mask)
	}
	for ; i < n; i++ {
		sh := uint(i%8) * 8
		dst[i] = base[i] ^ (noise[i]^byte(h>>sh))&byte(mask>>sh)
	}
}

// mix is a bijective 64-bit finalizer.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
