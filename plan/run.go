package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
)

// textMemory bounds what Badger takes where whole samples must be read.
const textMemory = 64 << 20

// planner is one planning: the corpus, what is kept of it and where it comes
// from.
type planner struct {
	o     Options
	shape shape
	c     *corpus
	t     *texts
	w     *windows

	distinct *distinct
	older    []older
	tally    tally
	splits   [2]int64 // planned positions: training, eval

	newSamples, newTokens, rawBytes int64
	reused                          int64           // positions
	needs                           map[uint32]bool // generations that serve them

	blobSize int64
	blobWhy  string
}

func newPlanner(ws *store.Workspace, r store.Reader, o Options) (*planner, error) {
	c, err := openCorpus(ws, r)
	if err != nil {
		return nil, err
	}
	p := &planner{o: o, needs: map[uint32]bool{}, shape: shapeOf(o.Meta, o.Rows), c: c, t: &texts{c: c, memory: textMemory}}
	p.w = &windows{t: p.t, size: o.MaxTokens}
	p.distinct = newDistinct(c, selects(o.Rows))
	return p, nil
}

// Close unmaps everything.
func (p *planner) Close() error { return errors.Join(p.closeOlder(), p.t.Close(), p.c.Close()) }

// survey counts what is kept, finds the distinct samples and those of them
// that older generations hold.
func (p *planner) survey(ctx context.Context, r store.Reader, rep progress.Reporter) error {
	s, err := newSelector(p.c, p.o, p.w)
	if err != nil {
		return err
	}
	err = s.pass(ctx, func(at place, q piece) error {
		if at.eval {
			p.splits[1]++
		} else {
			p.splits[0]++
		}
		_, err := p.distinct.add(q)
		return err
	}, nil)
	if err != nil {
		return err
	}
	p.tally = s.tally
	p.distinct.seal()
	if err := p.reuse(ctx, r, rep); err != nil {
		return err
	}
	for i, source := range p.distinct.source {
		need := p.distinct.need[i]
		if source != 0 {
			p.reused += int64(p.distinct.uses[i])
			p.needs[p.older[source-1].id] = true
			continue
		}
		p.newSamples++
		p.newTokens += int64(need)
		p.rawBytes += p.shape.bytes(p.distinct.row(uint32(i)), need)
	}
	return nil
}

// Run makes the plan: writes its index, records it. Nothing counts until the
// ledger names the plan; what a crash leaves before that is a file that nothing
// points to.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (row store.PlanRow, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return row, err
	}
	var p *planner
	var d detail
	defer func() {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	err = ws.View(func(r store.Reader) error {
		if p, err = newPlanner(ws, r, o); err != nil {
			return err
		}
		rep.Start(progress.Phase{Name: store.PhasePlan, Unit: "samples", Total: p.c.order.Len()})
		if err = p.survey(ctx, r, rep); err != nil {
			return err
		}
		row, d, err = p.foretell(r)
		return err
	})
	if err != nil {
		return row, err
	}
	defer rep.Finish()
	err = ws.Update(ctx, "plan number", func(tx *store.Tx) error {
		row.ID, err = tx.Next("plan")
		return err
	})
	if err != nil {
		return row, err
	}
	if row.Blobs, err = p.writeIndex(ctx, ws, row.ID, rep); err != nil {
		return row, fmt.Errorf("plan index: %w", err)
	}
	if err := ws.FS().Point(fault.PlanAfterIndex); err != nil {
		return row, err
	}
	d.BlobWhy = p.blobWhy
	err = ws.Update(ctx, "plan", func(tx *store.Tx) error {
		return errors.Join(tx.PutPlan(row), putDetail(tx, row, d))
	})
	return row, err
}

// foretell fills in the plan's row: what it keeps, what that takes and whether
// it fits.
func (p *planner) foretell(r store.Reader) (store.PlanRow, detail, error) {
	t, o := p.tally, p.o
	row := store.PlanRow{
		Order: p.c.row.ID, MaxTokens: o.MaxTokens, Overlong: o.Overlong, Drop: o.Drop, Layers: o.Meta.Layers,
		Hidden: o.Meta.Hidden, DType: o.Meta.DType, Rows: o.Rows, Codec: o.Meta.Codec, SourceModel: o.Model,
		Samples: t.planned, Tokens: t.tokens, Dropped: t.dropped, OverLength: t.overLength, Emptied: t.emptied,
		Truncated: t.truncated, LostTokens: t.lost,
		NewSamples: p.newSamples, NewTokens: p.newTokens, BytesPerToken: p.shape.perToken(), RawBytes: p.rawBytes,
	}
	row.Identity, row.Kind = o.Identity, retain.KindStates
	if o.Limit > 0 {
		row.Kind = retain.KindProof
	}
	b, err := findBasis(r, o)
	if err != nil {
		return row, detail{}, err
	}
	row.Reused, row.Repeated = p.reused, t.planned-p.reused-p.newSamples
	row.Ratio, row.Rate = b.Ratio, b.rateFor(p)
	row.ExpectedBytes = row.RawBytes
	if b.Ratio > 0 {
		row.ExpectedBytes = int64(b.Ratio * float64(row.RawBytes))
	}
	if row.Rate > 0 {
		row.Seconds = float64(row.NewTokens) / row.Rate
	}
	room, err := MeasureRoom(p.c.ws, r, o.Reserve, o.GCNames, slices.Sorted(maps.Keys(p.needs)))
	if err != nil {
		return row, detail{}, err
	}
	room.Beside = beside(o, t.planned)
	room.apply(&row)
	roomThen := room.spare() + room.Reclaimable
	if row.Decision == store.Short {
		roomThen = 0 // it will be another volume, or another plan
	}
	p.blobSize, p.blobWhy = chooseBlobSize(blobNeeds{asked: o.BlobSize, total: row.RawBytes, samples: p.newSamples, room: roomThen,
		memory: o.Memory, bytesPerToken: row.BytesPerToken, rate: row.Rate})
	row.BlobBytes = p.blobSize
	return row, detail{Options: o, Basis: b, Reclaim: room.From, Needs: slices.Sorted(maps.Keys(p.needs)), BlobBytes: row.BlobBytes}, nil
}

func (p *planner) writeIndex(ctx context.Context, ws *store.Workspace, id uint32, rep progress.Reporter) (blobs int64, err error) {
	if err := ws.FS().Point(fault.PlanBeforeIndex); err != nil {
		return 0, err
	}
	m := p.o.Meta
	m.Generation, m.Blob, m.Datasets, m.Rows = 0, 0, p.c.names(), ""
	if selects(p.o.Rows) {
		m.Rows = p.o.Rows
	}
	if err := ws.FS().MkdirAll(filepath.Dir(ws.PlanPath(id))); err != nil {
		return 0, err
	}
	w, err := genindex.Create(ws.FS(), ws.PlanPath(id), genindex.Meta{Datasets: m.Datasets, Blob: m})
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Abort())
		}
	}()
	if blobs, err = p.pack(ctx, w); err != nil {
		return 0, err
	}
	if err = p.writePositions(ctx, w, rep); err != nil {
		return 0, err
	}
	w.Splits(p.splitTable())
	return blobs, w.Finish()
}

func (p *planner) splitTable() []genindex.Split {
	s := []genindex.Split{{Name: "train", Count: p.splits[0]}}
	if p.splits[1] > 0 {
		s = append(s, genindex.Split{Name: "eval", First: p.splits[0], Count: p.splits[1]})
	}
	return s
}

// writePositions goes over the order once more and points each position at its
// blob entry. Only where its mask is not that of the entry, since an equal
// sample was masked otherwise, is a mask written.
func (p *planner) writePositions(ctx context.Context, w *genindex.Writer, rep progress.Reporter) error {
	s, err := newSelector(p.c, p.o, p.w)
	if err != nil {
		return err
	}
	d := p.distinct
	err = s.pass(ctx, func(at place, q piece) error {
		_, number, ok := d.find(d.key(q.row))
		if !ok {
			return fmt.Errorf("merged row %d changed while it was planned", q.merged)
		}
		pos := genindex.Position{Blob: d.blob[number], Entry: d.entry[number], Rows: q.rows,
			Dataset: uint32(q.set), Sample: uint64(at.index), Mask: genindex.NoMask}
		if q.split {
			pos.Sample = blob.WindowSample(uint64(at.index), q.window)
		}
		if s := d.source[number]; s != 0 {
			pos.Gen = p.older[s-1].id
		}
		var mask []byte
		if p.entryContent(number) != q.row.Content {
			if mask, err = p.w.mask(ctx, at, q); err != nil {
				return err
			}
		}
		rep.Add(progress.Delta{Units: 1, Tokens: int64(q.rows)})
		return w.Position(pos, mask)
	}, func(place, outcome) { rep.Add(progress.Delta{Units: 1}) })
	if err != nil {
		return err
	}
	if s.tally != p.tally {
		return fmt.Errorf("accounting: the second pass over the order found %+v, the first %+v", s.tally, p.tally)
	}
	return nil
}
