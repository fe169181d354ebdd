package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"path/filepath"
	"syscall"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// PartRows is the key in DatasetRow.Fingerprint of the hash over the content
// hashes of the dataset's rows, in order: equal exactly when the merged
// samples are.
const PartRows = "rows"

// checkpointBytes is how much text may pass without the cursor moving, where
// nearly nothing of it is accepted.
const checkpointBytes = 64 << 20

func keys(m map[string]int64) iter.Seq[string] { return maps.Keys(m) }

// committer takes the blocks of one dataset in order.
type committer struct {
	m       *merger
	row     store.DatasetRow // counts of what was taken
	cur     cursor
	rejects *rejects
	since   int64 // bytes since the last checkpoint
	raw     int64 // bytes of the current file on disk
}

// read merges the files of dataset i from the cursor.
func (m *merger) read(ctx context.Context, i int) error {
	row := m.rows[i]
	row.Reasons = maps.Clone(row.Reasons)
	if row.Reasons == nil {
		row.Reasons = map[string]int64{}
	}
	row.Sources = append([]store.SourceFile(nil), row.Sources...)
	rj, err := openRejects(m.ws.FS(), m.ws.RejectsPath(row.Name), m.cur.Rejects)
	if err != nil {
		return err
	}
	c := &committer{m: m, row: row, cur: m.cur, rejects: rj}
	r := &reader{files: m.rows[i].Sources, block: m.o.blockSize}
	lim := limits{vocab: m.o.VocabSize, minLoss: m.o.MinLossTokens}
	err = parseBlocks(ctx, r, m.cur.At, m.o.Threads, m.o.Memory, func() *record { return newRecord(lim) },
		func(b *block) error { return c.block(ctx, b) })
	if err == nil {
		err = c.checkpoint(ctx)
	}
	return errors.Join(err, rj.close())
}

// block counts every line of b, and moves the cursor where a batch is full.
func (c *committer) block(ctx context.Context, b *block) error {
	var tokens int64
	for i := range b.lines {
		n, err := c.line(b, &b.lines[i])
		if err != nil {
			return err
		}
		tokens += n
	}
	c.m.rep.Add(progress.Delta{Units: max(0, b.raw-c.raw), Tokens: tokens, Bytes: b.size})
	c.since += b.size
	c.raw = b.raw
	c.cur.At.Offset, c.cur.At.State = b.offset+b.size, b.state
	if b.last {
		src := &c.row.Sources[b.file]
		src.Hash, src.Lines = b.hash, c.cur.At.Line
		c.cur.At = position{File: b.file + 1}
		c.raw = 0
	}
	if c.m.w.Full() || c.since >= c.m.o.checkpointBytes {
		return c.checkpoint(ctx)
	}
	return nil
}

func (c *committer) line(b *block, l *line) (tokens int64, err error) {
	c.row.Lines++
	c.cur.At.Line++
	switch l.class {
	case blank:
		c.row.Blank++
		return 0, nil
	case rejected:
		c.row.Rejected++
		c.row.Reasons[l.verdict.reason]++
		return 0, c.reject(b, l)
	}
	if c.m.seen != nil && !c.m.seen.add(l.row.Content) {
		c.row.Duplicates++
		return 0, nil
	}
	s := samples.Sample{
		Dataset: c.row.ID, Index: uint64(c.row.Accepted), ID: l.id, File: uint32(b.file), Line: c.cur.At.Line,
		IDs: b.ids[l.first:][:l.tokens], Mask: b.mask[l.first:][:l.tokens], Segments: l.segs,
	}
	c.row.Accepted++
	c.row.Tokens += int64(l.tokens)
	c.row.LossTokens += int64(l.row.Supervised)
	c.row.MaxTokens = max(c.row.MaxTokens, int64(l.tokens))
	return int64(l.tokens), c.m.w.Add(&s, l.row)
}

func (c *committer) reject(b *block, l *line) error {
	n := int64(l.n)
	if b.overlong {
		n = b.size
	}
	return c.rejects.add(rejectLine{
		File: c.row.Sources[b.file].Path, Line: c.cur.At.Line, Offset: b.offset + int64(l.off), Bytes: n,
		Reason: l.verdict.reason, Message: l.verdict.message,
	}, b.text[l.off:][:l.n])
}

// checkpoint makes everything taken so far durable, in order: samples,
// rejected lines, then the ledger, which makes it count.
func (c *committer) checkpoint(ctx context.Context) error {
	if err := c.m.w.Flush(ctx); err != nil {
		return err
	}
	if err := c.rejects.sync(); err != nil {
		return err
	}
	c.cur.Rejects = c.rejects.size
	err := c.m.ws.Update(ctx, "merge "+c.row.Name, func(tx *store.Tx) error { return c.m.put(tx, c.row, c.cur, c.raw) })
	if err != nil {
		return err
	}
	c.since = 0
	row := c.row
	row.Reasons = maps.Clone(row.Reasons)
	row.Sources = append([]store.SourceFile(nil), row.Sources...)
	c.m.rows[row.Order], c.m.cur = row, c.cur
	return nil
}

// rowsHash hashes the content hashes of a dataset's rows.
func (m *merger) rowsHash(row store.DatasetRow) (string, error) {
	rows, err := samples.OpenRows(m.ws.SamplesDir(row.SamplesGen), row.FirstRow+row.Accepted)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for i := row.FirstRow; i < rows.Len(); i++ {
		c := rows.Content(i)
		h.Write(c[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), rows.Close()
}

// diskUsage sums the blocks that the files under dir take.
func diskUsage(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			n += sys.Blocks * 512
		}
		return nil
	})
	return n, err
}
