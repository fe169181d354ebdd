package kernel

import (
	"math"
	"unsafe"
)

// Generic returns the set in plain Go: the definition of every operation.
func Generic() *Set {
	return &Set{
		name:    "generic",
		gemm:    gemmGeneric,
		softmax: softmaxGeneric,
		silu:    siluGeneric,
		sumsq:   sumsqGeneric,
		norm:    normGeneric,
		add:     addGeneric,
		scale:   scaleGeneric,
		rotate:  rotateGeneric,
		toBF16:  toBF16Generic,
		round:   roundGeneric,
		widen:   widenGeneric,
		pack:    packGeneric,
	}
}

func gemmGeneric(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool) {
	m := mt * RowTile
	as := unsafe.Slice(a, (m-1)*lda+kc)
	bs := unsafe.Slice(b, kc*Panel)
	cs := unsafe.Slice(c, (m-1)*ldc+Panel)
	for i := range m {
		var sum [Panel]float32
		for k, x := range as[i*lda:][:kc] {
			for j, y := range bs[k*Panel:][:Panel] {
				sum[j] = fma32(x, y, sum[j])
			}
		}
		row := cs[i*ldc:][:Panel]
		for j, v := range sum {
			if acc {
				v += row[j]
			}
			row[j] = v
		}
	}
}

func packGeneric(dst []float32, rows *[Panel][]float32, k0, kc int) {
	for j, row := range rows {
		if row == nil {
			for k := range kc {
				dst[k*Panel+j] = 0
			}
			continue
		}
		for k, v := range row[k0:][:kc] {
			dst[k*Panel+j] = v
		}
	}
}

// The constants of exp: e^x = 2^n·e^r with |r| <= ln2/2, e^r by the polynomial
// of Cephes' expf. Below expLow the result is 0, above expHigh that of expHigh.
const (
	log2e   = 1.44269504088896341
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
	expLow  = -87
	expHigh = 88.3762626647949
	expP0   = 1.9875691500e-4
	expP1   = 1.3981999507e-3
	expP2   = 8.3334519073e-3
	expP3   = 4.1665795894e-2
	expP4   = 1.6666665459e-1
	expP5   = 5.0000001201e-1
)

// Exp is e^x as every set computes it, within 2 units in the last place.
func Exp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x < expLow:
		return 0
	case x > expHigh:
		x = expHigh
	}
	n := float32(math.RoundToEven(float64(x * log2e)))
	r := fma32(n, -ln2High, x)
	r = fma32(n, -ln2Low, r)
	p := float32(expP0)
	for _, c := range [...]float32{expP1, expP2, expP3, expP4, expP5} {
		p = fma32(p, r, c)
	}
	y := fma32(p, r*r, r) + 1
	return math.Float32frombits(math.Float32bits(y) + uint32(int32(n))<<23)
}

// fold adds the lanes of a row's sum by halves.
func fold(l *[Lanes]float32) float32 {
	for h := Lanes / 2; h > 0; h /= 2 {
		for i := range h {
			l[i] += l[i+h]
		}
	}
	return l[0]
}

func softmaxGeneric(s []float32, scale float32, st *SoftmaxState) {
	top := s[0]
	for _, v := range s {
		top = max(top, v)
	}
	next := max(st.Max, top*scale)
	var lanes [Lanes]float32
	for i, v := range s {
		e := Exp(fma32(v, scale, -next))
		s[i] = e
		lanes[i%Lanes] += e
	}
	st.Alpha = Exp(st.Max - next)
	st.Sum = fma32(st.Sum, st.Alpha, fold(&lanes))
	st.Max = next
}

func siluGeneric(gate, up []float32) {
	for i, g := range gate {
		gate[i] = g / (1 + Exp(-g)) * up[i]
	}
}

func sumsqGeneric(x []float32) float32 {
	var lanes [Lanes]float32
	for i, v := range x {
		lanes[i%Lanes] = fma32(v, v, lanes[i%Lanes])
	}
	return fold(&lanes)
}

func rsqrt(sumsq float32, n int, eps float64) float32 {
	return float32(1 / math.Sqrt(float64(sumsq)/float64(n)+eps))
}

func normGeneric(dst, x, w []float32, inv float32) {
	for i, v := range x {
		dst[i] = float32(v*inv) * w[i]
	}
}

func addGeneric(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func scaleGeneric(x []float32, f float32) {
	for i := range x {
		x[i] *= f
	}
}

func rotateGeneric(lo, hi, cos, sin []float32) {
	for i, c := range cos {
		a, b, s := lo[i], hi[i], sin[i]
		lo[i] = fma32(a, c, -float32(b*s))
		hi[i] = fma32(b, c, float32(a*s))
	}
}

func bf16(v float32) uint16 {
	u := math.Float32bits(v)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40 // a quiet NaN
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func toBF16Generic(dst []uint16, x []float32) {
	for i, v := range x {
		dst[i] = bf16(v)
	}
}

func roundGeneric(dst, x []float32) {
	for i, v := range x {
		dst[i] = math.Float32frombits(uint32(bf16(v)) << 16)
	}
}

func widenGeneric(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[2*i])<<16 | uint32(src[2*i+1])<<24)
	}
}
