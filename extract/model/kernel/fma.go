//go:build !arm64

package kernel

import "math"

// fma32 is x·y+z with one rounding. The product is exact in float64; the sum
// is rounded to odd there, so that rounding it again to float32 is right.
func fma32(x, y, z float32) float32 {
	p := float64(x) * float64(y)
	s := float64(p) + float64(z)
	t := s - p
	e := (p - (s - t)) + (float64(z) - t)
	if u := math.Float64bits(s); e != 0 && u&1 == 0 && e-e == 0 {
		if e > 0 == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}
