package cli

import (
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/states"
)

// covers says whether a problem is damage that is recorded.
func covers(d store.DamagedEntry, p states.Problem) bool {
	return int(d.Blob) == p.Blob && (d.Whole || int(d.Entry) == p.Entry)
}

// repair records what is damaged and plans anew: the new generation points to
// every sound sample and computes the damaged ones. What is damaged stays where
// it is, since the rest of its blob is still in use.
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
		j, err := newJob(s)
		if err != nil {
			return err
		}
		return j.replan(k.c.Context)
	})
}
