package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"eaglebatch/gc"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"

	"github.com/urfave/cli/v2"
)

func (e *env) gcCommand() *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "show what can be reclaimed; with --apply, reclaim it",
		Description: "A dry run by default. --apply moves what nothing needs to the trash, and unlinks what has\n" +
			"lain there for the grace period. --now --yes NAME deletes generation NAME at once.",
		Flags: []cli.Flag{
			jsonFlag(),
			&cli.BoolFlag{Name: "apply", Usage: "do it"},
			&cli.StringFlag{Name: "plan-hash", Usage: "apply only if the plan still has `HASH`"},
			&cli.IntFlag{Name: "keep", Usage: "keep the `N` newest sealed generations (gc.keep)"},
			&cli.DurationFlag{Name: "min-age", Usage: "grace period in the trash (gc.min_age)"},
			&cli.StringSliceFlag{Name: "name", Usage: "reclaim generation `NAME` although gc.keep would hold it"},
			&cli.BoolFlag{Name: "now", Usage: "no grace period; needs --yes NAME for each generation, or its name typed"},
			&cli.StringSliceFlag{Name: "yes", Usage: "the name of the generation, as confirmation"},
			&cli.BoolFlag{Name: "no-fallback", Usage: "understood: nothing newer is sealed"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			return e.withWorkspace(c, func(s *session) error { return s.gcCommand() })
		},
	}
}

// withWorkspace opens the workspace for commands that need no valid
// configuration, only where it lies.
func (e *env) withWorkspace(c *cli.Context, fn func(*session) error) error {
	cfg, err := e.load(c)
	if err != nil && inherited(c, "work") == "" {
		return err
	}
	if err != nil {
		cfg = defaultAt(inherited(c, "work"))
	}
	return e.withSession(c, cfg, false, fn)
}

func (s *session) gcOptions() gc.Options {
	o := gc.Options{Keep: s.cfg.GC.Keep, MinAge: s.cfg.GC.MinAge, Names: s.c.StringSlice("name"), ByHand: true, Now: s.c.Bool("now"), NoFallback: s.c.Bool("no-fallback"), Protected: s.protected()}
	if s.c.IsSet("keep") {
		o.Keep = s.c.Int("keep")
	}
	if s.c.IsSet("min-age") {
		o.MinAge = s.c.Duration("min-age")
	}
	return o
}

func (s *session) gcCommand() error {
	ctx, o := s.c.Context, s.gcOptions()
	switch {
	case o.Keep < 0:
		return usagef("--keep %d: want 0 or more", o.Keep)
	case o.MinAge < 0:
		return usagef("--min-age %s: want 0 or more", o.MinAge)
	case len(s.c.StringSlice("yes")) > 0 && !o.Now:
		return usagef("--yes confirms what --now deletes: give --now too")
	}
	if err := s.named(retain.Known, slices.Concat(o.Names, s.c.StringSlice("yes"))...); err != nil {
		return err
	}
	sweep, err := gc.Plan(ctx, s.ws, o)
	if err != nil {
		return err
	}
	if h := s.c.String("plan-hash"); h != "" && h != sweep.Hash {
		return withHint(fmt.Errorf("the plan changed: it is %s now, not %q; nothing was done", sweep.Hash, h), "look again: %s", s.command(s.c, "gc"))
	}
	var freed int64
	if s.c.Bool("apply") {
		if o.Now {
			if err := s.confirm(sweep); err != nil {
				return err
			}
		}
		if freed, err = gc.Execute(ctx, s.ws, sweep, o, s.rep); err != nil {
			return s.unpinHint(sweep, err)
		}
	}
	if s.c.Bool("json") {
		return s.printJSON(map[string]any{"plan": sweep, "applied": s.c.Bool("apply"), "freed_bytes": freed})
	}
	if err := s.printSweep(sweep); err != nil {
		return err
	}
	if s.c.Bool("apply") {
		s.printDone(sweep, freed)
	} else {
		s.printHow(sweep)
	}
	return nil
}

// unpinHint says how to let go of a pinned generation that was named.
func (s *session) unpinHint(sweep *gc.Sweep, err error) error {
	for _, it := range sweep.Items {
		if it.Refused && it.Generation.Pinned != "" && errors.Is(err, gc.ErrRefused) {
			return withHint(err, "%s, then again", s.command(s.c, "generations unpin "+quote(it.Generation.Name)))
		}
	}
	return err
}

// there fails where a generation is unknown or gone.
func there(gens []store.GenerationRow, name string) error {
	_, err := retain.Find(gens, name)
	return err
}

// named refuses names that check does not find among the generations.
func (s *session) named(check func([]store.GenerationRow, string) error, names ...string) error {
	return s.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := check(gens, n); err != nil {
				return withHint(err, "%s", s.command(s.c, "generations"))
			}
		}
		return nil
	})
}

// confirm asks for the name of each generation that would be deleted at once.
func (s *session) confirm(sweep *gc.Sweep) error {
	yes := s.c.StringSlice("yes")
	for _, it := range sweep.Items {
		name := it.Generation.Name
		if it.Action == "keep" || slices.Contains(yes, name) {
			continue
		}
		fmt.Fprintf(s.err, "delete generation %d (%s: %s, %s) for good? type its name: ", it.Generation.ID, name, s.at(it.Generation), human.Sized(it.Bytes))
		var typed string
		if _, err := fmt.Fscanln(s.in, &typed); err != nil || strings.TrimSpace(typed) != name {
			fmt.Fprintln(s.err)
			return withHint(fmt.Errorf("not confirmed: nothing was deleted"), "give --yes %s", quote(name))
		}
	}
	return nil
}

func (e *env) generationsCommand() *cli.Command {
	change := func(name, usage, done string, fn func(*session, string) error) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: "NAME",
			Flags: []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`WHY`, kept in the ledger"}},
			Action: func(c *cli.Context) error {
				arg, err := oneArg(c, "the name or number of a generation")
				if err != nil {
					return err
				}
				return e.withWorkspace(c, func(s *session) error {
					if err := s.named(there, arg); err != nil {
						return err
					}
					if err := fn(s, arg); err != nil {
						return err
					}
					fmt.Fprintf(s.out, "%s: %s\n", arg, done)
					return nil
				})
			},
		}
	}
	return &cli.Command{
		Name: "generations", Usage: "list the generations; pin, retire, adopt or restore one",
		Flags: []cli.Flag{jsonFlag()},
		Subcommands: []*cli.Command{
			change("pin", "keep a generation whatever gc.keep says", "pinned; gc keeps it", func(s *session, n string) error { return gc.Pin(s.c.Context, s.ws, n, s.c.String("reason")) }),
			change("unpin", "undo pin", "no longer pinned", func(s *session, n string) error { return gc.Unpin(s.c.Context, s.ws, n) }),
			change("retire", "let gc reclaim a generation although it is the newest", "retired; 'gc --apply' moves it to the trash, 'generations restore' takes it back, from there too", func(s *session, n string) error { return gc.Retire(s.c.Context, s.ws, n) }),
			change("restore", "take a generation back out of the trash, or its retirement back", "restored, and pinned so that gc keeps it", func(s *session, n string) error { return gc.Restore(s.c.Context, s.ws, n) }),
			e.adoptCommand(),
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			return e.listGenerations(c)
		},
	}
}

func (e *env) adoptCommand() *cli.Command {
	return &cli.Command{
		Name: "adopt", Usage: "register a directory that eaglebatch did not make, so that gc can reclaim it", ArgsUsage: "PATH",
		Flags: []cli.Flag{&cli.StringFlag{Name: "name", Usage: "`NAME` of the generation"}},
		Action: func(c *cli.Context) error {
			path, err := oneArg(c, "the directory")
			if err != nil {
				return err
			}
			if !c.IsSet("name") {
				return usagef("adopt %q: give the generation a name: --name NAME", path)
			}
			return e.withWorkspace(c, func(s *session) error {
				g, err := gc.Adopt(c.Context, s.ws, path, c.String("name"), s.rep, s.protected()...)
				if err != nil {
					return err
				}
				fmt.Fprintf(s.out, "generation %d (%s): %s, %s files, %s on disk; nothing in it was changed\n",
					g.ID, g.Name, g.Adopted.Format, human.Count(g.Adopted.Files), human.Bytes(g.Adopted.Bytes))
				return nil
			})
		},
	}
}

func (e *env) listGenerations(c *cli.Context) error {
	dir, err := e.workDir(c)
	if err != nil {
		return err
	}
	snap, err := store.Inspect(dir)
	if snap == nil {
		return err
	}
	gens, err := snap.Generations()
	if err != nil {
		return err
	}
	docs := generationDocs(dir, gens)
	if err := e.judge(c, dir, snap, docs); err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printJSON(map[string]any{"generations": docs})
	}
	return e.printGenerations(docs)
}

// judge fills in what keeps each generation, as gc would decide now. Where the
// configuration cannot be read, gc.keep is its default.
func (e *env) judge(c *cli.Context, dir string, snap *store.Snapshot, docs []generationRow) error {
	cfg, err := e.load(c)
	if err != nil {
		cfg = defaultAt(dir)
	}
	o := retain.Options{Keep: cfg.GC.Keep}
	if p, ok, err := snap.Plan(); err != nil {
		return err
	} else if ok {
		if o.PlanNeeds, err = planNeeds(c.Context, filepath.Join(dir, "plans", fmt.Sprintf("%06d.ebi", p.ID))); err != nil {
			return err
		}
	}
	verdicts, err := retain.Judge(snap, o)
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		docs[i].Class, docs[i].Why = string(v.Class), v.Reason
	}
	return nil
}

// planNeeds lists the generations that the index of a plan points into.
func planNeeds(ctx context.Context, path string) (out []uint32, err error) {
	f, err := genindex.Open(path)
	if err != nil {
		return nil, fmt.Errorf("what the plan needs cannot be told: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for i := range f.Positions() {
		if i&0xffff == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if g := f.Position(i).Gen; g != 0 && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out, nil
}

func (e *env) printGenerations(gens []generationRow) error {
	number := func(head string, yield int) human.Column {
		return human.Column{Head: head, Right: true, Yield: yield}
	}
	cols := []human.Column{{Head: "generation"}, {Head: "name"}, {Head: "state"}, number("age", 2), number("samples", 3), number("tokens", 4),
		number("bytes", 0), number("blobs", 5), {Head: "needs", Yield: 6}, {Head: "needed by", Yield: 6}, {Head: "note", Flow: true}}
	var rows [][]string
	for _, g := range gens {
		rows = append(rows, []string{fmt.Sprint(g.ID), g.Name, g.State, age(g), human.Count(g.Samples), human.Count(g.Tokens),
			human.Bytes(g.Bytes), fmt.Sprint(g.Blobs), ids(g.Needs), ids(g.NeededBy), g.note()})
	}
	return human.WriteTable(e.out, e.tableWidth(), cols, rows)
}

// age is the time since a generation was begun or, where it was adopted, since
// its newest file was written.
func age(g generationRow) string {
	at := cmp.Or(g.Written, g.Created)
	if at == nil {
		return "-"
	}
	return human.Duration(max(0, time.Since(*at).Round(time.Second)))
}

func (g generationRow) note() string {
	var parts []string
	if g.Origin == retain.Adopted {
		parts = append(parts, fmt.Sprintf("adopted: %s, %s", g.Format, human.Plural(g.Files, "file")))
	}
	if g.Pinned && g.Why == "" {
		parts = append(parts, "pinned: "+g.PinReason)
	}
	if g.Quarantined > 0 {
		parts = append(parts, fmt.Sprintf("%d quarantined", g.Quarantined))
	}
	if g.Synthetic {
		parts = append(parts, "synthetic")
	}
	if n := lossNote(g.Quantization); n != "" {
		parts = append(parts, n)
	}
	if g.Why != "" {
		parts = append(parts, g.Class+": "+strings.TrimPrefix(g.Why, "adopted: "))
	}
	return strings.Join(parts, "; ")
}

func ids(v []uint32) string {
	if len(v) == 0 {
		return "-"
	}
	s := fmt.Sprint(v)
	return s[1 : len(s)-1]
}
