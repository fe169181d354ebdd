package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"eaglebatch/gc"
	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// adoptConfigured registers the directories that gc.adopt names and the ledger
// does not know yet.
func (j *job) adoptConfigured(ctx context.Context) error {
	known := map[string]bool{}
	if err := j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			known[g.Name] = true
		}
		return err
	}); err != nil {
		return err
	}
	for _, a := range j.cfg.GC.Adopt {
		if known[a.Name] {
			continue
		}
		g, err := gc.Adopt(ctx, j.ws, a.Path, a.Name, j.rep)
		if errors.Is(err, fs.ErrNotExist) {
			return withHint(fmt.Errorf("%w: gc.adopt: %s: %w", config.ErrConfig, a.Name, err), "take %s out of gc.adopt if it is deleted already", a.Name)
		}
		if err != nil {
			return err
		}
		j.rep.Note("adopted %s as generation %d (%s): %s files, %s", a.Path, g.ID, g.Name, human.Count(g.Adopted.Files), human.Sized(g.Adopted.Bytes))
	}
	return nil
}
