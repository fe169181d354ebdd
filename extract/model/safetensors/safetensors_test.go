package safetensors

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/model/tensor"
)

func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestRoundTrip(t *testing.T) {
	in := []tensor.Tensor{
		{Name: "a \"quoted\" name", Type: tensor.F32, Shape: []int{2, 3}, Data: bytes.Repeat([]byte{1}, 24)},
		{Name: "empty", Type: tensor.BF16, Shape: []int{0, 5}, Data: []byte{}},
		{Name: "z", Type: tensor.F16, Shape: []int{2}, Data: []byte{1, 2, 3, 4}},
	}
	var b bytes.Buffer
	if err := Write(&b, in, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Data%8 != 0 || f.Metadata["format"] != "pt" || len(f.Tensors) != len(in) {
		t.Fatalf("header %+v", f.Header)
	}
	for _, want := range in {
		got, ok := f.Tensor(want.Name)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%s:\n%s", want.Name, diff)
		}
	}
	header, size, err := ReadHeader(path)
	if err != nil || size != int64(b.Len()) || !bytes.Equal(header, b.Bytes()[:len(header)]) {
		t.Fatalf("ReadHeader: %d bytes of %d, %v", len(header), size, err)
	}
}

func TestParseRefuses(t *testing.T) {
	ok := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	tests := []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "no safetensors file"},
		{"length beyond the file", binary.LittleEndian.AppendUint64(nil, 1<<40), "header length"},
		{"no json", file("nope", 0), "header"},
		{"twice", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "doubled"},
		{"file cut", file(ok, 7), "end at data byte 8"},
		{"bytes behind", file(ok, 9), "the file at 9"},
		{"hole", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "begins at data byte 4"},
		{"overlap", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), `"b"`},
		{"shape and bytes", file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8), "takes 12 bytes"},
		{"backwards", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), "no range"},
		{"text behind", file(ok+"x", 8), "follow"},
	}
	for _, tc := range tests {
		_, err := Parse(tc.b, int64(len(tc.b)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", tc.name, err, tc.want)
		}
	}
	if _, err := Parse(file(ok, 8), int64(len(file(ok, 8)))); err != nil {
		t.Error(err)
	}
}

// FuzzParse: whatever the bytes, Parse ends, and what it accepts lies in the
// file.
func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":"y"}}`, 8))
	f.Add(file(`{"a":{"dtype":"F8_E4M3","shape":[-2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b, int64(len(b)))
		if err != nil {
			return
		}
		for _, x := range h.Tensors {
			if x.Begin < 0 || x.End < x.Begin || h.Data+x.End > int64(len(b)) {
				t.Fatalf("tensor %q lies at [%d, %d) of %d bytes", x.Name, x.Begin, x.End, len(b))
			}
			if n, err := tensor.Size(tensor.Type(x.DType), x.Shape); err == nil && tensor.Type(x.DType).Plain() && int64(n) != x.End-x.Begin {
				t.Fatalf("tensor %q: %d bytes for shape %v", x.Name, x.End-x.Begin, x.Shape)
			}
		}
	})
}
