package extract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"eaglebatch/internal/fault"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// commit makes a blob count: file first, then the ledger.
func (r *run) commit(ctx context.Context, j *job, w *blob.Writer) error {
	info, err := w.Commit(ctx)
	if err != nil {
		return err
	}
	return r.record(ctx, j.no, info, j.absent)
}

// record puts a blob that lies under its final name into the ledger.
func (r *run) record(ctx context.Context, no int, info blob.Info, absent map[int]string) error {
	row := store.BlobRow{
		Gen: r.gen.ID, No: uint32(no), Bytes: info.Bytes, RawBytes: info.RawBytes,
		Samples: int64(info.Entries - info.Absent), Tokens: info.Tokens,
		Quarantined: int64(info.Absent), Hash: info.Hash, Losses: r.layerLosses(info.Losses),
	}
	there := r.servedBy(no, absent)
	r.mu.Lock()
	busy := r.clock.book()
	r.mu.Unlock()
	err := r.ws.Update(ctx, fmt.Sprintf("blob %d", no), func(tx *store.Tx) error {
		if err := tx.PutBlob(row); err != nil {
			return err
		}
		for i, reason := range absent {
			e := r.idx.Entry(no, i)
			q := store.QuarantineRow{Gen: r.gen.ID, Blob: uint32(no), Entry: uint32(i),
				Dataset: r.meta.Datasets[e.Dataset], Sample: e.Sample, Reason: reason}
			if err := tx.PutQuarantine(q); err != nil {
				return err
			}
		}
		if err := r.account(tx, row, there, busy); err != nil {
			return err
		}
		return r.sense.save(tx, r.gen.ID)
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.sealed[no] = true
	r.cost.measured(row)
	r.cond.Broadcast()
	r.mu.Unlock()
	return r.fs.Point(fault.BlobAfterCommit)
}

// servedBy counts the positions that a blob serves: those planned, less those of
// absent entries.
func (r *run) servedBy(no int, absent map[int]string) totals {
	t := totals{r.cost.positions[no], r.cost.served[no]}
	if len(absent) == 0 {
		return t
	}
	for i := range r.idx.Positions() {
		p := r.idx.Position(i)
		if _, gone := absent[int(p.Entry)]; gone && p.Gen == 0 && int(p.Blob) == no {
			t.samples, t.tokens = t.samples-1, t.tokens-int64(p.Rows)
		}
	}
	return t
}

// account adds a blob, and the positions that it serves, to the rows of the
// generation and of the phase.
func (r *run) account(tx *store.Tx, b store.BlobRow, there totals, seconds float64) error {
	g, ok, err := tx.Generation(r.gen.ID)
	if err != nil {
		return err
	}
	if !ok || g.State != store.GenBuilding {
		return fmt.Errorf("generation %d is not being built any more", r.gen.ID)
	}
	g.Samples += there.samples
	g.Tokens += there.tokens
	g.Blobs++
	g.Bytes += b.Bytes
	g.RawBytes += b.RawBytes
	g.Distinct += b.Samples
	g.Quarantined += b.Quarantined
	g.Seconds += seconds
	g.Losses = store.AddLosses(g.Losses, b.Losses)
	cursor := fmt.Sprintf("generation %d, %d blobs", g.ID, g.Blobs)
	return errors.Join(tx.PutGeneration(g), r.putPhase(tx, g.Distinct+g.Quarantined, cursor))
}

// layerLosses says which layer each loss is of.
func (r *run) layerLosses(losses []blob.Loss) (out []store.LayerLoss) {
	for l, x := range losses {
		out = append(out, store.LayerLoss{Layer: r.meta.Layers[l], Rows: x.Rows, Sum: x.Sum, Max: x.Max})
	}
	return out
}

// putPhase moves the phase's progress; the rest of its row is the runner's.
func (r *run) putPhase(tx *store.Tx, done int64, cursor string) error {
	p, ok, err := tx.Phase(store.PhaseExtract)
	if err != nil {
		return err
	}
	if !ok {
		p = store.PhaseRow{Name: store.PhaseExtract, State: store.Running}
	}
	p.Unit, p.Total, p.Done, p.Cursor = unit, r.cost.entries, done, []byte(cursor)
	return tx.PutPhase(p)
}

// unit is what the phase's Done and Total count: distinct samples to compute.
const unit = "samples"

// adopt looks at a blob file that is not in the ledger: a crash came between.
// One that is whole and as planned counts; any other is removed.
func (r *run) adopt(ctx context.Context, no int) error {
	path := r.blobPath(no)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	info, absent, why := r.inspect(ctx, no)
	if err := ctx.Err(); err != nil {
		return err
	}
	if why != nil {
		r.rep.Note("%s is made anew: %v", blobName(no), why)
		if err := r.fs.Remove(path); err != nil {
			return err
		}
		return r.fs.SyncDir(r.dir)
	}
	// The file was synced before it got its name; the name may not be durable.
	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	return r.record(ctx, no, info, absent)
}

// inspect reads a blob from end to end and compares it with the plan.
func (r *run) inspect(ctx context.Context, no int) (info blob.Info, absent map[int]string, err error) {
	path := r.blobPath(no)
	rd, err := blob.Open(path)
	if err != nil {
		return info, nil, err
	}
	defer func() { err = errors.Join(err, rd.Close()) }()
	if !sameMeta(rd.Meta(), r.blobMeta(no)) {
		return info, nil, errors.New("its header is not the one planned")
	}
	if rd.Entries() != r.idx.BlobEntries(no) {
		return info, nil, fmt.Errorf("%d entries, %d are planned", rd.Entries(), r.idx.BlobEntries(no))
	}
	absent = map[int]string{}
	for i := range rd.Entries() {
		e := rd.Entry(i)
		if e != r.idx.Entry(no, i) {
			return info, nil, fmt.Errorf("entry %d is not the one planned", i)
		}
		info.Entries++
		if reason, gone := rd.Absent(i); gone {
			absent[i] = reason
			info.Absent++
			continue
		}
		info.Tokens += int64(e.Rows)
		for l := range r.meta.Layers {
			info.RawBytes += int64(rd.LayerLen(i, l)) * int64(r.meta.RowBytes())
		}
	}
	var damage error
	info.Bytes, err = rd.Verify(ctx, func(d blob.Damage) { damage = errors.Join(damage, d.Err) })
	if err = errors.Join(err, damage); err != nil {
		return info, nil, err
	}
	if info.Losses, err = rd.Losses(); err != nil {
		return info, nil, err
	}
	info.Hash, err = blob.HashFile(ctx, path)
	return info, absent, err
}

// sameMeta compares headers as they are written.
func sameMeta(a, b blob.Meta) bool {
	if b.ChunkBytes == 0 {
		b.ChunkBytes = blob.DefaultChunkBytes
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
