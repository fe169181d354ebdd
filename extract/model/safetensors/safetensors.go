// Package safetensors reads and writes safetensors files.
//
// A file is an 8-byte little-endian header length, a JSON header and the
// tensors' bytes. Every length and offset is checked before it is used: a
// damaged file gives an error that names the tensor, never a panic.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"eaglebatch/extract/model/mapped"
	"eaglebatch/extract/model/tensor"
)

// maxHeader bounds the JSON header, as the reference implementation does.
const maxHeader = 100 << 20

// Header is a file's parsed header.
type Header struct {
	Tensors  []Info // by offset
	Metadata map[string]string
	Data     int64 // where the tensors' bytes begin in the file
}

// Info places one tensor. Begin and End count from Header.Data.
type Info struct {
	Name       string
	DType      string // as the file says; not all can be decoded
	Shape      []int
	Begin, End int64
}

// ReadHeader reads the header bytes of the file at path, the length field
// included, and the file's size.
func ReadHeader(path string) (header []byte, size int64, err error) {
	f, err := mapped.OpenFile(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	var n [8]byte
	if _, err := f.ReadAt(n[:], 0); err != nil {
		return nil, 0, fmt.Errorf("%s: no safetensors header: %w", path, err)
	}
	length, err := headerLength(n[:], st.Size())
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	header = make([]byte, 8+length)
	if _, err := f.ReadAt(header, 0); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return header, st.Size(), nil
}

func headerLength(b []byte, size int64) (int64, error) {
	if len(b) < 8 || size < 8 {
		return 0, fmt.Errorf("a file of %d bytes is no safetensors file", size)
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader || int64(n) > size-8 {
		return 0, fmt.Errorf("the header length at byte 0 is %d, the file has %d bytes", n, size)
	}
	return int64(n), nil
}

// Parse reads the header at the start of b, of a file of size bytes.
func Parse(b []byte, size int64) (Header, error) {
	n, err := headerLength(b, size)
	if err != nil {
		return Header{}, err
	}
	if int64(len(b)) < 8+n {
		return Header{}, fmt.Errorf("the header ends at byte %d of %d", len(b), 8+n)
	}
	h := Header{Data: 8 + n}
	entries, err := splitObject(b[8 : 8+n])
	if err != nil {
		return Header{}, fmt.Errorf("header: %w", err)
	}
	for _, e := range entries {
		if e.key == "__metadata__" {
			if err := json.Unmarshal(e.value, &h.Metadata); err != nil {
				return Header{}, fmt.Errorf("header: __metadata__: %w", err)
			}
			continue
		}
		info, err := parseInfo(e)
		if err != nil {
			return Header{}, fmt.Errorf("header: tensor %q: %w", e.key, err)
		}
		h.Tensors = append(h.Tensors, info)
	}
	return h, h.checkPlacement(size - h.Data)
}

// checkPlacement holds the tensors to the format's rule: they fill the data
// exactly, without holes and without overlap.
func (h Header) checkPlacement(data int64) error {
	slices.SortStableFunc(h.Tensors, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at {
			return fmt.Errorf("header: tensor %q begins at data byte %d, the one before it ends at %d", t.Name, t.Begin, at)
		}
		at = t.End
	}
	if at != data {
		return fmt.Errorf("header: the tensors end at data byte %d, the file at %d", at, data)
	}
	return nil
}

type entry struct {
	key   string
	value json.RawMessage
}

// splitObject splits a JSON object and refuses a key that comes twice, which
// would hide a tensor.
func splitObject(b []byte) ([]entry, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(errors.New("is no JSON object"), err)
	}
	var out []entry
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if !ok || seen[key] {
			return nil, fmt.Errorf("key %q is doubled or no string", fmt.Sprint(t))
		}
		seen[key] = true
		e := entry{key: key}
		if err := dec.Decode(&e.value); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if rest := bytes.TrimRight(b[dec.InputOffset():], " \n\x00"); len(rest) != 0 {
		return nil, fmt.Errorf("%d bytes follow the JSON object", len(rest))
	}
	return out, nil
}

func parseInfo(e entry) (Info, error) {
	var raw struct {
		DType   string  `json:"dtype"`
		Shape   []int   `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(e.value, &raw); err != nil {
		return Info{}, err
	}
	if len(raw.Offsets) != 2 || raw.Offsets[0] < 0 || raw.Offsets[1] < raw.Offsets[0] {
		return Info{}, fmt.Errorf("data_offsets %v are no range", raw.Offsets)
	}
	info := Info{Name: e.key, DType: raw.DType, Shape: raw.Shape, Begin: raw.Offsets[0], End: raw.Offsets[1]}
	if t := tensor.Type(raw.DType); t.Plain() {
		want, err := tensor.Size(t, raw.Shape)
		if err != nil {
			return Info{}, err
		}
		if int64(want) != info.End-info.Begin {
			return Info{}, fmt.Errorf("shape %v of %s takes %d bytes, data_offsets give %d", raw.Shape, t, want, info.End-info.Begin)
		}
	}
	return info, nil
}

// File is a mapped safetensors file. It may be shared; its tensors are gone
// after Close.
type File struct {
	Header
	m      *mapped.File
	byName map[string]int
}

// Open maps the file at path.
func Open(path string) (*File, error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	h, err := Parse(m.Data, int64(len(m.Data)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), m.Close())
	}
	f := &File{Header: h, m: m, byName: make(map[string]int, len(h.Tensors))}
	for i, t := range h.Tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// Tensor returns the named tensor.
func (f *File) Tensor(name string) (tensor.Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return tensor.Tensor{}, false
	}
	t := f.Tensors[i]
	return tensor.Tensor{
		Name:  t.Name,
		Type:  tensor.Type(t.DType),
		Shape: t.Shape,
		Data:  f.m.Data[f.Data+t.Begin : f.Data+t.End],
	}, true
}

// Close unmaps the file.
func (f *File) Close() error { return f.m.Close() }

// Write writes tensors, in the order given, as a safetensors file.
func Write(w io.Writer, tensors []tensor.Tensor, metadata map[string]string) error {
	var head bytes.Buffer
	head.WriteByte('{')
	if metadata != nil {
		b, err := json.Marshal(metadata)
		if err != nil {
			return err
		}
		fmt.Fprintf(&head, `"__metadata__":%s`, b)
	}
	at := 0
	for i, t := range tensors {
		name, err := json.Marshal(t.Name)
		if err != nil {
			return err
		}
		shape, err := json.Marshal(t.Shape)
		if err != nil {
			return err
		}
		if i > 0 || metadata != nil {
			head.WriteByte(',')
		}
		fmt.Fprintf(&head, `%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, t.Type, shape, at, at+len(t.Data))
		at += len(t.Data)
	}
	head.WriteByte('}')
	for head.Len()%8 != 0 { // so that mapped values are aligned
		head.WriteByte(' ')
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(head.Len()))
	if _, err := w.Write(append(b, head.Bytes()...)); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}
