package tensor

import "encoding/binary"

// decodeBlocks decodes the block formats of GGUF.
func decodeBlocks(t Type, src []byte, dst []float32) {
	values, bytes := t.Block()
	if values == 0 {
		panic("tensor: decode of " + string(t))
	}
	for len(dst) > 0 {
		b, y := src[:bytes], dst[:values]
		switch t {
		case Q8_0:
			decodeQ8_0(b, y)
		case Q4_0:
			decodeQ4_0(b, y)
		case Q4_1:
			decodeQ4_1(b, y)
		case Q5_0:
			decodeQ5_0(b, y)
		case Q5_1:
			decodeQ5_1(b, y)
		case Q4_K:
			decodeQ4_K(b, y)
		case Q5_K:
			decodeQ5_K(b, y)
		case Q6_K:
			decodeQ6_K(b, y)
		}
		src, dst = src[bytes:], dst[values:]
	}
}

func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

func decodeQ8_0(b []byte, y []float32) {
	d := half(b)
	for j, q := range b[2:34] {
		y[j] = float32(int8(q)) * d
	}
}

func decodeQ4_0(b []byte, y []float32) {
	d := half(b)
	for j, q := range b[2:18] {
		y[j] = float32(int(q&15)-8) * d
		y[j+16] = float32(int(q>>4)-8) * d
	}
}

func decodeQ4_1(b []byte, y []float32) {
	d, m := half(b), half(b[2:])
	for j, q := range b[4:20] {
		// The conversions keep the compiler from fusing: the rounding is ggml's.
		y[j] = float32(float32(q&15)*d) + m
		y[j+16] = float32(float32(q>>4)*d) + m
	}
}

// fifth returns bit j of the high bits of a block, as 16 or 0.
func fifth(high uint32, j int) byte { return byte(high>>j&1) << 4 }

func decodeQ5_0(b []byte, y []float32) {
	d, high := half(b), binary.LittleEndian.Uint32(b[2:])
	for j, q := range b[6:22] {
		y[j] = float32(int(q&15|fifth(high, j))-16) * d
		y[j+16] = float32(int(q>>4|fifth(high, j+16))-16) * d
	}
}

func decodeQ5_1(b []byte, y []float32) {
	d, m, high := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
	for j, q := range b[8:24] {
		y[j] = float32(float32(q&15|fifth(high, j))*d) + m
		y[j+16] = float32(float32(q>>4|fifth(high, j+16))*d) + m
	}
}

// scaleMinK unpacks the j-th 6-bit scale and minimum of a K block.
func scaleMinK(j int, q []byte) (scale, min byte) {
	if j < 4 {
		return q[j] & 63, q[j+4] & 63
	}
	return q[j+4]&15 | q[j-4]>>6<<4, q[j+4]>>4 | q[j]>>6<<4
}

func decodeQ4_K(b []byte, y []float32) {
	d, dmin, scales, q := half(b), half(b[2:]), b[4:16], b[16:144]
	for j := 0; j < 8; j += 2 {
		s1, m1 := scaleMinK(j, scales)
		s2, m2 := scaleMinK(j+1, scales)
		d1, d2 := d*float32(s1), d*float32(s2)
		n1, n2 := dmin*float32(m1), dmin*float32(m2)
		for l, v := range q[:32] {
			y[l] = float32(d1*float32(v&15)) - n1
			y[l+32] = float32(d2*float32(v>>4)) - n2
		}
		q, y = q[32:], y[64:]
	}
}

func decodeQ5_K(b []byte, y []float32) {
	d, dmin, scales, high, q := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for j := 0; j < 8; j += 2 {
		s1, m1 := scaleMinK(j, scales)
		s2, m2 := scaleMinK(j+1, scales)
		d1, d2 := d*float32(s1), d*float32(s2)
		n1, n2 := dmin*float32(m1), dmin*float32(m2)
		for l, v := range q[:32] {
			h := high[l] >> j
			y[l] = float32(d1*float32(v&15|h&1<<4)) - n1
			y[l+32] = float32(d2*float32(v>>4|h>>1&1<<4)) - n2
		}
		q, y = q[32:], y[64:]
	}
}

func decodeQ6_K(b []byte, y []float32) {
	ql, qh, sc, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for range 2 {
		for l := range 32 {
			h, is := qh[l], l/16
			y[l] = d * float32(int8(sc[is])) * float32(int8(ql[l]&15|h&3<<4)-32)
			y[l+32] = d * float32(int8(sc[is+2])) * float32(int8(ql[l+32]&15|h>>2&3<<4)-32)
			y[l+64] = d * float32(int8(sc[is+4])) * float32(int8(ql[l]>>4|h>>4&3<<4)-32)
			y[l+96] = d * float32(int8(sc[is+6])) * float32(int8(ql[l+32]>>4|h>>6&3<<4)-32)
		}
		ql, qh, sc, y = ql[64:], qh[32:], sc[8:], y[128:]
	}
}
