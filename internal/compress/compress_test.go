package compress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

func pack(t testing.TB, f Format, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(data []byte) ([]byte, Format, error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, "", err
	}
	got, err := io.ReadAll(r)
	return got, r.Format, errors.Join(err, r.Close())
}

func sample(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('0' + r.IntN(10))
	}
	return b
}

func formats() []Format { return []Format{Plain, Gzip, Zstd, LZ4} }

func TestRoundTrip(t *testing.T) {
	for _, f := range formats() {
		for _, n := range []int{0, 1, 3, 1000, 3 << 20} {
			data := sample(n)
			got, format, err := unpack(pack(t, f, data))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s of %d bytes: got %d bytes, error %v", f, n, len(got), err)
			}
			if format != f {
				t.Errorf("%s of %d bytes: recognized as %s", f, n, format)
			}
		}
	}
}

func TestConcatenatedStreams(t *testing.T) {
	a, b := sample(70_000), []byte("tail\n")
	for _, f := range formats() {
		got, _, err := unpack(append(pack(t, f, a), pack(t, f, b)...))
		if want := append(bytes.Clone(a), b...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes of %d, error %v", f, len(got), len(want), err)
		}
	}
}

func TestSkippableFramesFirst(t *testing.T) {
	skip := binary.LittleEndian.AppendUint32(nil, 0x184D2A5C)
	skip = binary.LittleEndian.AppendUint32(skip, 5)
	skip = append(skip, "hello"...)
	for _, f := range []Format{Zstd, LZ4} {
		in := append(append(bytes.Clone(skip), skip...), pack(t, f, []byte("text\n"))...)
		got, format, err := unpack(in)
		if err != nil || string(got) != "text\n" || format != f {
			t.Errorf("%s after skippable frames: %q as %s, error %v", f, got, format, err)
		}
	}
	if _, _, err := unpack(append(bytes.Clone(skip), "plain text"...)); err == nil {
		t.Error("plain text after a skippable frame was read")
	}
}

func TestTruncationIsAnError(t *testing.T) {
	data := sample(1 << 20)
	for _, f := range []Format{Gzip, Zstd, LZ4} {
		full := pack(t, f, data)
		for _, n := range []int{5, len(full) / 2, len(full) - 1} {
			if _, _, err := unpack(full[:n]); err == nil {
				t.Errorf("%s cut to %d of %d bytes: read without an error", f, n, len(full))
			}
		}
	}
}

func TestDamageIsAnError(t *testing.T) {
	for _, f := range []Format{Gzip, Zstd, LZ4} {
		full := pack(t, f, sample(1<<20))
		full[len(full)/2] ^= 0x40
		if got, _, err := unpack(full); err == nil && bytes.Equal(got, sample(1<<20)) {
			t.Errorf("%s with a flipped bit: read as if it were whole", f)
		} else if err == nil {
			t.Errorf("%s with a flipped bit: other bytes without an error", f)
		}
	}
}

func TestUnsupported(t *testing.T) {
	for in, name := range map[string]string{"\xfd7zXZ\x00rest": "xz", "BZh91AY": "bzip2", "PK\x03\x04rest": "zip", "PAR1rest": "parquet"} {
		if _, _, err := unpack([]byte(in)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: error %v, want one that names %s", in, err, name)
		}
	}
	if _, err := NewWriter(io.Discard, "br"); err == nil {
		t.Error("an unknown format got a writer")
	}
}

func TestReadErrorComesThrough(t *testing.T) {
	boom := errors.New("boom")
	for _, f := range formats() {
		full := pack(t, f, sample(1<<20))
		r, err := NewReader(io.MultiReader(bytes.NewReader(full[:len(full)/2]), iotest.ErrReader(boom)))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if !errors.Is(err, boom) {
			t.Errorf("%s: error %v, want the reader's own", f, err)
		}
	}
}

func TestForName(t *testing.T) {
	for name, want := range map[string]Format{"a.jsonl": Plain, "a.jsonl.gz": Gzip, "a.zst": Zstd, "a.jsonl.lz4": LZ4, "gz": Plain} {
		if got := ForName(name); got != want {
			t.Errorf("ForName(%q) = %s, want %s", name, got, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, c := range formats() {
		f.Add(pack(f, c, []byte("a line\nanother\n")))
	}
	f.Add([]byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := NewReader(bytes.NewReader(in))
		if err != nil {
			return
		}
		defer r.Close()
		n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
		if r.Format == Plain && (err != nil || n != int64(min(len(in), 1<<20))) {
			t.Fatalf("plain: %d bytes of %d, error %v", n, len(in), err)
		}
	})
}

// TestNothingAfterSkippable: what follows a skippable frame and is no stream,
// however short, is an error; read as plain text the frame would be lost.
func TestNothingAfterSkippable(t *testing.T) {
	frame := []byte{0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'x', 'y'}
	for _, rest := range []string{"", "a", "abc", "abcd", "{\"input_ids\":[1]}\n"} {
		r, err := NewReader(bytes.NewReader(append(frame[:len(frame):len(frame)], rest...)))
		if err == nil {
			r.Close()
			t.Errorf("%q after a skippable frame reads as %s", rest, r.Format)
		}
	}
}
