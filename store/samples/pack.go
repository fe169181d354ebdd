package samples

import "encoding/binary"

func packedSize(n, w int) int { return (n*w + 7) / 8 }

// appendPacked appends ids of w bits each, least significant bit first.
func appendPacked(dst []byte, ids []uint32, w int) []byte {
	var acc uint64
	var have int
	end := len(dst) + packedSize(len(ids), w)
	for _, id := range ids {
		acc |= uint64(id) << have
		have += w
		if have >= 32 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(acc))
			acc >>= 32
			have -= 32
		}
	}
	for len(dst) < end {
		dst = append(dst, byte(acc))
		acc >>= 8
	}
	return dst
}

// unpackIDs reads n ids of w bits. At least 8 bytes must follow them in b (a
// record's checksum does), so that each id is one unaligned load.
func unpackIDs(b []byte, n, w int) []uint32 {
	out := make([]uint32, n)
	m := uint64(1)<<w - 1
	bit := 0
	for i := range out {
		out[i] = uint32(binary.LittleEndian.Uint64(b[bit>>3:]) >> (bit & 7) & m)
		bit += w
	}
	return out
}

// appendMask appends one bit a token. The multiplication gathers the lowest
// bits of eight bytes into the topmost byte.
func appendMask(dst, mask []byte) []byte {
	for ; len(mask) >= 8; mask = mask[8:] {
		x := binary.LittleEndian.Uint64(mask) & 0x0101010101010101
		dst = append(dst, byte(x*0x0102040810204080>>56))
	}
	if len(mask) > 0 {
		var last byte
		for i, m := range mask {
			last |= (m & 1) << i
		}
		dst = append(dst, last)
	}
	return dst
}

// unpackMask is the inverse: spread a byte's bits, one to each of eight bytes.
func unpackMask(b []byte, n int) []byte {
	out := make([]byte, (n+7)/8*8)
	for i := 0; i < len(out); i += 8 {
		x := uint64(b[i/8]) * 0x0101010101010101 & 0x8040201008040201
		binary.LittleEndian.PutUint64(out[i:], (x+0x7f7f7f7f7f7f7f7f)>>7&0x0101010101010101)
	}
	return out[:n:n]
}
