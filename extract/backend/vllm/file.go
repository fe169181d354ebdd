package vllm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

type dtype struct {
	name string // as safetensors writes it
	size int
}

var dtypes = map[string]dtype{"bf16": {"BF16", 2}, "fp16": {"F16", 2}, "fp32": {"F32", 4}}

const maxHeader = 1 << 20 // of a file with two tensors

// tensor is one entry of a safetensors header.
type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// header is what a file of states says it holds.
type header struct {
	ids, states tensor
	data        int64 // where the tensors begin
}

var errNotYet = errors.New("not complete yet")

// readHeader reads the header of a file of so many bytes. A file that is
// shorter than it says is errNotYet.
func readHeader(r io.ReaderAt, size int64) (h header, err error) {
	var n [8]byte
	if size < 8 {
		return h, fmt.Errorf("%d bytes: %w", size, errNotYet)
	}
	if _, err := r.ReadAt(n[:], 0); err != nil {
		return h, err
	}
	length := binary.LittleEndian.Uint64(n[:])
	if length == 0 || length > maxHeader {
		return h, fmt.Errorf("a header of %d bytes", length)
	}
	if int64(length) > size-8 {
		return h, fmt.Errorf("%d bytes with a header of %d: %w", size, length, errNotYet)
	}
	text := make([]byte, length)
	if _, err := r.ReadAt(text, 8); err != nil {
		return h, err
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return h, fmt.Errorf("the header: %w", err)
	}
	for name, t := range map[string]*tensor{"token_ids": &h.ids, "hidden_states": &h.states} {
		raw, ok := m[name]
		if !ok {
			return h, fmt.Errorf("no tensor %q", name)
		}
		if err := json.Unmarshal(raw, t); err != nil {
			return h, fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	h.data = 8 + int64(length)
	end := max(h.ids.Offsets[1], h.states.Offsets[1])
	if end < 0 || end > math.MaxInt64-h.data {
		return h, fmt.Errorf("tensors that end at %d", end)
	}
	want := h.data + end
	switch {
	case size < want:
		return h, fmt.Errorf("%d bytes of %d: %w", size, want, errNotYet)
	case size > want:
		return h, fmt.Errorf("%d bytes, %d more than its header tells", size, size-want)
	}
	return h, nil
}

// shapeError says that a file is of another kind than the run's: not one
// sample's misfortune.
type shapeError struct{ text string }

func (e *shapeError) Error() string { return e.text }

// check compares a header with what was asked for; rows is the sample's length.
func (h header) check(rows, layers, hidden int, dt dtype) error {
	s := h.states.Shape
	switch {
	case h.ids.DType != "I64" || len(h.ids.Shape) != 1 || len(s) != 3:
		return fmt.Errorf("token_ids %s %v, hidden_states %v", h.ids.DType, h.ids.Shape, s)
	case s[1] != int64(layers):
		return &shapeError{fmt.Sprintf("states of %d layers, %d are wanted", s[1], layers)}
	case s[2] != int64(hidden):
		return &shapeError{fmt.Sprintf("states of hidden size %d, the model has %d", s[2], hidden)}
	case h.states.DType != dt.name:
		return &shapeError{fmt.Sprintf("states in %s, the plan has %s", h.states.DType, dt.name)}
	case s[0] != int64(rows) || h.ids.Shape[0] != int64(rows):
		return fmt.Errorf("%d rows of states and %d ids for a sample of %d tokens", s[0], h.ids.Shape[0], rows)
	case h.ids.Offsets[1]-h.ids.Offsets[0] != 8*int64(rows),
		h.states.Offsets[1]-h.states.Offsets[0] != int64(rows)*int64(layers)*int64(hidden)*int64(dt.size),
		h.ids.Offsets[0] < 0, h.states.Offsets[0] < 0:
		return fmt.Errorf("tensors at %v and %v do not have the sizes of their shapes", h.ids.Offsets, h.states.Offsets)
	case min(h.ids.Offsets[0], h.states.Offsets[0]) != 0, h.ids.Offsets[1] != h.states.Offsets[0] && h.states.Offsets[1] != h.ids.Offsets[0]:
		return fmt.Errorf("tensors at %v and %v do not lie one behind the other", h.ids.Offsets, h.states.Offsets)
	}
	return nil
}

// readIDs reads the token ids that the states are of.
func readIDs(r io.ReaderAt, h header) ([]uint32, error) {
	raw := make([]byte, h.ids.Offsets[1]-h.ids.Offsets[0])
	if _, err := r.ReadAt(raw, h.data+h.ids.Offsets[0]); err != nil {
		return nil, err
	}
	ids := make([]uint32, len(raw)/8)
	for i := range ids {
		v := binary.LittleEndian.Uint64(raw[8*i:])
		if v > 1<<32-1 {
			return nil, fmt.Errorf("token id %d", int64(v))
		}
		ids[i] = uint32(v)
	}
	return ids, nil
}

// states is an open file, complete and of the right kind.
type states struct {
	f    *os.File
	lock *os.File // shared lock held; nil where the server makes none
	h    header
}

func (s *states) close() {
	_ = s.f.Close()
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// open waits until the server is done with the file at path and opens it. The
// lock is the only proof of that, where there is one: the size is right as soon
// as older writers begin. ctx has the deadline.
func open(ctx context.Context, path string, ids []uint32, layers, hidden int, dt dtype) (*states, error) {
	lock, err := await(ctx, path)
	if err != nil {
		return nil, err
	}
	s := &states{lock: lock}
	if s.f, err = os.Open(path); err != nil {
		if lock != nil {
			_ = lock.Close()
		}
		if lock != nil && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the server let the lock of %s go without writing the file: its log says why (is its directory full?)", path)
		}
		return nil, err
	}
	if err := s.verify(path, ids, layers, hidden, dt); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *states) verify(path string, ids []uint32, layers, hidden int, dt dtype) error {
	st, err := s.f.Stat()
	if err != nil {
		return err
	}
	if s.h, err = readHeader(s.f, st.Size()); err == nil {
		err = s.h.check(len(ids), layers, hidden, dt)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	got, err := readIDs(s.f, s.h)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !slices.Equal(got, ids) {
		return fmt.Errorf("%s: it holds the states of other token ids than were sent", path)
	}
	return nil
}

// await waits for the server's lock to be let go and takes it shared, or, where
// there is no lock file, for the file to be complete.
func await(ctx context.Context, path string) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		lock, done, err := tryLock(path)
		if err != nil || done {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is not there or still being written (%w): %w", path, missing(path), context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// tryLock reports whether the server is done with path.
func tryLock(path string) (lock *os.File, done bool, err error) {
	lock, err = os.Open(path + ".lock") // for reading: the server may be another user
	if errors.Is(err, fs.ErrNotExist) {
		return nil, !errors.Is(missing(path), errNotYet), nil
	}
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return lock, true, nil
	}
	_ = lock.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("%s.lock: flock: %w", path, err)
}

// missing tells what a file lacks, as errNotYet; anything else will not change.
func missing(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no such file: %w", errNotYet)
	}
	if err != nil {
		return err // opening it again gives the reason
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err = readHeader(f, st.Size()); err == nil {
		err = errors.New("complete, but its lock is held")
	}
	return err
}
