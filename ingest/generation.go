package ingest

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// KindSamples is the Kind of the generations that hold merged samples.
const KindSamples = "samples"

func now() time.Time { return time.Now().UTC() }

// loadGeneration finds the samples generation that is being built, if any.
func (m *merger) loadGeneration(r store.Reader) error {
	gens, err := r.Generations()
	if err != nil {
		return err
	}
	for _, g := range gens {
		if g.Kind == KindSamples && g.State == store.GenBuilding {
			m.gen = g
		}
	}
	return nil
}

// openWriter opens the generation being built, or begins the next one.
func (m *merger) openWriter(ctx context.Context) error {
	if m.gen.ID == 0 {
		err := m.ws.Update(ctx, "begin samples generation", func(tx *store.Tx) error {
			id, err := tx.Next("generation")
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(m.ws.Dir(), m.ws.SamplesDir(id))
			if err != nil {
				return err
			}
			t := now()
			m.gen = store.GenerationRow{ID: id, Name: fmt.Sprintf("samples-%06d", id), Origin: "made", Kind: KindSamples,
				State: store.GenBuilding, Path: rel, Created: t, Changed: t}
			return tx.PutGeneration(m.gen)
		})
		if err != nil {
			return err
		}
	}
	dir := m.ws.SamplesDir(m.gen.ID)
	keep, err := m.keep()
	if err != nil {
		return err
	}
	m.w, err = samples.OpenWriter(dir, m.counted(), samples.Options{
		FS: m.ws.FS(), Memory: m.o.Memory / 4,
		Guard: func(need int64) error { return store.CheckSpace(dir, need, keep) },
	})
	return err
}

// keep is how many bytes of the volume must stay free.
func (m *merger) keep() (int64, error) {
	sp, err := fsx.SpaceAt(m.ws.Dir())
	if err != nil {
		return 0, err
	}
	return m.o.Reserve.Of(sp.Total), nil
}

// loadSeen fills the set of content hashes from the row indexes, as far as the
// ledger counts them.
func (m *merger) loadSeen() error {
	if m.o.Dedup != DedupContent {
		return nil
	}
	counts, order := map[uint32]int64{}, []uint32(nil)
	var all int64
	for _, r := range m.rows {
		if _, ok := counts[r.SamplesGen]; !ok {
			order = append(order, r.SamplesGen)
		}
		counts[r.SamplesGen] += r.Accepted
		all += r.Accepted
	}
	m.seen = newSeenSet(all)
	for _, gen := range order {
		rows, err := samples.OpenRows(m.ws.SamplesDir(gen), counts[gen])
		if err != nil {
			return err
		}
		for i := range rows.Len() {
			m.seen.add(rows.Content(i))
		}
		if err := rows.Close(); err != nil {
			return err
		}
	}
	return nil
}

// seal completes the generation.
func (m *merger) seal(ctx context.Context) error {
	m.seen = nil // nothing more is added
	rows := m.w.Rows()
	if err := m.w.Seal(ctx); err != nil {
		return err
	}
	m.w = nil
	return m.recordSeal(ctx, rows)
}

// finishSeal records a generation that was sealed right before a crash.
func (m *merger) finishSeal(ctx context.Context) error {
	if m.gen.ID == 0 {
		return nil
	}
	rows, sealed, err := samples.Sealed(m.ws.SamplesDir(m.gen.ID))
	if err != nil || !sealed {
		return err
	}
	if n := m.counted(); n != rows {
		return &store.CorruptError{Path: m.ws.SamplesDir(m.gen.ID), Offset: -1, Err: fmt.Errorf("is sealed with %d rows, the ledger counts %d", rows, n)}
	}
	// The crash may have come between the rename and the fsync of the directory.
	if err := m.ws.FS().SyncDir(m.ws.SamplesDir(m.gen.ID)); err != nil {
		return err
	}
	if err := m.recordSeal(ctx, rows); err != nil {
		return err
	}
	m.gen = store.GenerationRow{}
	return nil
}

// counted is how many rows of the generation being built the ledger counts.
func (m *merger) counted() int64 {
	rows, _ := m.sum(-1)
	return rows
}

// sum adds up rows and tokens of the generation being built, leaving out the
// dataset of an order.
func (m *merger) sum(besides int) (rows, tokens int64) {
	for _, r := range m.rows {
		if r.SamplesGen == m.gen.ID && r.Order != besides {
			rows += r.Accepted
			tokens += r.Tokens
		}
	}
	return rows, tokens
}

// putBuilding makes the row of the generation being built count a dataset's row
// as it is to be.
func (m *merger) putBuilding(tx *store.Tx, row store.DatasetRow) error {
	if m.gen.ID == 0 || row.SamplesGen != m.gen.ID {
		return nil
	}
	g := m.gen
	rows, tokens := m.sum(row.Order)
	g.Samples, g.Tokens = rows+row.Accepted, tokens+row.Tokens
	g.Distinct = g.Samples
	return tx.PutGeneration(g)
}

func (m *merger) recordSeal(ctx context.Context, rows int64) error {
	bytes, err := diskUsage(m.ws.SamplesDir(m.gen.ID))
	if err != nil {
		return err
	}
	g := m.gen
	g.State, g.Samples, g.Distinct, g.Bytes = store.GenSealed, rows, rows, bytes
	g.Sealed = now()
	g.Changed = g.Sealed
	_, g.Tokens = m.sum(-1)
	m.gen = g
	return m.ws.Update(ctx, "seal samples generation", func(tx *store.Tx) error { return tx.PutGeneration(g) })
}
