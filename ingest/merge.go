package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// cursor is the phase's private place in its work.
type cursor struct {
	Dataset string   `json:"dataset"`
	At      position `json:"at"`
	Rejects int64    `json:"rejects"` // length of the dataset's rejects file
}

// merger is one run of the phase.
type merger struct {
	ws  *store.Workspace
	o   Options
	rep progress.Reporter

	rows    []store.DatasetRow // of the ledger, by order
	cur     cursor
	sources [][]source // of each configured dataset; nil where it is merged
	total   int64      // bytes of all sources
	done    int64      // of them, what earlier runs read
	gen     store.GenerationRow
	w       *samples.Writer
	seen    *seenSet // nil: duplicates are kept
}

// load reads the ledger and compares it with what is configured.
func (m *merger) load() error {
	err := m.ws.View(func(r store.Reader) (err error) {
		if m.rows, err = r.Datasets(); err != nil {
			return err
		}
		phase, _, err := r.Phase(store.PhaseMerge)
		if err != nil {
			return err
		}
		m.done = phase.Done
		if len(phase.Cursor) > 0 {
			if err := json.Unmarshal(phase.Cursor, &m.cur); err != nil {
				return fmt.Errorf("cursor of the merge: %w", err)
			}
		}
		return m.loadGeneration(r)
	})
	if err != nil {
		return err
	}
	for i, row := range m.rows {
		if i >= len(m.o.Datasets) || m.o.Datasets[i].Name != row.Name {
			return fmt.Errorf("dataset %q is merged as number %d but not configured there: datasets can only be added behind those merged; put it back, or start anew with run --redo merge", row.Name, i+1)
		}
		if !row.Done && i != len(m.rows)-1 {
			return &store.CorruptError{Path: m.ws.Dir(), Key: "dataset " + row.Name, Offset: -1, Err: errors.New("is not complete although a later one was begun")}
		}
	}
	return m.findSources()
}

// findSources expands the paths of the datasets that are not merged yet; those
// begun keep the files they were begun with.
func (m *merger) findSources() error {
	m.sources = make([][]source, len(m.o.Datasets))
	for i, d := range m.o.Datasets {
		if i < len(m.rows) {
			for _, f := range m.rows[i].Sources {
				s := source{path: f.Path, size: f.Size, mtime: f.ModTime}
				if st, err := statSource(f.Path); err == nil {
					s.info = st.info
				}
				m.sources[i] = append(m.sources[i], s)
				m.total += f.Size
			}
			continue
		}
		found, err := expand(d)
		if err != nil {
			return err
		}
		m.sources[i] = found
		for _, s := range found {
			m.total += s.size
		}
	}
	return checkTwice(m.o.Datasets, m.sources)
}

func (m *merger) run(ctx context.Context) error {
	if len(m.rows) == len(m.o.Datasets) && m.gen.ID == 0 && m.rows[len(m.rows)-1].Done {
		return nil
	}
	m.rep.Start(progress.Phase{Name: store.PhaseMerge, Unit: "bytes", Done: min(m.done, m.total), Total: m.total})
	defer m.rep.Finish()
	if err := m.finishSeal(ctx); err != nil {
		return err
	}
	if len(m.rows) == len(m.o.Datasets) && m.gen.ID == 0 {
		return nil
	}
	if err := m.openWriter(ctx); err != nil {
		return err
	}
	if err := m.loadSeen(); err != nil {
		return err
	}
	for i := range m.o.Datasets {
		if i < len(m.rows) && m.rows[i].Done {
			continue
		}
		if err := m.dataset(ctx, i); err != nil {
			return err
		}
	}
	return m.seal(ctx)
}

// dataset merges dataset i, or what is left of it, and judges its rejects.
func (m *merger) dataset(ctx context.Context, i int) error {
	if i == len(m.rows) {
		if err := m.begin(ctx, i); err != nil {
			return err
		}
	}
	if m.cur.Dataset != m.rows[i].Name {
		return &store.CorruptError{Path: m.ws.Dir(), Key: "phase merge", Offset: -1,
			Err: fmt.Errorf("the cursor is in dataset %q, the ledger in %q", m.cur.Dataset, m.rows[i].Name)}
	}
	if m.cur.At.File < len(m.rows[i].Sources) {
		if err := m.read(ctx, i); err != nil {
			return fmt.Errorf("dataset %q: %w", m.rows[i].Name, err)
		}
	}
	if err := m.judge(m.rows[i]); err != nil {
		return err
	}
	return m.finish(ctx, i)
}

// begin enters a dataset into the ledger with its files as they are now.
func (m *merger) begin(ctx context.Context, i int) error {
	if err := m.ws.FS().Point(fault.MergeBeforeDataset); err != nil {
		return err
	}
	row := store.DatasetRow{Name: m.o.Datasets[i].Name, Order: i, SamplesGen: m.gen.ID, FirstRow: m.w.Rows(), Reasons: map[string]int64{}}
	for _, s := range m.sources[i] {
		row.Sources = append(row.Sources, s.row())
	}
	row.Fingerprint = []store.Part{{Key: partSources, Value: identity(m.sources[i])}}
	cur := cursor{Dataset: row.Name}
	err := m.ws.Update(ctx, "begin dataset "+row.Name, func(tx *store.Tx) (err error) {
		if row.ID, err = tx.Next("dataset"); err != nil {
			return err
		}
		return m.put(tx, row, cur, 0)
	})
	if err != nil {
		return err
	}
	m.rows, m.cur = append(m.rows, row), cur
	return nil
}

// put writes the rows of a dataset, of its generation and of the phase, in one
// change. done is how many bytes of the dataset's current file were read.
func (m *merger) put(tx *store.Tx, row store.DatasetRow, cur cursor, done int64) error {
	if err := errors.Join(tx.PutDataset(row), m.putBuilding(tx, row)); err != nil {
		return err
	}
	phase, ok, err := tx.Phase(store.PhaseMerge)
	if err != nil {
		return err
	}
	if !ok {
		phase = store.PhaseRow{Name: store.PhaseMerge, State: store.Running}
	}
	if phase.Cursor, err = json.Marshal(cur); err != nil {
		return err
	}
	for i := range row.Order {
		for _, s := range m.sources[i] {
			done += s.size
		}
	}
	for _, s := range m.sources[row.Order][:cur.At.File] {
		done += s.size
	}
	phase.Done, phase.Total, phase.Unit = done, m.total, "bytes"
	return tx.PutPhase(phase)
}

// judge stops for a decision where too many lines of a dataset were rejected.
func (m *merger) judge(row store.DatasetRow) error {
	limit := m.o.MaxRejects.Of(row.Lines)
	if row.Rejected <= limit {
		return nil
	}
	var accepted bool
	err := m.ws.View(func(r store.Reader) (err error) {
		_, accepted, err = r.Value(acceptedKey(row.Name))
		return err
	})
	if err != nil || accepted {
		return err
	}
	path := m.ws.RejectsPath(row.Name)
	details, err := firstRejects(path, 5)
	if err != nil {
		return err
	}
	counts := "by reason:"
	for _, reason := range slices.Sorted(keys(row.Reasons)) {
		counts += fmt.Sprintf(" %s %d", reason, row.Reasons[reason])
	}
	return &store.DecisionError{
		What: fmt.Sprintf("dataset %q: %d of %d lines were rejected; merge.max_rejects is %s (%d)",
			row.Name, row.Rejected, row.Lines, m.o.MaxRejects, limit),
		Details: append(append([]string{counts, "all of them: " + path, "the first:"}, details...),
			"accept them, or raise merge.max_rejects in the configuration and run again"),
		Commands: []string{"eaglebatch merge --accept-rejects " + row.Name},
	}
}

// finish marks a dataset as merged.
func (m *merger) finish(ctx context.Context, i int) error {
	row := m.rows[i]
	if row.Lines == 0 {
		m.rep.Note("dataset %q: its files hold no line at all", row.Name)
	}
	sum, err := m.rowsHash(row)
	if err != nil {
		return err
	}
	row.RejectsBytes = m.cur.Rejects
	if row.RejectsHash, err = hashRejects(m.ws.RejectsPath(row.Name), m.cur.Rejects); err != nil {
		return err
	}
	row.Done = true
	row.Fingerprint = append(slices.Clone(row.Fingerprint), store.Part{Key: PartRows, Value: sum})
	err = m.ws.Update(ctx, "finish dataset "+row.Name, func(tx *store.Tx) error { return m.put(tx, row, m.cur, 0) })
	if err != nil {
		return err
	}
	m.rows[i] = row
	return m.ws.FS().Point(fault.MergeAfterDataset)
}
