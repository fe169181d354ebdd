package plan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
	"eaglebatch/store/samples"
)

// indexName is the index of a sealed generation, within its directory.
const indexName = "index.ebi"

// older is a sealed generation whose states may be used again.
type older struct {
	id   uint32
	file *genindex.File
}

// sameIdentity says whether two identities name the same parts with the same
// values, in any order.
func sameIdentity(a, b []store.Part) bool {
	if len(a) != len(b) || len(a) == 0 {
		return false
	}
	for _, p := range a {
		if !slices.Contains(b, p) {
			return false
		}
	}
	return true
}

// reusable lists the generations that agree with the plan's identity, newest
// first. Those that a decision deletes are not among them.
func reusable(gens []store.GenerationRow, o Options) []store.GenerationRow {
	var out []store.GenerationRow
	for _, g := range slices.Backward(gens) {
		named := slices.Contains(o.GCNames, g.Name) || slices.Contains(o.GCNames, fmt.Sprint(g.ID))
		if g.State == store.GenSealed && g.Origin != retain.Adopted && g.Kind != retain.KindSamples &&
			!named && sameIdentity(g.Identity, o.Identity) {
			out = append(out, g)
		}
	}
	return out
}

// reuse finds the samples whose states an older generation already holds. The
// states of a token depend on the tokens before it only, so that a stored
// prefix serves every shorter one, up to Options.LengthFrom.
func (p *planner) reuse(ctx context.Context, r store.Reader, rep progress.Reporter) error {
	gens, err := r.Generations()
	if err != nil {
		return err
	}
	d := p.distinct
	return p.stored(ctx, r, reusable(gens, p.o), p.o.Rows, rep, func(number uint32, at storedAt, e blob.Entry) {
		if d.source[number] == 0 && p.o.serves(e.Rows, d.need[number]) {
			d.source[number], d.blob[number], d.entry[number] = at.source, at.blob, at.entry
		}
	})
}

// storedAt is where states lie: 1 + the number of an older generation, and
// the entry in it.
type storedAt struct{ source, blob, entry uint32 }

// stored shows visit every entry of the generations that has states of a
// distinct sample which serve a plan that wants rows.
func (p *planner) stored(ctx context.Context, r store.Reader, gens []store.GenerationRow, rows string, rep progress.Reporter, visit func(number uint32, at storedAt, e blob.Entry)) error {
	for _, g := range gens {
		dir := p.c.ws.GenerationDir(g)
		f, err := openOlder(dir)
		if err != nil {
			rep.Note("generation %d (%s) is not reused: %v", g.ID, g.Name, err)
			continue
		}
		p.older = append(p.older, older{id: g.ID, file: f})
		if has := f.Meta().Blob.Rows; selects(has) && has != rows {
			continue // it lacks rows that are wanted
		}
		absent, err := unusable(r, g.ID)
		if err == nil {
			err = lost(r, g, dir, absent, rep)
		}
		if err != nil {
			return err
		}
		if err := p.match(ctx, f, absent, visit); err != nil {
			return err
		}
	}
	return nil
}

// openOlder opens the index of a sealed generation. Without its manifest
// nothing can point into it.
func openOlder(dir string) (*genindex.File, error) {
	if _, _, err := genindex.ReadManifest(dir); err != nil {
		return nil, err
	}
	return genindex.Open(filepath.Join(dir, indexName))
}

type blobEntry struct{ blob, entry uint32 }

// wholeBlob is the entry that stands for every entry of a blob.
const wholeBlob = ^uint32(0)

// unusable lists the entries of a generation that serve nobody: quarantined
// ones, and those that a check found damaged.
func unusable(r store.Reader, gen uint32) (map[blobEntry]bool, error) {
	rows, err := r.Quarantine(gen)
	if err != nil {
		return nil, err
	}
	out := make(map[blobEntry]bool, len(rows))
	for _, q := range rows {
		out[blobEntry{q.Blob, q.Entry}] = true
	}
	damaged, err := store.Damaged(r, gen)
	if err != nil {
		return nil, err
	}
	for _, d := range damaged {
		e := blobEntry{d.Blob, wholeBlob}
		if !d.Whole {
			e.entry = d.Entry
		}
		out[e] = true
	}
	return out, nil
}

// lost adds to absent the blobs whose files are not there, or not in full: a
// plan that pointed to them would be sealed without their states.
func lost(r store.Reader, g store.GenerationRow, dir string, absent map[blobEntry]bool, rep progress.Reporter) error {
	blobs, err := r.Blobs(g.ID)
	if err != nil {
		return err
	}
	for _, b := range blobs {
		st, err := os.Lstat(filepath.Join(dir, blob.FileName(b.No)))
		switch {
		case err == nil && st.Size() == b.Bytes:
			continue
		case err == nil:
			err = fmt.Errorf("%s has %d bytes, it was committed with %d", blob.FileName(b.No), st.Size(), b.Bytes)
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
		rep.Note("generation %d (%s): %v: its samples are computed anew", g.ID, g.Name, err)
		absent[blobEntry{b.No, wholeBlob}] = true
	}
	return nil
}

// match finds the samples that the newest of p.older holds.
func (p *planner) match(ctx context.Context, f *genindex.File, absent map[blobEntry]bool, visit func(uint32, storedAt, blob.Entry)) error {
	d, source, masks := p.distinct, uint32(len(p.older)), selects(f.Meta().Blob.Rows)
	for no := range f.Blobs() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if absent[blobEntry{uint32(no), wholeBlob}] {
			continue
		}
		for i, e := range f.Entries(no) {
			_, number, ok := d.find(d.key(samples.Row{Tokens: e.Tokens, Content: e.Content}))
			if !ok || absent[blobEntry{uint32(no), uint32(i)}] || masks && d.row(number).Content != e.Content {
				continue
			}
			visit(number, storedAt{source, uint32(no), uint32(i)}, e)
		}
	}
	return nil
}

// entryContent returns the content hash of the blob entry that serves sample number.
func (p *planner) entryContent(number uint32) [16]byte {
	d := p.distinct
	if s := d.source[number]; s != 0 {
		return p.older[s-1].file.Entry(int(d.blob[number]), int(d.entry[number])).Content
	}
	return d.row(number).Content
}

// closeOlder unmaps the indexes.
func (p *planner) closeOlder() error {
	var err error
	for _, o := range p.older {
		err = errors.Join(err, o.file.Close())
	}
	p.older = nil
	return err
}

// newEntry describes a sample that this plan computes.
func (p *planner) newEntry(number uint32) blob.Entry {
	d := p.distinct
	set, index := p.c.locate(d.merged[number])
	row := d.row(number)
	e := blob.Entry{Dataset: uint32(set), Sample: uint64(index), Rows: d.need[number], Tokens: row.Tokens, Content: row.Content}
	if w, ok := d.windows[number]; ok {
		e.Sample = blob.WindowSample(uint64(index), w.window)
	}
	return e
}
