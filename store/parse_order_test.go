package store

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// FuzzParseOrder: what is accepted is what encodeOrder writes of its rows.
func FuzzParseOrder(f *testing.F) {
	for _, rows := range [][]uint32{nil, {1}, {3, 1, 2}} {
		var b bytes.Buffer
		if _, err := encodeOrder(f.Context(), &b, slices.Values(rows)); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseOrder(data)
		if err != nil {
			return
		}
		var b bytes.Buffer
		n, err := encodeOrder(t.Context(), &b, func(yield func(uint32) bool) {
			for i := 0; i < len(rows) && yield(binary.LittleEndian.Uint32(rows[i:])); i += 4 {
			}
		})
		if err != nil || n != int64(len(rows)/4) || !bytes.Equal(b.Bytes(), data) {
			t.Errorf("%d rows, error %v: %x written as %x", n, err, data, b.Bytes())
		}
	})
}
