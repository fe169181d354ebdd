package vllm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"eaglebatch/extract/backend/enginetest"
)

// safetensors renders a file with this header.
func safetensors(header string, data []byte) []byte {
	header += strings.Repeat(" ", (8-len(header)%8)%8)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

// good is a file of three tokens, two layers of two values.
func good(ids, states string) []byte {
	const format = `{"token_ids":{"dtype":"I64","shape":[3],"data_offsets":%s},"hidden_states":{"dtype":"BF16","shape":[3,2,2],"data_offsets":%s}}`
	data := make([]byte, 48)
	for i := range 3 {
		binary.LittleEndian.PutUint64(data[8*i:], uint64(i+5))
	}
	return safetensors(fmt.Sprintf(format, ids, states), data)
}

// accept reads a file as open does.
func accept(file []byte) (header, []uint32, error) {
	h, err := readHeader(bytes.NewReader(file), int64(len(file)))
	if err == nil {
		err = h.check(3, 2, 2, dtypes["bf16"])
	}
	if err != nil {
		return h, nil, err
	}
	ids, err := readIDs(bytes.NewReader(file), h)
	return h, ids, err
}

// TestOffsets: the tensors may come in either order, and fill the file.
func TestOffsets(t *testing.T) {
	for _, c := range []struct {
		ids, states string
		ok          bool
	}{
		{"[0,24]", "[24,48]", true},
		{"[24,48]", "[0,24]", true},
		{"[0,24]", "[0,24]", false},
		{"[8,32]", "[24,48]", false},
		{"[12,36]", "[24,48]", false},
		{"[-24,0]", "[24,48]", false},
		{"[0,24]", "[24,9223372036854775807]", false},
		{"[0,24]", "[9223372036854775783,9223372036854775807]", false},
		{"[0,24]", "[24,40]", false},
		{"[0,24,48]", "[24,48]", true}, // JSON arrays are cut to what they are read into
	} {
		if _, _, err := accept(good(c.ids, c.states)); (err == nil) != c.ok {
			t.Errorf("ids at %s, states at %s: %v", c.ids, c.states, err)
		}
	}
}

// FuzzFile: whatever lies there, a file is refused, or holds what was asked for
// within its own bytes.
func FuzzFile(f *testing.F) {
	f.Add(good("[0,24]", "[24,48]"))
	f.Add(good("[24,48]", "[0,24]"))
	f.Add(good("[0,24]", "[24,9223372036854775807]"))
	f.Add(good("[0,24]", "[24,48]")[:60])
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 127, '{', '}'})
	f.Add(safetensors(`{"token_ids":{"dtype":"I64","shape":[3]},"hidden_states":null}`, nil))
	v := enginetest.VLLM{Layers: []int{1, 2}, Hidden: 2}
	f.Add(v.File([]uint32{5, 6, 7}))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, ids, err := accept(file)
		if err != nil {
			return
		}
		if len(ids) != 3 || h.data+h.states.Offsets[1] > int64(len(file)) || h.states.Offsets[1]-h.states.Offsets[0] != 24 {
			t.Fatalf("accepted %+v with ids %v in %d bytes", h, ids, len(file))
		}
		// The ids are read from where the header says, and from nowhere else.
		at := h.data + h.ids.Offsets[0]
		again := slices.Clone(file)
		clear(again[at : at+24])
		if _, zero, err := accept(again); err != nil || !slices.Equal(zero, []uint32{0, 0, 0}) {
			t.Fatalf("zeroed ids read as %v, %v", zero, err)
		}
	})
}
