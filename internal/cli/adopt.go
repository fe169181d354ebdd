package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"eaglebatch/gc"
	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// adoptConfigured registers the directories that gc.adopt names and the ledger
// does not know yet.
func (j *job) adoptConfigured(ctx context.Context) error {
	known := map[string]store.GenerationRow{}
	if err := j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			known[g.Name] = g
		}
		return err
	}); err != nil {
		return err
	}
	for _, a := range j.cfg.GC.Adopt {
		if g, ok := known[a.Name]; ok {
			if err := sameTree(g, a.Path); err != nil {
				return err
			}
			continue
		}
		g, err := gc.Adopt(ctx, j.ws, a.Path, a.Name, j.rep, j.protected()...)
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

// sameTree fails where a name in gc.adopt stands for another directory than the
// one that was adopted by it: a decision would delete that one.
func sameTree(g store.GenerationRow, path string) error {
	if retain.IsGone(g) || g.Path == "" {
		return nil
	}
	abs, err := filepath.Abs(path)
	if err != nil || g.Path == abs {
		return err
	}
	return withHint(fmt.Errorf("%w: gc.adopt: %s is %s here, but generation %d of that name is %s", config.ErrConfig, g.Name, abs, g.ID, g.Path),
		"give the other directory another name, or put the path back")
}

// protected lists what the configuration needs and gc must not take with a
// directory of old states: itself, the datasets, the model.
func (s *session) protected() (out []gc.Protected) {
	add := func(what, path string) {
		if abs, err := filepath.Abs(path); err == nil && path != "" {
			out = append(out, gc.Protected{What: what, Path: abs})
		}
	}
	add("the configuration", s.cfg.File)
	add("the model", s.cfg.Model)
	for _, d := range s.cfg.Datasets {
		for _, path := range d.Path {
			what := "dataset " + d.Name
			found, err := filepath.Glob(path)
			if err != nil || len(found) == 0 {
				found = []string{path}
			}
			for _, f := range found {
				add(what, f)
			}
		}
	}
	return out
}
