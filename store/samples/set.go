package samples

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The files that a Set keeps open: half of those that the process may have, within
// these bounds.
const (
	minOpenFiles = 64
	maxOpenFiles = 4096
)

// Set reads samples of many generations. Each merge that adds a dataset makes one,
// so that there may be hundreds, and a database has several files open: those that
// were not read for the longest time are closed for others. Safe for concurrent
// use; whoever made it closes it.
type Set struct {
	o    Options
	dir  func(gen uint32) string
	rows map[uint32]int64 // the ledger's count, by generation
	most int              // files

	mu    sync.Mutex
	open  map[uint32]*member
	files int    // of all that are open
	turn  uint64 // counts calls of Get
}

// member is an open generation.
type member struct {
	gen   uint32
	st    *Store
	files int
	users int    // calls of Get that are in it
	last  uint64 // turn
}

// NewSet looks at the generations that rows names, without opening their
// databases. dir is where a generation lies.
func NewSet(dir func(gen uint32) string, rows map[uint32]int64, o Options) (*Set, error) {
	for gen, n := range rows {
		if _, err := look(dir(gen), n); err != nil {
			return nil, err
		}
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return nil, fmt.Errorf("how many files may be open: %w", err)
	}
	most := int(min(max(lim.Cur/2, minOpenFiles), maxOpenFiles))
	return &Set{o: o, dir: dir, rows: rows, most: most, open: map[uint32]*member{}}, nil
}

// Get returns one sample of a generation, verified against its own checksum.
func (s *Set) Get(ctx context.Context, gen, dataset uint32, index uint64) (*Sample, error) {
	m, err := s.take(gen)
	if err != nil {
		return nil, err
	}
	sm, err := m.st.Get(ctx, dataset, index)
	return sm, errors.Join(err, s.giveBack(m))
}

// take opens a generation where it is not open yet.
func (s *Set) take(gen uint32) (*member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	m := s.open[gen]
	if m == nil {
		ents, err := os.ReadDir(filepath.Join(s.dir(gen), dbName))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // Open says what is missing
			return nil, err
		}
		m = &member{gen: gen, files: len(ents)}
		if err := s.shrink(s.most - m.files); err != nil {
			return nil, err
		}
		if m.st, err = Open(s.dir(gen), s.rows[gen], s.o); err != nil {
			return nil, err
		}
		s.open[gen] = m
		s.files += m.files
	}
	m.users++
	m.last = s.turn
	return m, nil
}

func (s *Set) giveBack(m *member) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.users--
	return s.shrink(s.most)
}

// shrink closes generations that nobody reads until at most so many files are
// open. Held: s.mu.
func (s *Set) shrink(most int) error {
	if s.files <= most {
		return nil
	}
	var idle []*member
	for _, m := range s.open {
		if m.users == 0 {
			idle = append(idle, m)
		}
	}
	slices.SortFunc(idle, func(a, b *member) int { return cmp.Compare(a.last, b.last) })
	for _, m := range idle {
		if s.files <= most {
			break
		}
		delete(s.open, m.gen)
		s.files -= m.files
		if err := m.st.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes what is open; no Get may be running.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.open {
		errs = append(errs, m.st.Close())
	}
	clear(s.open)
	s.files = 0
	return errors.Join(errs...)
}
