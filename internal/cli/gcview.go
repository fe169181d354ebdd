package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"eaglebatch/gc"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

func (s *session) printSweep(sweep *gc.Sweep) error {
	cols := []human.Column{{Head: "generation"}, {Head: "name"}, {Head: "state", Yield: 2}, {Head: "action"}, {Head: "bytes", Right: true}, {Head: "files", Right: true, Yield: 1}, {Head: "reason", Flow: true}}
	var rows [][]string
	for _, it := range sweep.Items {
		files := "-"
		if it.Files > 0 {
			files = human.Count(it.Files)
		}
		action := it.Action
		if it.Refused {
			action = "refused"
		}
		rows = append(rows, []string{fmt.Sprint(it.Generation.ID), it.Generation.Name, string(it.Generation.State), action, human.Bytes(it.Bytes), files, it.Reason})
	}
	if err := human.WriteTable(s.out, s.tableWidth(), cols, rows); err != nil {
		return err
	}
	var stale int64
	for _, f := range sweep.Stale {
		stale += f.Bytes
	}
	if len(sweep.Stale) > 0 {
		fmt.Fprintf(s.out, "superseded plans and orders: %s files, %s\n", human.Count(int64(len(sweep.Stale))), human.Bytes(stale))
	}
	for _, u := range sweep.Unknown {
		fmt.Fprintf(s.out, "%s is not of this workspace: left alone\n", u)
	}
	fmt.Fprintf(s.out, "to trash %s, to free now %s\n", human.Sized(sweep.Trash), human.Sized(sweep.Free))
	return nil
}

// printHow says how to do what was shown, and what only goes by its name.
func (s *session) printHow(sweep *gc.Sweep) {
	forget := slices.ContainsFunc(sweep.Items, func(it gc.Item) bool { return it.Action == gc.ActionForget })
	if len(sweep.Stale) > 0 || sweep.Trash+sweep.Free > 0 || forget {
		fmt.Fprintf(s.out, "nothing was changed; do it with: %s\n", s.command(s.c, "gc --apply --plan-hash "+sweep.Hash+s.gcFlags(sweep)))
	}
	for _, it := range sweep.Items {
		g := it.Generation
		if len(s.c.StringSlice("name")) == 0 && it.Action == gc.ActionKeep && g.Origin == retain.Adopted && g.State == store.GenSealed && g.Pinned == "" {
			fmt.Fprintf(s.out, "%s (%s, %s) goes only by its name: %s\n", g.Name, s.at(g), human.Sized(it.Bytes), s.command(s.c, "gc --name "+quote(g.Name)))
		}
	}
}

// gcFlags repeats the options that what was shown depends on.
func (s *session) gcFlags(sweep *gc.Sweep) string {
	var sb strings.Builder
	for _, n := range s.c.StringSlice("name") {
		sb.WriteString(" --name " + quote(n))
	}
	for _, f := range []string{"keep", "min-age"} {
		if s.c.IsSet(f) {
			fmt.Fprintf(&sb, " --%s %v", f, s.c.Value(f))
		}
	}
	if s.c.Bool("no-fallback") {
		sb.WriteString(" --no-fallback")
	}
	if s.c.Bool("now") {
		sb.WriteString(" --now")
		for _, it := range sweep.Items {
			if it.Action != gc.ActionKeep {
				sb.WriteString(" --yes " + quote(it.Generation.Name))
			}
		}
	}
	return sb.String()
}

func (s *session) printDone(sweep *gc.Sweep, freed int64) {
	fmt.Fprintf(s.out, "done: %s deleted; the filesystem has %s\n", human.Sized(sweep.Free), moreFree(freed, sweep.Free))
	for _, it := range sweep.Items {
		if it.Action == gc.ActionTrash && !it.Now {
			fmt.Fprintf(s.out, "%s lies in the trash: 'gc --apply' frees it after %s, '%s' takes it back until then\n",
				it.Generation.Name, human.Duration(s.gcOptions().MinAge), s.command(s.c, "generations restore "+quote(it.Generation.Name)))
		}
	}
}

// at is where a generation lies.
func (s *session) at(g store.GenerationRow) string {
	if g.Path == "" || filepath.IsAbs(g.Path) {
		return g.Path
	}
	return filepath.Join(s.ws.Dir(), g.Path)
}

// moreFree words a change of free space, in which other programs and the
// ledger itself take part, beside what was deleted.
func moreFree(n, deleted int64) string {
	s := human.Bytes(n) + " more free than before"
	if n < 0 {
		s = human.Bytes(-n) + " less free than before"
	}
	if n < deleted-deleted/50 {
		s += ": others write to it, or hold open what was deleted"
	}
	return s
}
