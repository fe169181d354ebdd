package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/states"

	"github.com/urfave/cli/v2"
)

func (e *env) checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "compare what is on disk with what was committed", ArgsUsage: "[GEN …]",
		Description: "Without options: ledger, files, sizes, manifests. With --full every chunk is decoded and\n" +
			"hashed. Damage is named with blob, offset, samples and layers (exit 12).\n\n" + exitTable,
		Flags: []cli.Flag{
			jsonFlag(),
			&cli.BoolFlag{Name: "full", Usage: "decode and hash everything"},
			&cli.StringFlag{Name: "sample", Usage: "of the blobs only the `K/N`-th part, as 1/7"},
			&cli.StringFlag{Name: "rate", Usage: "read at most `SIZE` a second"},
			&cli.BoolFlag{Name: "resume", Usage: "go on where an interrupted --full stopped"},
			&cli.BoolFlag{Name: "repair", Usage: "check in full, then compute damaged samples anew into a new generation that points to what is sound"},
			&cli.BoolFlag{Name: "rebuild-manifest", Usage: "make manifest.db anew from checkpoints.jsonl"},
			&cli.BoolFlag{Name: "rebuild-log", Usage: "make checkpoints.jsonl anew from manifest.db"},
			&cli.BoolFlag{Name: "rebuild-marker", Usage: "make the file EAGLEBATCH anew from checkpoints.jsonl and manifest.db"},
		},
		Action: func(c *cli.Context) error { return e.check(c) },
	}
}

// checkReport is the JSON document of check.
type checkReport struct {
	Full     bool             `json:"full"`
	Files    int64            `json:"files"`
	Bytes    int64            `json:"bytes"`
	Samples  int64            `json:"samples"` // merged samples read back
	Problems []states.Problem `json:"problems"`
	Known    []states.Problem `json:"known"` // damage that a repair has replaced

	Quantization []generationLosses `json:"quantization"` // of generations that are fp8
}

// checker is one check.
type checker struct {
	*env
	c    *cli.Context
	dir  string
	snap *store.Snapshot
	rep  progress.Reporter
	opts states.VerifyOptions
	part [2]int // the K-th of N
	doc  checkReport
	// cursor holds what an interrupted full check has behind it.
	cursor  map[string]bool
	saved   time.Time
	damaged map[uint32][]store.DamagedEntry // by generation
	mended  map[uint32][]uint32             // blobs recorded as damaged that are sound again, by generation
	lost    []uint32                        // generations whose directory is missing
}

func (e *env) check(c *cli.Context) error {
	dir, err := e.workDir(c)
	if err != nil {
		return err
	}
	if c.Bool("rebuild-manifest") || c.Bool("rebuild-log") || c.Bool("rebuild-marker") {
		return e.rebuild(c, dir)
	}
	k := e.checker(c, dir)
	if err := k.options(); err != nil {
		return err
	}
	ctx, stop := e.phaseContext(c.Context)
	defer stop()
	if err := k.all(ctx); err != nil {
		return cancelled(ctx, err)
	}
	begun, err := k.unfinished()
	if err != nil {
		return err
	}
	if c.Bool("repair") && (len(k.doc.Problems) > 0 || begun) {
		return k.repair()
	}
	return k.report()
}

func (e *env) checker(c *cli.Context, dir string) *checker {
	return &checker{env: e, c: c, dir: dir, rep: e.reporter(c), part: [2]int{1, 1}, cursor: map[string]bool{},
		damaged: map[uint32][]store.DamagedEntry{}, mended: map[uint32][]uint32{}, doc: checkReport{Problems: []states.Problem{}, Known: []states.Problem{}, Quantization: []generationLosses{}}}
}

func (k *checker) options() error {
	k.doc.Full = k.c.Bool("full") || k.c.Bool("repair") || k.c.Bool("resume") || k.c.IsSet("sample")
	k.opts = states.VerifyOptions{Full: k.doc.Full}
	if s := k.c.String("rate"); s != "" {
		n, err := human.ParseSize(s)
		if err != nil {
			return usagef("--rate: %v", err)
		}
		k.opts.Rate = int64(n)
	}
	if s := k.c.String("sample"); s != "" {
		if n, err := fmt.Sscanf(s, "%d/%d", &k.part[0], &k.part[1]); n != 2 || err != nil || k.part[0] < 1 || k.part[0] > k.part[1] {
			return usagef("--sample %q: want K/N such as 1/7", s)
		}
	}
	return nil
}

// all checks the ledger, the samples and the generations asked for.
func (k *checker) all(ctx context.Context) error {
	snap, err := store.Inspect(k.dir)
	if snap == nil {
		return err
	}
	k.snap = snap
	if err != nil {
		k.problem(filepath.Join(k.dir, "checkpoints.jsonl"), err)
		return nil
	}
	for _, part := range []func(context.Context) error{k.ledger, k.plan, k.rejects} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	gens, err := k.wanted()
	if err != nil {
		return err
	}
	if k.c.Bool("resume") {
		if err := k.loadCursor(); err != nil {
			return err
		}
	}
	var total int64
	for _, g := range gens {
		total += g.Bytes
	}
	k.rep.Start(progress.Phase{Name: "check", Unit: "bytes", Total: total})
	defer k.rep.Finish()
	for _, g := range gens {
		if err := k.generation(ctx, g); err != nil {
			if k.everything() {
				k.rep.Note("check --full --resume goes on from here")
			}
			return errors.Join(err, k.saveCursor())
		}
	}
	return errors.Join(k.forgetMended(ctx), k.dropCursor())
}

func (k *checker) problem(path string, err error) {
	p := states.Problem{Path: path, Offset: -1, Blob: -1, Entry: -1, Layer: -1, Error: err.Error(), Hint: hintFor(err, ExitOK)}
	var c *store.CorruptError
	if errors.As(err, &c) {
		p.Path, p.Offset = c.Path, c.Offset
	}
	var gone *os.PathError
	switch {
	case errors.As(err, &gone) && gone.Path == p.Path && errors.Is(err, os.ErrNotExist):
		p.Error = "is missing"
	default:
		p.Error = strings.TrimPrefix(p.Error, p.Path+": ")
	}
	k.doc.Problems = append(k.doc.Problems, p)
}

// inGeneration is a problem of a file of generation g.
func (k *checker) inGeneration(g store.GenerationRow, p states.Problem) {
	p.Generation = g.ID
	if p.Hint == "" {
		p.Hint = fileHint(p.Path)
	}
	k.doc.Problems = append(k.doc.Problems, p)
}

func (k *checker) badFile(g store.GenerationRow, path string, err error) {
	k.inGeneration(g, states.Problem{Path: path, Offset: -1, Blob: -1, Entry: -1, Layer: -1, Error: err.Error()})
}

func (k *checker) wanted() ([]store.GenerationRow, error) {
	gens, err := k.snap.Generations()
	if err != nil {
		return nil, err
	}
	if k.c.Args().Present() {
		var out []store.GenerationRow
		for _, ref := range k.c.Args().Slice() {
			g, err := findGeneration(k.snap, ref)
			if err != nil {
				return nil, err
			}
			out = append(out, g)
		}
		return out, nil
	}
	return slices.DeleteFunc(gens, func(g store.GenerationRow) bool {
		return g.Origin == "adopted" || g.State != store.GenSealed && g.State != store.GenBuilding
	}), nil
}

func (k *checker) generation(ctx context.Context, g store.GenerationRow) error {
	dir := g.Path
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(k.dir, dir)
	}
	if g.Kind == kindSamples {
		return k.samples(ctx, g, dir)
	}
	known, err := store.Damaged(k.snap, g.ID)
	if err != nil {
		return err
	}
	if gone, err := k.missingDir(g, dir, known); err != nil || gone {
		return err
	}
	files, err := k.files(g, dir)
	if err != nil {
		return err
	}
	o := k.opts
	o.Skip = func(name string) bool {
		var no int
		if _, err := fmt.Sscanf(name, "blob-%d.ebb", &no); err == nil && no%k.part[1] != k.part[0]-1 {
			return true
		}
		return k.cursor[key(g, name)]
	}
	hit := map[string]bool{}
	o.Done = func(name string, n int64) {
		if !hit[name] { // what is damaged is looked at again: the cursor holds no problems
			k.cursor[key(g, name)] = true
			k.saveNowAndThen()
			k.noteMended(g, name, known)
		}
		k.doc.Files++
		k.doc.Bytes += n
		k.rep.Add(progress.Delta{Units: n, Bytes: n})
	}
	// A run that is building, or was killed, may have unfinished files.
	o.Owned = func(name string) bool {
		return strings.HasSuffix(name, ".tmp") || g.State == store.GenBuilding
	}
	if err := k.quantization(g, &o); err != nil {
		return err
	}
	return states.Verify(ctx, dir, files, o, func(p states.Problem) {
		hit[filepath.Base(p.Path)] = true
		if p.Blob >= 0 && slices.ContainsFunc(known, func(d store.DamagedEntry) bool { return covers(d, p) }) {
			k.doc.Known = append(k.doc.Known, p)
			return
		}
		k.inGeneration(g, p)
		if p.Blob >= 0 {
			k.damaged[g.ID] = append(k.damaged[g.ID], store.DamagedEntry{Blob: uint32(p.Blob), Entry: uint32(max(0, p.Entry)), Whole: p.Entry < 0})
		}
	})
}

func key(g store.GenerationRow, name string) string { return fmt.Sprintf("%d/%s", g.ID, name) }

func (k *checker) readBack() string {
	if k.doc.Samples == 0 {
		return ""
	}
	return "; " + human.Plural(k.doc.Samples, "merged sample")
}

func (k *checker) report() error {
	for i := range k.doc.Quantization {
		q := &k.doc.Quantization[i]
		q.Measured = q.Measured && len(k.doc.Problems) == 0
	}
	if k.c.Bool("json") {
		if err := k.printJSON(k.doc); err != nil {
			return err
		}
	} else {
		for _, p := range k.doc.Problems {
			fmt.Fprintln(k.out, p)
		}
		if n := len(k.doc.Known); n > 0 {
			fmt.Fprintf(k.out, "%d damaged places are known and replaced by a repair\n", n)
		}
		if len(k.doc.Problems) == 0 {
			fmt.Fprintf(k.out, "ok: %s, %s%s\n", human.Plural(k.doc.Files, "file"), human.Bytes(k.doc.Bytes), k.readBack())
		}
		k.printLosses()
	}
	return k.damage()
}

// damage is the error that says how much is damaged and what helps.
func (k *checker) damage() error {
	if len(k.doc.Problems) == 0 {
		return nil
	}
	var hints []string
	for _, p := range k.doc.Problems {
		if p.Hint != "" && !slices.Contains(hints, p.Hint) {
			hints = append(hints, p.Hint)
		}
	}
	return withHint(fmt.Errorf("%w: %s", errDamage, human.Plural(int64(len(k.doc.Problems)), "problem")), "%s", strings.Join(hints, "\n"))
}
