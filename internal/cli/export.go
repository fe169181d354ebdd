package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"eaglebatch/extract/exporter"
	"eaglebatch/internal/compress"
	"eaglebatch/internal/human"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

func (e *env) exportCommand() *cli.Command {
	return &cli.Command{
		Name: "export", Usage: "write samples, or samples with their states, in the files of other programs",
		Description: "jsonl writes what is merged, shuffled and planned, as JSON lines: id, input_ids, loss_mask,\n" +
			"source dataset and line; in the order of the plan in force and cut as it cuts.\n\n" +
			"  eaglebatch export --to jsonl --out samples --compress zst\n\n" +
			"A file that is there with the same content is left alone, one with other content only\n" +
			"replaced with --force.\n\n" +
			"specforge, speculators and modelopt write the samples of a sealed generation with their hidden\n" +
			"states, a file each, as those projects' own tools do, into a directory of their own; asked for\n" +
			"again after an interruption it goes on. export.json says what it is an export of, files.jsonl\n" +
			"lists the files with size and xxh64.\n\n" +
			"  eaglebatch export --to specforge --out hidden_states\n\n" + exitTable,
		Flags: []cli.Flag{
			jsonFlag(),
			&cli.StringFlag{Name: "to", Usage: "`FORMAT`: jsonl, or with states specforge, speculators, modelopt"},
			&cli.StringFlag{Name: "out", Usage: "directory, or for jsonl a file that ends in .jsonl[.gz|.zst|.lz4]"},
			&cli.StringFlag{Name: "split", Usage: "only train or eval (with states: one of them, train by default)"},
			&cli.StringFlag{Name: "generation", Usage: "with states: number or name of the `GENERATION`; default: the newest that is sealed"},
			&cli.BoolFlag{Name: "synthetic", Usage: "with states: export made-up ones too"},
			&cli.StringFlag{Name: "compress", Usage: "jsonl: gz, zst or lz4"},
			&cli.BoolFlag{Name: "segments", Usage: "jsonl: say where prompt, reasoning, response and tool calls end"},
			&cli.BoolFlag{Name: "force", Usage: "replace files of other content"},
		},
		Action: func(c *cli.Context) error { return e.export(c) },
	}
}

func (e *env) export(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if c.String("to") == "" || c.String("out") == "" {
		return withHint(usagef("export: give --to FORMAT and --out PATH"), "%s", e.command(c, "export --to jsonl --out samples"))
	}
	if s := c.String("split"); s != "" && s != "train" && s != "eval" {
		return usagef("--split %q: want train or eval", s)
	}
	dir, err := e.workDir(c)
	if err != nil {
		return err
	}
	out, err := filepath.Abs(c.String("out"))
	if err != nil {
		return err
	}
	ctx, stop := e.phaseContext(c.Context)
	defer stop()
	switch to := c.String("to"); to {
	case "jsonl":
		return cancelled(ctx, e.exportJSONL(ctx, c, dir, out))
	default:
		return cancelled(ctx, e.exportStates(ctx, c, dir, out, to))
	}
}

// jsonlOptions reads the flags; the end of a file's name chooses a compression.
func jsonlOptions(c *cli.Context, out string) (exporter.JSONLOptions, error) {
	o := exporter.JSONLOptions{Split: c.String("split"), Segments: c.Bool("segments"), Force: c.Bool("force"), Compression: compress.Plain}
	z := c.String("compress")
	switch z {
	case "", "none":
	case "gz", "zst", "lz4":
		o.Compression = compress.ForName("." + z)
	default:
		return o, usagef("--compress %q: want gz, zst or lz4", z)
	}
	named := compress.ForName(out)
	base := strings.TrimSuffix(out, filepath.Ext(out))
	if named == compress.Plain {
		base = out
	}
	if !strings.HasSuffix(base, ".jsonl") {
		o.Dir = out
		return o, nil
	}
	if z != "" && named != o.Compression {
		return o, usagef("--out %q does not end as --compress %s wants", c.String("out"), z)
	}
	o.File, o.Compression = out, named
	return o, nil
}

func (e *env) exportJSONL(ctx context.Context, c *cli.Context, dir, out string) error {
	o, err := jsonlOptions(c, out)
	if err != nil {
		return err
	}
	ws, err := store.Open(ctx, dir, store.Options{FS: e.fs, Command: "export"})
	if err != nil {
		return err
	}
	r, err := exporter.JSONL(ctx, ws, o, e.reporter(c))
	if err = errors.Join(err, ws.Close()); errors.Is(err, exporter.ErrExists) {
		err = withHint(err, "export into another place, or replace it with --force")
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return e.printJSON(r)
	}
	return e.printJSONL(r)
}

func (e *env) printJSONL(r exporter.JSONLReport) error {
	what := "the shuffled order (no plan is in force: nothing is cut or dropped)"
	if r.Plan != 0 {
		what = fmt.Sprintf("plan %d", r.Plan)
		if r.MaxTokens > 0 {
			what += fmt.Sprintf(", at most %s tokens a sample", human.Count(r.MaxTokens))
		}
	}
	fmt.Fprintf(e.out, "exported in the order of %s\n", what)
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "dataset\tmerged\tduplicates left out\texported\ttokens\tloss tokens\t")
	for _, d := range r.Datasets {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", d.Name, human.Count(d.Accepted), human.Count(d.Duplicates), human.Count(d.Samples), human.Count(d.Tokens), human.Count(d.LossTokens))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "planned out: %s dropped, %s over length, %s emptied by the cap; %s positions repeat a sample\n",
		human.Count(r.Dropped), human.Count(r.OverLength), human.Count(r.Emptied), human.Count(r.Repeated))
	for _, s := range r.Splits {
		state := ""
		if s.Unchanged {
			state = ", was there already"
		}
		fmt.Fprintf(e.out, "%s: %s samples, %s tokens, %s%s, sha256 %s\n", s.Path, human.Count(s.Samples), human.Count(s.Tokens), human.Bytes(s.Bytes), state, s.SHA256)
	}
	return nil
}
