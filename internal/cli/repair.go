package cli

import (
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/states"

	"github.com/urfave/cli/v2"
)

// covers says whether a problem is damage that is recorded.
func covers(d store.DamagedEntry, p states.Problem) bool {
	return int(d.Blob) == p.Blob && (d.Whole || int(d.Entry) == p.Entry)
}

// repair plans anew and records what is damaged: the new generation points to
// every sound sample and computes the damaged ones. What is damaged stays where
// it is, since the rest of its blob is still in use. The old plan is put out of
// force first: damage that is on record is not found again, so whoever goes on
// after an interruption must see that the plan is not done.
func (k *checker) repair() error {
	for _, p := range k.doc.Problems {
		if p.Blob < 0 {
			return withHint(fmt.Errorf("%w: %s; only blobs can be repaired by computing samples anew", errDamage, p), "restore %s from a copy, or delete the generation and run again", p.Path)
		}
		fmt.Fprintln(k.out, p)
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
		if len(k.damaged) == 0 {
			return j.goOn(k.c.Context)
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
	if c.Bool("rebuild-log") {
		fn, from, to = store.RebuildLog, "manifest.db", "checkpoints.jsonl"
	}
	if err := fn(c.Context, dir, store.Options{FS: e.fs, Command: "check"}); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%s is made anew from %s\n", to, from)
	return nil
}
