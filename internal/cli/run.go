package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"eaglebatch/extract"
	"eaglebatch/ingest"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/samples"

	"github.com/urfave/cli/v2"
)

func stopFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "limit", Usage: "stop once `N` samples are done, at the end of a blob"},
		&cli.StringFlag{Name: "until", Usage: "stop at `TIME`: 07:00, or 2026-01-31T07:00"},
		&cli.DurationFlag{Name: "max-duration", Usage: "stop after so long: 8h"},
	}
}

func (e *env) runCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "run every phase that is not done; resumes after any interruption",
		Description: "Merges, shuffles, plans, makes the room that a recorded decision grants, and extracts.\n" +
			"Phases that are done are skipped. A changed setting is refused with what changed.\n\n" +
			"  eaglebatch run -c fixtures/quickstart/eaglebatch.yaml\n\n" + exitTable,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "redo", Usage: "do `PHASE` anew, and then what depends on it"},
			&cli.BoolFlag{Name: "wait", Usage: "wait and go on by itself when the engine is away or the disk is full"},
			&cli.StringFlag{Name: "on-stop", Usage: "at the end run `CMD` with the exit code and the path of status.json"},
			jsonFlag(),
		}, stopFlags(), settingFlags(mergeSettings(), shuffleSettings(), planSettings(), extractSettings())),
		Action: func(c *cli.Context) error {
			err := noArgs(c)
			if err == nil {
				err = e.runWaiting(c)
			}
			return e.onStop(c, e.resumes(c, err))
		},
	}
}

// resumes says how to go on after a run that was stopped: the same command would
// begin anew what --redo names.
func (e *env) resumes(c *cli.Context, err error) error {
	if code := exitCode(err); c.String("redo") == "" || code != ExitStopped && code != ExitInterrupted {
		return err
	}
	return withHint(err, "%s resumes (with --redo it would begin anew)", e.sameRun(c, ""))
}

// onStop calls the user's command with how the run ended.
func (e *env) onStop(c *cli.Context, err error) error {
	cmd := c.String("on-stop")
	if cmd == "" {
		return err
	}
	status := ""
	if dir, werr := e.workDir(c); werr == nil {
		status = filepath.Join(dir, "status.json")
	}
	code := strconv.Itoa(exitCode(err))
	// The context may be cancelled: the command must run all the same.
	p := exec.Command("/bin/sh", "-c", cmd+` "$@"`, "on-stop", code, status)
	p.Stdout, p.Stderr = e.err, e.err
	p.Env = append(os.Environ(), "EAGLEBATCH_EXIT_CODE="+code, "EAGLEBATCH_STATUS="+status)
	if xerr := p.Run(); xerr != nil {
		fmt.Fprintf(e.err, "eaglebatch: --on-stop %q: %v\n", cmd, xerr)
	}
	return err
}

// runWaiting runs, and with --wait tries again while the cause is one that
// passes: an engine that is away, a disk that others filled.
func (e *env) runWaiting(c *cli.Context) error {
	// Once for all attempts: "--until 07:00" is not tomorrow's after a night of
	// waiting.
	l, err := stopAt(c, time.Now())
	if err != nil {
		return err
	}
	pause := 5 * time.Second
	for redo := c.String("redo"); ; redo = "" {
		err := e.runOnce(c, redo, l)
		code := exitCode(err)
		if !c.Bool("wait") || code != ExitEngine && code != ExitDiskFull || !goesOn(err) {
			return err
		}
		if !l.until.IsZero() && time.Now().Add(pause).After(l.until) {
			return fmt.Errorf("%w while waiting: %w", store.ErrStopped, err)
		}
		fmt.Fprintf(e.err, "eaglebatch: %v\neaglebatch: trying again in %s (--wait)\n", err, human.Duration(pause))
		select {
		case <-e.interrupt:
			return errors.Join(errInterrupted, err)
		case <-c.Context.Done():
			return errors.Join(errInterrupted, err)
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Minute)
	}
}

// goesOn says that this process may try again: what an fsync that failed was
// for may be missing on disk, and no later one would tell.
func goesOn(err error) bool {
	var s *fsx.SyncError
	return !errors.As(err, &s) && !errors.Is(err, samples.ErrAbandoned)
}

func (e *env) runOnce(c *cli.Context, redo string, l limits) error {
	cfg, err := e.load(c)
	if err != nil {
		return err
	}
	if redo != "" && !slices.Contains(store.Phases(), redo) {
		return usagef("--redo %q: phases are %s", redo, strings.Join(store.Phases(), ", "))
	}
	return e.withSession(c, cfg, true, func(s *session) error {
		j, err := newJob(s)
		if err != nil {
			return err
		}
		if redo != "" {
			if err := j.redo(c.Context, redo); err != nil {
				return err
			}
		}
		return j.runAll(c.Context, l)
	})
}

// redo makes a phase and what depends on it pending. A merge is given up only
// while what it was made of can be read again.
func (j *job) redo(ctx context.Context, phase string) error {
	if phase == store.PhaseMerge {
		o, err := j.ingestOptions()
		if err != nil {
			return err
		}
		if err := ingest.CheckSources(o); err != nil {
			return fmt.Errorf("--redo merge: %w; what is merged is kept", err)
		}
	}
	return j.runner().Redo(ctx, phase)
}

// runAll is a night: every phase in turn.
func (j *job) runAll(ctx context.Context, l limits) error {
	if err := j.needModel("run"); err != nil {
		return err
	}
	if err := j.preflight(ctx, l); err != nil {
		return err
	}
	if err := j.adoptConfigured(ctx); err != nil {
		return err
	}
	steps := []func(context.Context) (bool, error){j.merge, j.shuffle, j.plan}
	for i, step := range steps {
		if _, err := step(ctx); err != nil {
			return err
		}
		if j.interrupted() {
			return fmt.Errorf("%w after %s", errInterrupted, store.Phases()[i])
		}
	}
	if err := j.decide(ctx); err != nil {
		return j.block(ctx, err)
	}
	if _, err := j.do(ctx, j.gcPhase()); err != nil {
		return err
	}
	r, did, err := j.extract(ctx, l, "states")
	if err != nil {
		return err
	}
	return j.finished(ctx, r, did)
}

// block records that the gc phase waits for a decision, so that stat says so.
func (j *job) block(ctx context.Context, cause error) error {
	if !errors.Is(cause, store.ErrDecision) {
		return cause
	}
	err := j.ws.Update(ctx, "waiting for a decision", func(tx *store.Tx) error {
		row, _, err := tx.Phase(store.PhaseGC)
		if err != nil {
			return err
		}
		row.Name, row.State, row.Error, row.Fingerprint = store.PhaseGC, store.Pending, cause.Error(), nil
		return tx.PutPhase(row)
	})
	return errors.Join(cause, err)
}

// finished prints what there is now and what to do next.
func (j *job) finished(ctx context.Context, r extract.Result, did bool) error {
	g := r.Generation
	if !did {
		p, err := j.planRow()
		if err != nil {
			return err
		}
		if err := j.ws.View(func(rd store.Reader) error {
			g, _, err = rd.Generation(p.Generation)
			return err
		}); err != nil {
			return err
		}
		if err := j.stillThere(ctx, g); err != nil {
			return err
		}
	}
	if j.c.Bool("json") {
		if err := j.printJSON(map[string]any{"generation": generationDoc(j.ws.Dir(), g), "did": did}); err != nil {
			return err
		}
	} else {
		j.printGeneration(g, did)
	}
	if g.Quarantined > 0 {
		return withHint(fmt.Errorf("%w: %d of generation %d", errQuarantined, g.Quarantined, g.ID),
			"%s", j.command(j.c, "extract --retry-quarantined"))
	}
	return nil
}

func (j *job) printGeneration(g store.GenerationRow, did bool) {
	verb := "is sealed"
	if !did {
		verb = "was sealed before; nothing to do"
	}
	fmt.Fprintf(j.out, "generation %d (%s) %s: %s samples, %s tokens, %s in %s",
		g.ID, g.Name, verb, human.Count(g.Samples), human.Count(g.Tokens), human.Bytes(g.Bytes), human.Plural(g.Blobs, "blob"))
	if n, err := j.blobBytes(g.ID); err == nil && g.RawBytes > 0 {
		fmt.Fprintf(j.out, " (blobs %.3f of raw states)", float64(n)/float64(g.RawBytes))
	}
	fmt.Fprintf(j.out, "\n  %s\nnext:\n  %s\n  %s\n  %s\n", j.ws.GenerationDir(g),
		j.command(j.c, "stat"), j.command(j.c, "check --full"), j.command(j.c, fmt.Sprintf("cat %d:0", g.ID)))
}

// stopAt reads --limit, --until and --max-duration.
func stopAt(c *cli.Context, now time.Time) (limits, error) {
	l := limits{limit: c.Int64("limit")}
	if l.limit < 0 {
		return l, usagef("--limit %d: want a positive number", l.limit)
	}
	if s := c.String("until"); s != "" {
		t, err := parseUntil(s, now)
		if err != nil {
			return l, err
		}
		l.until = t
	}
	if d := c.Duration("max-duration"); d > 0 {
		if t := now.Add(d); l.until.IsZero() || t.Before(l.until) {
			l.until = t
		}
	} else if d < 0 {
		return l, usagef("--max-duration %s: want a positive duration", d)
	}
	return l, nil
}

// parseUntil reads a time of day, the next one from now, or a whole date.
func parseUntil(s string, now time.Time) (time.Time, error) {
	if t, err := time.ParseInLocation("15:04", s, now.Location()); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, now.Location())
		if !at.After(now) {
			at = at.AddDate(0, 0, 1)
		}
		return at, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			if !t.After(now) {
				return t, usagef("--until %q has passed", s)
			}
			return t, nil
		}
	}
	return time.Time{}, usagef("--until %q is no time: want 07:00 or 2026-01-31T07:00", s)
}

// blobBytes is what a generation's own blobs take; its other files are the
// model's head and the index.
func (s *session) blobBytes(gen uint32) (n int64, err error) {
	err = s.ws.View(func(r store.Reader) error {
		blobs, err := r.Blobs(gen)
		for _, b := range blobs {
			n += b.Bytes
		}
		return err
	})
	return n, err
}
