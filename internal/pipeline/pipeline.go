// Package pipeline runs phases over the ledger: what is done and unchanged is
// skipped, what was interrupted is resumed, what changed is refused with what
// changed, what redoing costs and the command that decides.
//
// # Crash safety
//
// A phase becomes running before its first effect and done after its last. A
// phase's own progress is its cursor, moved by the phase in the same ledger
// change as its results.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/store"
)

// Phase is one step of a run.
type Phase struct {
	Name        string
	Fingerprint func(context.Context) ([]store.Part, error)
	// Run does what the ledger says is not done yet.
	Run func(context.Context) error
	// Reset forgets what the phase did, before it starts anew; may be nil.
	Reset func(context.Context) error
	// Extends says that the new fingerprint only adds to the old one, so that
	// the finished work stands and Run has just the rest to do; may be nil.
	Extends func(old, now []store.Part) bool
	// Cost says in a few words what redoing it means; may be nil.
	Cost func() string
}

// Runner runs phases of one workspace.
type Runner struct {
	WS      *store.Workspace
	Now     func() time.Time
	Command func(redo string) string // the command line that redoes a phase
}

// Do brings phase p to done. It returns false where there was nothing to do.
func (r *Runner) Do(ctx context.Context, p Phase) (bool, error) {
	row, known, err := r.row(p.Name)
	if err != nil {
		return false, err
	}
	fp, err := p.Fingerprint(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.Name, err)
	}
	// A row without a fingerprint only holds the progress of a proof.
	fresh := !known || row.State == store.Pending || row.State == store.Stale || len(row.Fingerprint) == 0
	changed := !fresh && !slices.Equal(row.Fingerprint, fp)
	if changed && p.Extends != nil && p.Extends(row.Fingerprint, fp) {
		changed = false
		row.State = store.Running
	}
	switch {
	case changed:
		return false, r.refuse(p, row, fp)
	case row.State == store.Done:
		return false, nil
	}
	return true, r.run(ctx, p, row, fp, fresh)
}

func (r *Runner) row(name string) (row store.PhaseRow, ok bool, err error) {
	err = r.WS.View(func(rd store.Reader) error {
		row, ok, err = rd.Phase(name)
		return err
	})
	row.Name = name
	return row, ok, err
}

func (r *Runner) run(ctx context.Context, p Phase, row store.PhaseRow, fp []store.Part, fresh bool) error {
	if fresh {
		if p.Reset != nil {
			if err := p.Reset(ctx); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		row = store.PhaseRow{Name: p.Name, Unit: row.Unit, Started: r.Now()}
	}
	row.State, row.Fingerprint, row.Error, row.Finished = store.Running, fp, "", time.Time{}
	if err := r.put(ctx, row); err != nil {
		return err
	}
	began := r.Now()
	err := r.WS.AsSpace(p.Run(ctx))
	if uerr := r.finish(ctx, p.Name, r.Now().Sub(began), err); uerr != nil {
		return errors.Join(err, uerr)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// finish records how the phase ended. A failure to record that it failed is
// not worth hiding the cause: the row then stays running, which is true.
func (r *Runner) finish(ctx context.Context, name string, took time.Duration, cause error) error {
	row, _, err := r.row(name)
	if err != nil {
		return err
	}
	row.Seconds += took.Seconds()
	switch {
	case cause == nil:
		row.State, row.Finished = store.Done, r.Now()
		if row.Total < row.Done {
			row.Total = row.Done
		}
	case errors.Is(cause, store.ErrDecision):
		row.State, row.Error = store.Blocked, cause.Error()
	case errors.Is(cause, store.ErrStopped), errors.Is(cause, context.Canceled):
		// interrupted: still running, to be resumed
	default:
		row.State, row.Error = store.Failed, cause.Error()
	}
	err = r.put(context.WithoutCancel(ctx), row)
	if cause != nil && err != nil {
		return nil
	}
	return err
}

func (r *Runner) put(ctx context.Context, row store.PhaseRow) error {
	return r.WS.Update(ctx, "phase "+row.Name, func(tx *store.Tx) error { return tx.PutPhase(row) })
}

// Redo makes phase name pending and every later one that has begun stale.
func (r *Runner) Redo(ctx context.Context, name string) error {
	at := slices.Index(store.Phases(), name)
	if at < 0 {
		return fmt.Errorf("there is no phase %q: phases are %v", name, store.Phases())
	}
	return r.WS.Update(ctx, "redo "+name, func(tx *store.Tx) error {
		for i, n := range store.Phases()[at:] {
			row, ok, err := tx.Phase(n)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			row.State, row.Error, row.Cursor = store.Stale, "", nil
			if i == 0 {
				row.State = store.Pending
			}
			row.Done, row.Total = 0, 0
			if err := tx.PutPhase(row); err != nil {
				return err
			}
		}
		return nil
	})
}

// Changes names what differs between two fingerprints.
func Changes(old, now []store.Part) []string {
	was := map[string]string{}
	for _, p := range old {
		was[p.Key] = p.Value
	}
	var out []string
	for _, p := range now {
		v, ok := was[p.Key]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is new: %s", p.Key, p.Value))
		case v != p.Value:
			out = append(out, fmt.Sprintf("%s changed from %s to %s", p.Key, v, p.Value))
		}
		delete(was, p.Key)
	}
	for _, p := range old {
		if v, gone := was[p.Key]; gone {
			out = append(out, fmt.Sprintf("%s is gone (was %s)", p.Key, v))
		}
	}
	if len(out) == 0 && !slices.Equal(old, now) {
		out = append(out, "the order of the inputs changed")
	}
	return out
}

func (r *Runner) refuse(p Phase, row store.PhaseRow, fp []store.Part) error {
	changes := Changes(row.Fingerprint, fp)
	d := &store.DecisionError{
		What:     fmt.Sprintf("%s was done with other settings: %s", p.Name, changes[0]),
		Commands: []string{r.Command(p.Name)},
	}
	if row.State != store.Done {
		d.What = fmt.Sprintf("%s was begun with other settings: %s", p.Name, changes[0])
	}
	d.Details = append(d.Details, changes[1:]...)
	if p.Cost != nil {
		d.Details = append(d.Details, "redoing it: "+p.Cost())
	}
	d.Details = append(d.Details, "nothing was changed; put the setting back to keep what is done, or redo the phase")
	return d
}
