package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// seal writes what makes the generation complete: its index, the model's head,
// and last the manifest; then the ledger says so. Each step can be done again.
func (r *run) seal(ctx context.Context) error {
	var blobs []store.BlobRow
	var absent []store.QuarantineRow
	err := r.ws.View(func(rd store.Reader) error {
		var e1, e2 error
		blobs, e1 = rd.Blobs(r.gen.ID)
		absent, e2 = rd.Quarantine(r.gen.ID)
		return errors.Join(e1, e2)
	})
	if err != nil {
		return err
	}
	if most := r.mayMiss(); int64(len(absent)) > most {
		return fmt.Errorf("%w: %d of %d samples failed, at most %d may be missing (the last: %s sample %d: %s); nothing is sealed, all blobs are kept",
			ErrQuarantined, len(absent), r.cost.entries, most, absent[len(absent)-1].Dataset, absent[len(absent)-1].Sample, absent[len(absent)-1].Reason)
	}
	if err := r.roomForSeal(); err != nil {
		return err
	}
	sum, err := r.writeSeal(ctx, blobs, absent)
	if err != nil {
		return err
	}
	if err := r.recordSeal(ctx, blobs, sum, int64(len(absent))); err != nil {
		return err
	}
	return r.fs.Point(fault.SealAfterCommit)
}

// keepsHead says that the model's head is written beside the states.
func (r *run) keepsHead() bool { return r.o.Head != nil && !r.meta.Synthetic }

// mayMiss is how many samples may be missing: a share is of all that the plan
// wants, so that few samples tried again are held to the bound of the whole.
func (r *run) mayMiss() int64 { return r.o.MaxQuarantined.Of(r.cost.entries + r.cost.reused) }

// writeSeal writes index, head and manifest.
func (r *run) writeSeal(ctx context.Context, blobs []store.BlobRow, absent []store.QuarantineRow) (sum totals, err error) {
	if err := r.fs.Point(fault.SealBeforeIndex); err != nil {
		return sum, err
	}
	if sum, err = r.writeIndex(ctx, absent); err != nil {
		return sum, r.spaceError(err, 0)
	}
	if r.keepsHead() {
		err := r.fs.WriteFileAtomic(filepath.Join(r.dir, headName), func(w io.Writer) error { return r.o.Head.WriteSafetensors(w) })
		if err != nil {
			return sum, r.spaceError(err, 0)
		}
	}
	if err := r.fs.Point(fault.SealBeforeManifest); err != nil {
		return sum, err
	}
	if err := r.writeManifest(ctx, blobs, sum, int64(len(absent))); err != nil {
		return sum, r.spaceError(err, 0)
	}
	return sum, r.fs.Point(fault.SealAfterManifest)
}

// totals are what the index serves.
type totals struct{ samples, tokens int64 }

// writeIndex writes index.ebi: the plan less the positions of quarantined
// samples.
func (r *run) writeIndex(ctx context.Context, absent []store.QuarantineRow) (sum totals, err error) {
	gone := map[entryKey]bool{}
	for _, q := range absent {
		gone[entryKey{int(q.Blob), int(q.Entry)}] = true
	}
	m := r.idx.Meta()
	splits := slices.Clone(m.Splits)
	m.Generation, m.Blob, m.Splits = r.gen.ID, r.meta, nil
	w, err := genindex.Create(r.fs, filepath.Join(r.dir, indexName), m)
	if err != nil {
		return sum, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Abort())
		}
	}()
	for no := range r.idx.Blobs() {
		entries := make([]blob.Entry, 0, r.idx.BlobEntries(no))
		for _, e := range r.idx.Entries(no) {
			entries = append(entries, e)
		}
		if err := w.Blob(entries); err != nil {
			return sum, err
		}
	}
	if sum, err = r.writePositions(ctx, w, gone, splits); err != nil {
		return sum, err
	}
	w.Splits(splits)
	return sum, w.Finish()
}

// writePositions writes the positions but those that show what is gone, and makes
// the splits those of what is left.
func (r *run) writePositions(ctx context.Context, w *genindex.Writer, gone map[entryKey]bool, splits []genindex.Split) (sum totals, err error) {
	at := 0
	kept := make([]int64, len(splits))
	for i := range r.idx.Positions() {
		if i%4096 == 0 && ctx.Err() != nil {
			return sum, ctx.Err()
		}
		for at < len(splits) && i >= splits[at].First+splits[at].Count {
			at++
		}
		p := r.idx.Position(i)
		if p.Gen == 0 && gone[entryKey{int(p.Blob), int(p.Entry)}] {
			continue
		}
		var mask []byte
		if p.Mask != genindex.NoMask {
			mask = r.idx.Mask(p.Mask, int(p.Rows))
		}
		if err := w.Position(p, mask); err != nil {
			return sum, err
		}
		if at < len(kept) {
			kept[at]++
		}
		sum.samples++
		sum.tokens += int64(p.Rows)
	}
	first := int64(0)
	for i := range splits {
		splits[i].First, splits[i].Count = first, kept[i]
		first += kept[i]
	}
	return sum, nil
}

// writeManifest writes MANIFEST.json.
func (r *run) writeManifest(ctx context.Context, blobs []store.BlobRow, sum totals, absent int64) error {
	m := genindex.Manifest{
		Generation: r.gen.ID, Name: r.gen.Name, Kind: r.gen.Kind, Meta: r.meta,
		Plan: map[string]any{
			"max_tokens": r.plan.MaxTokens, "overlong": r.plan.Overlong, "drop": r.plan.Drop,
			"rows": r.plan.Rows, "samples": r.plan.Samples, "tokens": r.plan.Tokens,
		},
		Samples: sum.samples, Tokens: sum.tokens, Quarantined: absent,
	}
	for _, p := range r.gen.Identity {
		m.Identity = append(m.Identity, genindex.IdentityPart{Key: p.Key, Value: p.Value})
	}
	var losses []store.LayerLoss
	for _, b := range blobs {
		losses = store.AddLosses(losses, b.Losses)
		m.RawBytes += b.RawBytes
		m.Files = append(m.Files, genindex.ManifestFile{Name: blobName(int(b.No)), Bytes: b.Bytes, Hash: b.Hash})
	}
	for _, name := range []string{planName, indexName, headName} {
		st, err := os.Stat(filepath.Join(r.dir, name))
		if name == headName && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		hash, err := blob.HashFile(ctx, filepath.Join(r.dir, name))
		if err != nil {
			return err
		}
		m.Files = append(m.Files, genindex.ManifestFile{Name: name, Bytes: st.Size(), Hash: hash})
	}
	for _, x := range losses {
		m.Quantization = append(m.Quantization, genindex.Quantization{Layer: x.Layer, Rows: x.Rows, Mean: x.Sum / float64(max(1, x.Rows)), Max: x.Max})
	}
	needs, err := r.needs()
	if err != nil {
		return err
	}
	m.Needs = needs
	_, err = genindex.WriteManifest(r.fs, r.dir, m)
	return err
}

// needs names the older generations that the index points into.
func (r *run) needs() (out []genindex.Need, err error) {
	for _, id := range r.gen.Needs {
		var old store.GenerationRow
		err := r.ws.View(func(rd store.Reader) error {
			g, ok, err := rd.Generation(id)
			if err == nil && (!ok || g.State != store.GenSealed) {
				err = fmt.Errorf("extract: the plan points into generation %d, which is not sealed any more (%q): plan again", id, g.State)
			}
			old = g
			return err
		})
		if err != nil {
			return nil, err
		}
		dir := r.ws.GenerationDir(old)
		_, hash, err := genindex.ReadManifest(dir)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(r.dir, dir)
		if err != nil {
			return nil, err
		}
		out = append(out, genindex.Need{Generation: id, Path: filepath.ToSlash(rel), Hash: hash})
	}
	return out, nil
}

// recordSeal makes the seal count.
func (r *run) recordSeal(ctx context.Context, blobs []store.BlobRow, sum totals, absent int64) error {
	var losses []store.LayerLoss
	bytes, raw, distinct := int64(0), int64(0), int64(0)
	ents, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range ents {
		st, err := e.Info()
		if err != nil {
			return err
		}
		bytes += st.Size()
	}
	for _, b := range blobs {
		raw += b.RawBytes
		distinct += b.Samples
		losses = store.AddLosses(losses, b.Losses)
	}
	return r.ws.Update(ctx, "seal", func(tx *store.Tx) error {
		g, ok, err := tx.Generation(r.gen.ID)
		if err != nil {
			return err
		}
		if !ok || g.State != store.GenBuilding {
			return fmt.Errorf("generation %d is not being built any more", r.gen.ID)
		}
		now := time.Now().UTC()
		g.State, g.Sealed, g.Changed = store.GenSealed, now, now
		g.Samples, g.Tokens, g.Distinct, g.Bytes, g.RawBytes = sum.samples, sum.tokens, distinct, bytes, raw
		g.Blobs, g.Quarantined, g.Needs = int64(len(blobs)), absent, r.gen.Needs
		g.Losses = losses // in the order of blobs, not in that of their commits
		r.gen = g
		return errors.Join(tx.PutGeneration(g), r.putPhase(tx, distinct+absent, "sealed"))
	})
}
