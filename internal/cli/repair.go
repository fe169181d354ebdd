package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"eaglebatch/extract"
	"eaglebatch/extract/model"
	"eaglebatch/store"
	"eaglebatch/store/states"

	"github.com/urfave/cli/v2"
)

// covers says whether a problem is damage that is recorded.
func covers(d store.DamagedEntry, p states.Problem) bool {
	return int(d.Blob) == p.Blob && (d.Whole || int(d.Entry) == p.Entry)
}

// repair makes anew what follows from other files, and computes damaged states
// again: it plans anew and records what is damaged, so that the new generation
// points to every sound sample and computes the damaged ones. What is damaged
// stays where it is, since the rest of its blob is still in use. The old plan is
// put out of force first: damage that is on record is not found again, so
// whoever goes on after an interruption must see that the plan is not done.
func (k *checker) repair() error {
	var reseal []uint32
	for _, p := range k.doc.Problems {
		fmt.Fprintln(k.out, p)
		lost := slices.Contains(k.lost, p.Generation)
		switch {
		case p.Blob >= 0, lost && len(k.damaged[p.Generation]) > 0:
		case lost, p.Generation != 0 && remakes(filepath.Base(p.Path)):
			if !slices.Contains(reseal, p.Generation) {
				reseal = append(reseal, p.Generation)
			}
		default:
			return withHint(fmt.Errorf("%w: %s; nothing was repaired", errDamage, p), "%s", p.Hint)
		}
	}
	cfg, err := k.load(k.c)
	if err != nil {
		return err
	}
	return k.withSession(k.c, cfg, false, func(s *session) error {
		j, err := newJob(s)
		if err != nil {
			return err
		}
		slices.Sort(reseal) // older ones first: the manifests of newer ones name theirs
		for _, gen := range reseal {
			if err := j.reseal(k.c.Context, gen); err != nil {
				return fmt.Errorf("generation %d: %w", gen, err)
			}
			fmt.Fprintf(k.out, "generation %d is sealed anew\n", gen)
		}
		if begun, err := k.unfinished(); err != nil || len(k.damaged) == 0 {
			if err == nil && begun {
				err = j.goOn(k.c.Context)
			}
			return err
		}
		if err := j.runner().Redo(k.c.Context, store.PhasePlan); err != nil {
			return err
		}
		if err := s.ws.Update(k.c.Context, "damage", func(tx *store.Tx) error {
			for gen, found := range k.damaged {
				if err := tx.PutDamaged(gen, found); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		return j.goOn(k.c.Context)
	})
}

// reseal makes the files of a generation anew that follow from others.
func (j *job) reseal(ctx context.Context, gen uint32) (err error) {
	var g store.GenerationRow
	if err := j.ws.View(func(r store.Reader) (err error) {
		g, _, err = r.Generation(gen)
		return err
	}); err != nil {
		return err
	}
	head, err := model.OpenHead(j.cfg.Model)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, head.Close()) }()
	case !isNoWeights(err):
		return fmt.Errorf("model %q: %w", j.cfg.Model, err)
	}
	return extract.Reseal(ctx, j.ws, g, head, j.modelF, j.rep)
}

// unfinished says whether a repair was begun and interrupted.
func (k *checker) unfinished() (bool, error) {
	if len(k.doc.Known) == 0 {
		return false, nil
	}
	for _, name := range []string{store.PhasePlan, store.PhaseExtract} {
		row, ok, err := k.snap.Phase(name)
		if err != nil || ok && row.State != store.Done {
			return err == nil, err
		}
	}
	return false, nil
}

// rebuild makes one of the two forms of the ledger from the other.
func (e *env) rebuild(c *cli.Context, dir string) error {
	fn, from, to := store.RebuildManifest, "checkpoints.jsonl", "manifest.db"
	switch {
	case c.Bool("rebuild-log"):
		fn, from, to = store.RebuildLog, "manifest.db", "checkpoints.jsonl"
	case c.Bool("rebuild-marker"):
		fn, from, to = store.RebuildMarker, "checkpoints.jsonl", "EAGLEBATCH"
	}
	if err := fn(c.Context, dir, store.Options{FS: e.fs, Command: "check"}); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%s is made anew from %s\n", to, from)
	return nil
}
