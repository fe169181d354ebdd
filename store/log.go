package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/fsx"
)

const logName = "checkpoints.jsonl"

// state is the whole ledger in memory, as the log adds up to.
type state map[string]map[string][]byte

func (s state) apply(ops []op) {
	for _, o := range ops {
		b := s[o.bucket]
		if o.del {
			delete(b, o.key)
			continue
		}
		if b == nil {
			b = map[string][]byte{}
			s[o.bucket] = b
		}
		b[o.key] = o.value
	}
}

// ops returns the puts that make the state from nothing, in order of key.
func (s state) ops() []op {
	var all []op
	for bucket, b := range s {
		for k, v := range b {
			all = append(all, op{bucket: bucket, key: k, value: v})
		}
	}
	slices.SortFunc(all, func(a, b op) int {
		return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.key, b.key))
	})
	return all
}

// size estimates the bytes of a log line that holds the whole state.
func (s state) size() int64 {
	n := int64(200)
	for bucket, b := range s {
		for k, v := range b {
			n += int64(len(bucket) + len(k) + len(v)*4/3 + 12)
		}
	}
	return n
}

func (s state) get(bucket, key string) ([]byte, bool, error) {
	v, ok := s[bucket][key]
	return bytes.Clone(v), ok, nil
}

func (s state) scan(bucket, prefix string, fn func(string, []byte) error) error {
	var keys []string
	for k := range s[bucket] {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := fn(k, s[bucket][k]); err != nil {
			return err
		}
	}
	return nil
}

func (s state) place() string { return logName }

// history is what a log says.
type history struct {
	state state
	seq   uint64    // of the last good line
	at    time.Time // of the last good line
	last  step      // the last good line
	end   int64     // bytes of good lines; what follows is torn
	size  int64     // bytes of the file
	steps int
}

// readLog replays the log of the workspace in dir. At damage it returns what
// could be read before it together with a *CorruptError. A torn last line is
// not damage: it shows as end < size.
func readLog(dir string) (history, error) {
	path := filepath.Join(dir, logName)
	data, err := fsx.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return history{state: state{}}, &CorruptError{Path: path, Offset: -1, Err: err, Hint: hintRebuildLog}
	}
	if err != nil {
		return history{state: state{}}, err
	}
	h, err := replay(data)
	if c := (*CorruptError)(nil); errors.As(err, &c) {
		c.Path = path
	}
	return h, err
}

func replay(data []byte) (history, error) {
	h := history{state: state{}, size: int64(len(data))}
	for h.end < h.size {
		rest := data[h.end:]
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			return h, nil
		}
		s, err := parseStep(rest[:n])
		if errors.Is(err, errSum) && n == len(rest)-1 {
			// Blocks of a line reach the disk in any order, so that its end may
			// be there and its middle not.
			return h, nil
		}
		switch {
		case err != nil:
		case s.base && h.steps > 0:
			err = errors.New("a base line after the first line")
		case !s.base && s.seq != h.seq+1:
			err = fmt.Errorf("step %d follows step %d", s.seq, h.seq)
		}
		if err != nil {
			return h, &CorruptError{Offset: h.end, Key: fmt.Sprintf("line %d", h.steps+1), Err: err, Hint: hintRebuildLog}
		}
		h.state.apply(s.ops)
		h.seq, h.at, h.last = s.seq, s.at, s
		h.steps++
		h.end += int64(n) + 1
	}
	return h, nil
}
