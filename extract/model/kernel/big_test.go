package kernel

import "math/big"

func bigFMA(x, y, z float32) float32 {
	f := func(v float32) *big.Float { return new(big.Float).SetPrec(400).SetFloat64(float64(v)) }
	s := f(x)
	s.Mul(s, f(y)).Add(s, f(z))
	v, _ := s.Float32()
	return v
}
