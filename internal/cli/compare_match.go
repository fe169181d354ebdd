package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"eaglebatch/internal/progress"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// comparer compares two generations in chunks of positions.
type comparer struct {
	a, b   *leased
	rep    progress.Reporter
	older  [2]map[uint32]*genindex.File // of a and b: the indexes that own entries they point to
	common [][2]int                     // layers of both: indexes into a's and b's
	tally  []*layerTally                // by common layer
	mu     sync.Mutex
}

// matchChunk bounds the positions whose hashes are in memory at once.
const matchChunk = 1 << 18

func newComparer(a, b *leased, rep progress.Reporter) (*comparer, error) {
	k := &comparer{a: a, b: b, rep: rep}
	lb := b.Index().Meta().Blob.Layers
	for i, l := range a.Index().Meta().Blob.Layers {
		if j := slices.Index(lb, l); j >= 0 {
			k.common = append(k.common, [2]int{i, j})
			k.tally = append(k.tally, newLayerTally())
		}
	}
	for i, g := range []*leased{a, b} {
		var err error
		if k.older[i], err = olderIndexes(g); err != nil {
			return nil, errors.Join(err, k.close())
		}
	}
	return k, nil
}

// olderIndexes opens the indexes of the generations that g points into.
func olderIndexes(g *leased) (map[uint32]*genindex.File, error) {
	out := map[uint32]*genindex.File{}
	open := func(gen uint32, dir string) error {
		f, err := genindex.Open(filepath.Join(dir, "index.ebi"))
		if err == nil {
			out[gen] = f
		}
		return err
	}
	if !g.Partial() {
		m, _, err := genindex.ReadManifest(g.Dir())
		for _, n := range m.Needs {
			err = errors.Join(err, open(n.Generation, filepath.Join(g.Dir(), n.Path)))
		}
		return out, err
	}
	for i := range g.Index().Positions() {
		if gen := g.Index().Position(i).Gen; gen != 0 && out[gen] == nil {
			if err := open(gen, filepath.Join(filepath.Dir(g.Dir()), fmt.Sprintf("%06d", gen))); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func (k *comparer) close() error {
	var err error
	for _, m := range k.older {
		for _, f := range m {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// entry returns the entry of position i of generation g (0: a, 1: b).
func (k *comparer) entry(g int, i int64) (blob.Entry, error) {
	f := []*leased{k.a, k.b}[g].Index()
	p := f.Position(i)
	if p.Gen != 0 {
		gen := p.Gen
		if f = k.older[g][gen]; f == nil {
			return blob.Entry{}, fmt.Errorf("position %d points into generation %d, which the manifest does not name", i, gen)
		}
	}
	if int64(p.Blob) >= int64(f.Blobs()) || int64(p.Entry) >= int64(f.BlobEntries(int(p.Blob))) {
		return blob.Entry{}, fmt.Errorf("position %d points to blob %d entry %d, which does not exist", i, p.Blob, p.Entry)
	}
	return f.Entry(int(p.Blob), int(p.Entry)), nil
}

// pair is a sample that both have, by position; b is -1 where it has it not.
type pair struct{ a, b int64 }

// run matches and compares, and fills doc.
func (k *comparer) run(ctx context.Context, doc *compareDoc) error {
	total := k.a.Index().Positions()
	at := func(i int64) int64 { return i }
	if n := doc.Sampled; n > 0 {
		all := total
		total, at = n, func(i int64) int64 { return i * all / n }
	}
	k.rep.Start(progress.Phase{Name: "compare", Unit: "samples", Total: total})
	defer k.rep.Finish()
	hit := make([]uint64, k.b.Index().Positions()/64+1) // a bit a position of b
	for first := int64(0); first < total; first += matchChunk {
		pairs, err := k.match(ctx, first, min(first+matchChunk, total), at, hit)
		if err != nil {
			return err
		}
		if err := k.pairs(ctx, pairs, doc); err != nil {
			return err
		}
	}
	if doc.Sampled == 0 {
		only := k.b.Index().Positions()
		for i := range k.b.Index().Positions() {
			only -= int64(hit[i/64] >> (i % 64) & 1)
		}
		doc.OnlyB = &only
	}
	for i, c := range k.common {
		l := k.tally[i].doc(k.a.Index().Meta().Blob.Layers[c[0]])
		doc.Rows += l.Rows
		doc.Layers = append(doc.Layers, l)
	}
	return nil
}

// match finds in b the samples at a's chosen positions [first, end), each
// sample once, in a's order.
func (k *comparer) match(ctx context.Context, first, end int64, at func(int64) int64, hit []uint64) ([]pair, error) {
	where := map[[16]byte]int{}
	var pairs []pair
	for i := first; i < end; i++ {
		e, err := k.entry(0, at(i))
		if err != nil {
			return nil, err
		}
		if _, again := where[e.Tokens]; !again {
			where[e.Tokens] = len(pairs)
			pairs = append(pairs, pair{at(i), -1})
		}
	}
	for i := range k.b.Index().Positions() {
		if i&0xffff == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e, err := k.entry(1, i)
		if err != nil {
			return nil, err
		}
		if p, ok := where[e.Tokens]; ok {
			hit[i/64] |= 1 << (i % 64)
			if pairs[p].b < 0 {
				pairs[p].b = i
			}
		}
	}
	return pairs, nil
}

// pairs compares on all cores.
func (k *comparer) pairs(ctx context.Context, pairs []pair, doc *compareDoc) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan pair)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for p := range todo {
				if err := k.pair(p, doc); err != nil {
					cancel(err)
				}
				k.rep.Add(progress.Delta{Units: 1})
			}
		})
	}
	for _, p := range pairs {
		if p.b < 0 {
			doc.onlyA(&k.mu)
			k.rep.Add(progress.Delta{Units: 1})
			continue
		}
		select {
		case todo <- p:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	close(todo)
	wg.Wait()
	return context.Cause(ctx)
}

func (d *compareDoc) absent(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
	d.Absent++
}

func (d *compareDoc) onlyA(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
	d.OnlyA++
}
