package samples

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
)

func TestPackEveryWidth(t *testing.T) {
	for w := 1; w <= 32; w++ {
		for _, n := range []int{0, 1, 2, 7, 8, 9, 31, 32, 33, 1000} {
			r := rand.New(rand.NewPCG(uint64(w), uint64(n)))
			ids, mask := make([]uint32, n), make([]byte, n)
			for i := range ids {
				ids[i] = r.Uint32() >> (32 - w)
				mask[i] = byte(r.IntN(2))
			}
			b := appendPacked(nil, ids, w)
			if len(b) != packedSize(n, w) {
				t.Fatalf("width %d: %d ids take %d bytes, want %d", w, n, len(b), packedSize(n, w))
			}
			if d := cmp.Diff(ids, unpackIDs(append(b, make([]byte, 8)...), n, w)); d != "" {
				t.Fatalf("width %d, %d ids:\n%s", w, n, d)
			}
			if got := unpackMask(appendMask(nil, mask), n); !bytes.Equal(got, mask) {
				t.Fatalf("mask of %d: %v, want %v", n, got, mask)
			}
		}
	}
}

// FuzzRecord: no bytes make the decoder panic, and what it accepts comes back
// the same when encoded and decoded again. The checksum is put right first, or
// the fuzzer would never get past it.
func FuzzRecord(f *testing.F) {
	for _, s := range makeSamples(1, 0, 6) {
		rec, err := newEncoder().append(nil, &s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(rec)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= recordTail {
			b = bytes.Clone(b)
			body := b[:len(b)-recordTail]
			binary.LittleEndian.PutUint64(b[len(body):], xxhash.Sum64(body))
		}
		s, err := decodeRecord(b)
		if err != nil {
			return
		}
		rec, err := newEncoder().append(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzRow(f *testing.F) {
	s := makeSamples(1, 0, 1)[0]
	r := MakeRow(&s)
	f.Add(appendRow(nil, &r, 0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, i int64) {
		if len(b) < rowSize {
			return
		}
		r := decodeRow(b)
		if got := appendRow(nil, &r, i); !bytes.Equal(got[:rowSize-4], b[:rowSize-4]) {
			t.Fatalf("%x became %x", b[:rowSize-4], got[:rowSize-4])
		}
	})
}
