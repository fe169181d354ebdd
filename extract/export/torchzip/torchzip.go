// Package torchzip writes dictionaries of tensors as torch.save does.
//
// # Layout
//
// A zip archive whose records are stored, not compressed, and begin at multiples
// of 64 bytes, so that torch.load(mmap=True) can map them:
//
//	NAME/data.pkl   a pickle, protocol 2: a dictionary whose tensors are persistent ids of storages
//	NAME/byteorder  little
//	NAME/data/K     the values of storage K, little endian, row by row
//	NAME/version    3
//
// The pickle calls nothing but torch._utils._rebuild_tensor_v2 and
// collections.OrderedDict, which torch.load(weights_only=True) accepts.
package torchzip

import (
	"archive/zip"
	"fmt"
	"io"
	"strings"
)

// DType is the type of a tensor's values.
type DType string

// The types there are.
const (
	BF16  DType = "bf16"
	FP16  DType = "fp16"
	FP32  DType = "fp32"
	Int64 DType = "int64"
)

// storages holds the torch class and the size in bytes of each type.
func (d DType) storage() (class string, size int64, err error) {
	switch d {
	case BF16:
		return "BFloat16Storage", 2, nil
	case FP16:
		return "HalfStorage", 2, nil
	case FP32:
		return "FloatStorage", 4, nil
	case Int64:
		return "LongStorage", 8, nil
	}
	return "", 0, fmt.Errorf("torch files: no storage for values of type %q", d)
}

// Tensor is a contiguous tensor. Data writes its values, little endian, the last
// dimension fastest: exactly as many bytes as type and shape say.
type Tensor struct {
	DType DType
	Shape []int64
	Data  func(io.Writer) error
}

func (t Tensor) values() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Item is an entry of the dictionary: a Tensor, a string or a bool.
type Item struct {
	Key   string
	Value any
}

// align is where records begin: torch's own choice.
const align = 64

// Write writes the dictionary to w. name is the directory within the archive
// ("archive" is what torch writes to a stream).
func Write(w io.Writer, name string, items []Item) error {
	pickled, err := pickle(items)
	if err != nil {
		return err
	}
	c := &counter{w: w}
	a := &archive{z: zip.NewWriter(c), c: c, name: name}
	a.text("data.pkl", pickled)
	a.text("byteorder", []byte("little"))
	k := 0
	for _, it := range items {
		if t, ok := it.Value.(Tensor); ok {
			a.tensor(fmt.Sprintf("data/%d", k), it.Key, t)
			k++
		}
	}
	a.text("version", []byte("3\n"))
	if a.err != nil {
		return a.err
	}
	return a.z.Close()
}

// counter knows where in the file the next byte goes.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// archive adds records; the first error sticks.
type archive struct {
	z    *zip.Writer
	c    *counter
	name string
	last int64 // bytes that the last record's descriptor will take
	err  error
}

// Sizes that the zip format gives.
const (
	localHeader  = 30
	descriptor   = 16
	descriptor64 = 24
	extraHead    = 4
	uint32max    = 1<<32 - 1
)

func (a *archive) text(name string, b []byte) {
	a.record(name, int64(len(b)), func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

func (a *archive) tensor(name, key string, t Tensor) {
	_, size, err := t.DType.storage()
	if err != nil {
		a.err = err
		return
	}
	want := t.values() * size
	a.record(name, want, func(w io.Writer) error {
		c := &counter{w: w}
		if err := t.Data(c); err != nil {
			return err
		}
		if c.n != want {
			return fmt.Errorf("torch files: tensor %q has %d bytes, its shape %v of %s takes %d", key, c.n, t.Shape, t.DType, want)
		}
		return nil
	})
}

func (a *archive) record(name string, size int64, write func(io.Writer) error) {
	if a.err != nil {
		return
	}
	if a.err = a.z.Flush(); a.err != nil {
		return
	}
	full := a.name + "/" + name
	at := a.c.n + a.last + localHeader + int64(len(full)) + extraHead
	h := &zip.FileHeader{Name: full, Method: zip.Store, Extra: padding(int((align - at%align) % align))}
	var w io.Writer
	if w, a.err = a.z.CreateHeader(h); a.err == nil {
		a.err = write(w)
	}
	a.last = descriptor
	if size >= uint32max {
		a.last = descriptor64
	}
}

// padding is an extra field of n bytes beside its head, under the id that torch
// uses for it.
func padding(n int) []byte {
	return append([]byte{'F', 'B', byte(n), 0}, strings.Repeat("Z", n)...)
}
