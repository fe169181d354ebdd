package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/extract/export/trainer"
	"eaglebatch/extract/exporter"
	"eaglebatch/internal/human"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

func (e *env) exportStates(ctx context.Context, c *cli.Context, dir, out, layout string) error {
	names := append([]string{"jsonl"}, trainer.Names()...)
	if !slices.Contains(names, layout) {
		err := usagef("--to %q: want one of %s", layout, strings.Join(names, ", "))
		if near := human.Nearest(layout, names); near != "" {
			err = withHint(err, "did you mean %s?", near)
		}
		return err
	}
	for _, f := range []string{"compress", "segments", "force"} {
		if c.IsSet(f) {
			return usagef("--%s goes with --to jsonl only", f)
		}
	}
	gen, err := sealedStates(dir, c.String("generation"))
	if err != nil {
		return err
	}
	r, err := exporter.States(ctx, exporter.StatesOptions{
		FS: e.fs, Generation: gen, Layout: layout, Dir: out, Split: c.String("split"), Synthetic: c.Bool("synthetic"),
	}, e.reporter(c))
	if errors.Is(err, exporter.ErrExists) {
		err = withHint(err, "export into a new directory, or delete that one")
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printJSON(r)
	}
	return e.printStates(r)
}

// sealedStates finds the directory of a generation to export: the one named, or
// the newest that is sealed and no proof.
func sealedStates(dir, ref string) (string, error) {
	snap, err := store.Inspect(dir)
	if snap == nil {
		return "", err
	}
	gens, err := snap.Generations()
	if err != nil {
		return "", err
	}
	if ref == "" {
		var newest uint32
		for _, g := range gens {
			if g.Origin != "adopted" && g.Kind != kindSamples && g.Kind != "proof" && g.State == store.GenSealed {
				newest = max(newest, g.ID)
			}
		}
		if newest == 0 {
			return "", withHint(errors.New("there is no sealed generation of states yet"), "'eaglebatch run' makes one")
		}
		ref = strconv.FormatUint(uint64(newest), 10)
	}
	g, err := findGeneration(snap, ref)
	if err != nil {
		return "", err
	}
	switch {
	case g.Origin == "adopted" || g.Kind == kindSamples:
		return "", usagef("generation %q holds no states that eaglebatch made", ref)
	case g.State != store.GenSealed:
		return "", withHint(fmt.Errorf("generation %q is %s: only a sealed one is exported", ref, g.State), "'eaglebatch run' finishes it")
	case filepath.IsAbs(g.Path):
		return g.Path, nil
	}
	return filepath.Join(dir, g.Path), nil
}

func (e *env) printStates(r exporter.StatesReport) error {
	last := "before the final norm"
	if r.LastNormed {
		last = "after the final norm"
	}
	fmt.Fprintf(e.out, "exported generation %d, split %s, for %s: %s samples, %s tokens, %s in %s; the last states are %s\n",
		r.Generation, r.Split, r.Layout, human.Count(r.Samples), human.Count(r.Tokens), human.Bytes(r.Bytes), r.Dir, last)
	if r.Skipped > 0 {
		fmt.Fprintf(e.out, "%s of them were there already\n", human.Count(r.Skipped))
	}
	if r.Others != "" {
		fmt.Fprintf(e.out, "not exported: split %s (--split, into another directory)\n", r.Others)
	}
	return nil
}
