package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func frameBytes(t testing.TB, fs ...Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, f := range fs {
		if err := WriteFrame(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestFrameRoundTrip(t *testing.T) {
	want := []Frame{
		{Type: Start, Meta: []byte(`{"proto":1}`), Body: []byte{}},
		{Type: Req, Seq: 7, Meta: []byte(`{}`), Body: []byte{1, 2, 3, 4}},
		{Type: Resp, Seq: 1 << 31, Meta: []byte{}, Body: bytes.Repeat([]byte{9}, 1000), Sum: true},
		{Type: Bye, Meta: []byte{}, Body: []byte{}},
	}
	r := NewReader(bytes.NewReader(frameBytes(t, want...)), 1000)
	for i, w := range want {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(w, got); d != "" {
			t.Errorf("frame %d: %s", i, d)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestFrameLayout(t *testing.T) {
	got := frameBytes(t, Frame{Type: Resp, Seq: 0x01020304, Meta: []byte("{}"), Body: []byte("ab"), Sum: true})
	want := append([]byte("EHS1"), 4, 1, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, '{', '}', 'a', 'b')
	want = binary.LittleEndian.AppendUint32(want, 0x9e83486d) // zlib.crc32(b"ab")
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestFrameDamage: every byte flipped and every cut is found, or changes only
// what nothing protects (seq, meta, and the body's flag of having a sum).
func TestFrameDamage(t *testing.T) {
	whole := frameBytes(t, Frame{Type: Resp, Seq: 3, Meta: []byte(`{"a":1}`), Body: []byte("body"), Sum: true})
	for n := 1; n < len(whole); n++ {
		if _, err := NewReader(bytes.NewReader(whole[:n]), 100).Next(); !errors.Is(err, ErrFrame) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	for _, at := range []int{0, 3, 4, 5, 6, 7, 11, 23, 31, 34, 35, 38} {
		b := bytes.Clone(whole)
		b[at] ^= 0x80
		if _, err := NewReader(bytes.NewReader(b), 100).Next(); !errors.Is(err, ErrFrame) {
			t.Errorf("byte %d flipped: %v", at, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frameBytes(f, Frame{Type: Req, Seq: 1, Meta: []byte("{}"), Body: []byte{1, 0, 0, 0}}))
	f.Add(frameBytes(f, Frame{Type: Resp, Body: []byte("x"), Sum: true}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data), 1<<16)
		var out bytes.Buffer
		read := 0
		for {
			fr, err := r.Next()
			if err != nil {
				break
			}
			if err := WriteFrame(&out, fr); err != nil {
				t.Fatal(err)
			}
			read = out.Len()
		}
		if !bytes.Equal(out.Bytes(), data[:read]) {
			t.Fatal("decoded frames encode to other bytes")
		}
	})
}
