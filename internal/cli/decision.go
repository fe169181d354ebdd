package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// acceptDecision records a decision in the place of the one before and makes the
// plan stale, since it may say otherwise now. One that cannot be carried out is
// refused, and what was decided before stays; the same once more changes
// nothing.
func (j *job) acceptDecision(ctx context.Context, text string) error {
	values, err := plan.ParseAccept(text)
	if err != nil {
		return usagef("--accept: %v", err)
	}
	a := store.Acceptance{Values: values, PlanYAML: hashText(j.cfg.PlanText), At: time.Now().UTC()}
	before, err := j.checkDecision(a)
	if err != nil {
		return err
	}
	if before.PlanYAML == a.PlanYAML && maps.Equal(before.Values, values) {
		j.rep.Note("this decision is recorded already, since %s: nothing changes", when(before))
		return nil
	}
	if err := j.mayReplace("plan --accept " + quote(text)); err != nil {
		return err
	}
	// First the plan becomes stale: what a crash leaves then is a plan to be made
	// anew, not one that contradicts the decision.
	if err := j.runner().Redo(ctx, store.PhasePlan); err != nil {
		return err
	}
	if err := j.ws.Update(ctx, "accept", func(tx *store.Tx) error { return tx.PutAcceptance(a) }); err != nil {
		return err
	}
	if err := j.applyAcceptance(); err != nil {
		undo := func(tx *store.Tx) error {
			if before.Values == nil {
				return tx.ClearAcceptance()
			}
			return tx.PutAcceptance(before)
		}
		return errors.Join(err, j.ws.Update(ctx, "refused", undo))
	}
	if before.Values != nil {
		j.rep.Note("the decision of %s (%s) is replaced by %s", when(before), said(before), said(a))
	}
	return nil
}

// said is a decision as it was given.
func said(a store.Acceptance) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(a.Values)) {
		out = append(out, k+"="+a.Values[k])
	}
	return strings.Join(out, ", ")
}

func when(a store.Acceptance) string { return a.At.Local().Format("2006-01-02 15:04") }

// checkDecision returns the decision recorded so far, and fails where a names
// what is not there.
func (j *job) checkDecision(a store.Acceptance) (before store.Acceptance, err error) {
	err = j.ws.View(func(r store.Reader) error {
		if before, _, err = r.Acceptance(); err != nil {
			return err
		}
		gens, err := r.Generations()
		if err != nil || a.Values["gc"] == "" {
			return err
		}
		for _, name := range strings.Split(a.Values["gc"], "+") {
			if err := retain.Known(gens, name); err != nil {
				return withHint(usagef("--accept: gc: %v", err), "%s", j.command(j.c, "generations"))
			}
		}
		return nil
	})
	if err != nil {
		return before, err
	}
	for _, name := range strings.FieldsFunc(a.Values["drop"], func(c rune) bool { return c == '+' }) {
		if !slices.ContainsFunc(j.cfg.Datasets, func(d config.Dataset) bool { return d.Name == name }) {
			return before, usagef("--accept: drop: there is no dataset %q in %s", name, j.cfg.File)
		}
	}
	return before, nil
}

// mayReplace refuses to decide anew where what was decided before is carried
// out in part, unless --replace says that this is understood.
func (j *job) mayReplace(command string) error {
	done, err := j.halfDone()
	if err != nil || len(done) == 0 || j.c.Bool("replace") {
		return err
	}
	return &store.DecisionError{
		What:     "what was decided or planned before is carried out in part: " + done[0],
		Details:  append(done[1:], "nothing was changed; 'run' goes on with it; to decide anew all the same, say so"),
		Commands: []string{j.command(j.c, command+" --replace")},
	}
}

// halfDone says what was carried out of the plan in force, and of the decision
// behind it, as long as its generation is not sealed.
func (j *job) halfDone() (out []string, err error) {
	err = j.ws.View(func(r store.Reader) error {
		p, ok, err := r.Plan()
		if err != nil || !ok {
			return err
		}
		gens, err := r.Generations()
		if err != nil {
			return err
		}
		for _, g := range gens {
			if g.ID == p.Generation && g.State != store.GenBuilding {
				return nil // nothing is half done: it is sealed, or was given up
			}
		}
		a, _, err := r.Acceptance()
		if err != nil {
			return err
		}
		for _, name := range strings.FieldsFunc(a.Values["gc"], func(c rune) bool { return c == '+' }) {
			if s := deleted(gens, name, a.At); s != "" {
				out = append(out, s)
			}
		}
		s, err := halfBuilt(r, p.Generation)
		if s != "" {
			out = append(out, s)
		}
		return err
	})
	return out, err
}

// deleted says what became of a generation that a decision of that time names.
func deleted(gens []store.GenerationRow, name string, at time.Time) string {
	if _, err := retain.Find(gens, name); err != nil && retain.Known(gens, name) == nil {
		for _, g := range slices.Backward(gens) {
			if (g.Name == name || fmt.Sprint(g.ID) == name) && g.Changed.After(at) {
				return name + " is deleted already"
			}
		}
		return ""
	}
	if g, err := retain.Find(gens, name); err == nil && (g.State == store.GenTrashed || g.State == store.GenCondemned) {
		return name + " is being deleted"
	}
	return ""
}

// halfBuilt says what is stored of a generation that is not sealed.
func halfBuilt(r store.Reader, id uint32) (string, error) {
	if id == 0 {
		return "", nil
	}
	blobs, err := r.Blobs(id)
	if err != nil || len(blobs) == 0 {
		return "", err
	}
	var n, bytes int64
	for _, b := range blobs {
		n, bytes = n+b.Samples, bytes+b.Bytes
	}
	return fmt.Sprintf("generation %d, half built with %s samples (%s), would become abandoned", id, human.Count(n), human.Bytes(bytes)), nil
}

// withdraw forgets the decision and makes the plan stale.
func (j *job) withdraw(ctx context.Context) error {
	before, err := j.checkDecision(store.Acceptance{})
	if err != nil {
		return err
	}
	if err := j.mayReplace("plan --withdraw"); err != nil {
		return err
	}
	if err := j.runner().Redo(ctx, store.PhasePlan); err != nil {
		return err
	}
	if err := j.ws.Update(ctx, "withdraw", func(tx *store.Tx) error { return tx.ClearAcceptance() }); err != nil {
		return err
	}
	cfg, err := j.load(j.c)
	if err != nil {
		return err
	}
	if before.Values == nil {
		j.rep.Note("there is no decision to forget: the plan is made anew")
	} else {
		j.rep.Note("the decision of %s (%s) is forgotten", when(before), said(before))
	}
	j.cfg, j.accept = cfg, store.Acceptance{}
	return nil
}

// choices are the ways out, with the commands that take them.
func (j *job) choices(rep plan.Report) (list []plan.Choice, commands []string, err error) {
	done, err := j.halfDone()
	if err != nil {
		return nil, nil, err
	}
	list = plan.Choices(rep)
	commands = make([]string, len(list))
	for i, ch := range list {
		if ch.Accept == "" {
			continue
		}
		args := "plan --accept " + quote(ch.Accept)
		if len(done) > 0 {
			args += " --replace"
		}
		commands[i] = j.command(j.c, args)
	}
	return list, commands, nil
}
