// Package states reads the samples of a generation by their position in the
// order, wherever their states lie: in the generation's own blobs or in older
// ones that its index points to.
//
// # Concurrency
//
// A Generation may be used from many goroutines; Close ends all readers.
package states

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// File names within a generation's directory.
const (
	IndexName    = "index.ebi"
	PlanName     = "plan.ebi"
	ManifestName = "MANIFEST.json"
)

// ErrAbsent marks a position whose states are not there: quarantined, or not
// extracted yet.
var ErrAbsent = errors.New("states are absent")

// maxOpen bounds the blobs kept open.
const maxOpen = 64

// Generation is an open generation.
type Generation struct {
	dir     string
	index   *genindex.File
	partial bool
	needs   map[uint32]*older

	mu   sync.Mutex
	open map[string]*blob.Reader
	lru  []string
	busy map[string]int // readers handed out
}

// older is a generation that the index points into.
type older struct {
	dir  string
	hash string // of its manifest
	once sync.Once
	err  error
}

// check makes sure that the generation is the one that was meant.
func (o *older) check() error {
	o.once.Do(func() {
		_, hash, err := genindex.ReadManifest(o.dir)
		path := filepath.Join(o.dir, ManifestName)
		switch {
		case errors.Is(err, os.ErrNotExist):
			o.err = &blob.CorruptError{Path: path, Offset: -1, What: "manifest", Err: fmt.Errorf("a newer generation points here: %w", err)}
		case err != nil:
			o.err = err
		case hash != o.hash:
			o.err = &blob.CorruptError{Path: path, Offset: -1, What: "manifest", Err: fmt.Errorf("its checksum is %s: it is not the generation that was meant, %s", hash, o.hash)}
		}
	})
	return o.err
}

// Open opens the generation in dir: a sealed one by its MANIFEST.json, or, with
// partial, a building one by its plan.
func Open(dir string, partial bool) (*Generation, error) {
	g := &Generation{dir: dir, needs: map[uint32]*older{}, open: map[string]*blob.Reader{}, busy: map[string]int{}}
	m, _, err := genindex.ReadManifest(dir)
	name := IndexName
	switch {
	case err == nil:
		for _, n := range m.Needs {
			g.needs[n.Generation] = &older{dir: filepath.Join(dir, n.Path), hash: n.Hash}
		}
	case errors.Is(err, os.ErrNotExist) && partial:
		g.partial, name = true, PlanName
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: not sealed: %s: %w", dir, ManifestName, os.ErrNotExist)
	default:
		return nil, err
	}
	open := genindex.OpenCommitted
	if g.partial {
		open = genindex.Open // it may not be there yet
	}
	g.index, err = open(filepath.Join(dir, name))
	return g, err
}

// Index returns the position index.
func (g *Generation) Index() *genindex.File { return g.index }

// Partial says that the generation is still being built.
func (g *Generation) Partial() bool { return g.partial }

// Dir returns the generation's directory.
func (g *Generation) Dir() string { return g.dir }

// Sample is one position: its place, and the reader that holds its states.
type Sample struct {
	Position genindex.Position
	Entry    blob.Entry
	IDs      []uint32
	Mask     []byte // one byte a token; 1 exactly where supervised
	Reader   *blob.Reader
	release  func()
}

// Layer reads rows [first, first+n) of a captured layer, an index into
// Reader.Meta().Layers.
func (s *Sample) Layer(dst []byte, layer, first, n int) error {
	if first < 0 || n < 0 || first+n > int(s.Position.Rows) {
		return fmt.Errorf("rows %d to %d of a sample of %d", first, first+n, s.Position.Rows)
	}
	return s.Reader.Layer(dst, int(s.Position.Entry), layer, first, n)
}

// LayerRows is how many rows of a captured layer are stored for the sample:
// all its tokens, unless the blob keeps a selection.
func (s *Sample) LayerRows(layer int) (int, error) {
	rows, err := s.Reader.LayerRows(int(s.Position.Entry), layer)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range rows {
		if r < s.Position.Rows {
			n++
		}
	}
	if rows == nil {
		n = int(s.Position.Rows)
	}
	return n, nil
}

// Close lets go of the blob.
func (s *Sample) Close() { s.release() }

// At opens the sample at position i.
func (g *Generation) At(i int64) (*Sample, error) {
	if i < 0 || i >= g.index.Positions() {
		return nil, fmt.Errorf("position %d: the generation has positions 0 to %d", i, g.index.Positions()-1)
	}
	p := g.index.Position(i)
	path, err := g.blobPath(p)
	if err != nil {
		return nil, err
	}
	r, release, err := g.reader(path, p)
	switch {
	case errors.Is(err, os.ErrNotExist) && g.partial && filepath.Dir(path) == g.dir:
		return nil, fmt.Errorf("position %d: blob %d is not extracted yet: %w", i, p.Blob, ErrAbsent)
	case errors.Is(err, os.ErrNotExist):
		return nil, &blob.CorruptError{Path: path, Offset: -1, What: "blob", Err: err}
	}
	if err != nil {
		return nil, err
	}
	s := &Sample{Position: p, Reader: r, release: release}
	if err := g.load(s); err != nil {
		release()
		return nil, fmt.Errorf("position %d: %w", i, err)
	}
	return s, nil
}

func (g *Generation) load(s *Sample) (err error) {
	e := int(s.Position.Entry)
	if e >= s.Reader.Entries() {
		return &blob.CorruptError{Path: g.dir, Offset: -1, What: "index", Err: fmt.Errorf("entry %d of a blob with %d", e, s.Reader.Entries())}
	}
	if why, absent := s.Reader.Absent(e); absent {
		return fmt.Errorf("quarantined (%s): %w", why, ErrAbsent)
	}
	s.Entry = s.Reader.Entry(e)
	n := int(s.Position.Rows)
	if n > int(s.Entry.Rows) {
		return &blob.CorruptError{Path: g.dir, Offset: -1, What: "index", Err: fmt.Errorf("%d rows of an entry with %d", n, s.Entry.Rows)}
	}
	if s.IDs, err = s.Reader.IDs(e); err != nil {
		return err
	}
	s.IDs = s.IDs[:n]
	if off := s.Position.Mask; off != genindex.NoMask {
		s.Mask = g.index.Mask(off, n)
		return nil
	}
	if s.Mask, err = s.Reader.Mask(e); err != nil {
		return err
	}
	s.Mask = s.Mask[:n]
	return nil
}

// blobPath finds the file that holds a position.
func (g *Generation) blobPath(p genindex.Position) (string, error) {
	dir := g.dir
	if p.Gen != 0 {
		if o, ok := g.needs[p.Gen]; ok {
			if err := o.check(); err != nil {
				return "", err
			}
			dir = o.dir
		} else if g.partial {
			dir = filepath.Join(filepath.Dir(g.dir), fmt.Sprintf("%06d", p.Gen))
		} else {
			return "", fmt.Errorf("%s: the index points into generation %d, which %s does not name", g.dir, p.Gen, ManifestName)
		}
	}
	return filepath.Join(dir, blob.FileName(p.Blob)), nil
}

// reader opens a blob or finds it open; release gives it back.
func (g *Generation) reader(path string, p genindex.Position) (*blob.Reader, func(), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.open[path]
	if !ok {
		var err error
		if r, err = blob.Open(path); err != nil {
			return nil, nil, err
		}
		if err := g.belongs(r, path, p); err != nil {
			return nil, nil, errors.Join(err, r.Close())
		}
		g.open[path] = r
		if err := g.evict(); err != nil {
			return nil, nil, err
		}
	}
	g.touch(path)
	g.busy[path]++
	return r, sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.busy[path]--
	}), nil
}

// belongs refuses a blob that is not the one asked for.
func (g *Generation) belongs(r *blob.Reader, path string, p genindex.Position) error {
	m, want := r.Meta(), g.index.Meta()
	gen := p.Gen
	if gen == 0 {
		gen = want.Generation
	}
	w := want.Blob
	var err error
	switch {
	case gen != 0 && m.Generation != gen || m.Blob != p.Blob: // a plan has no number yet
		err = fmt.Errorf("says that it is blob %d of generation %d, want blob %d of %d", m.Blob, m.Generation, p.Blob, gen)
	case !slices.Equal(m.Layers, w.Layers) || m.Hidden != w.Hidden || m.DType != w.DType:
		err = fmt.Errorf("holds layers %v of %d %s values, the generation that points here has %v of %d %s", m.Layers, m.Hidden, m.DType, w.Layers, w.Hidden, w.DType)
	default:
		return nil
	}
	return &blob.CorruptError{Path: path, Offset: -1, What: "header", Err: err}
}

func (g *Generation) touch(path string) {
	for i, p := range g.lru {
		if p == path {
			g.lru = append(g.lru[:i], g.lru[i+1:]...)
			break
		}
	}
	g.lru = append(g.lru, path)
}

// evict closes the blobs not used for longest, beyond maxOpen.
func (g *Generation) evict() error {
	for i := 0; i < len(g.lru) && len(g.open) > maxOpen; {
		p := g.lru[i]
		if g.busy[p] > 0 {
			i++
			continue
		}
		r := g.open[p]
		delete(g.open, p)
		delete(g.busy, p)
		g.lru = append(g.lru[:i], g.lru[i+1:]...)
		if err := r.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the index and every blob.
func (g *Generation) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, r := range g.open {
		errs = append(errs, r.Close())
	}
	g.open = map[string]*blob.Reader{}
	return errors.Join(append(errs, g.index.Close())...)
}
