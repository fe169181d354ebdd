package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/internal/pipeline"
	"eaglebatch/internal/progress"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

const defaultConfig = "eaglebatch.yaml"

// setting is a flag that overrides a key of the configuration.
type setting struct {
	flag, key, usage string
}

func mergeSettings() []setting {
	return []setting{
		{"dedup", "merge.dedup", "content or none"},
		{"max-rejects", "merge.max_rejects", "`SHARE` of rejected lines a dataset may have"},
		{"min-loss-tokens", "merge.min_loss_tokens", "reject samples with fewer supervised tokens than `N`"},
	}
}

func shuffleSettings() []setting {
	return []setting{
		{"seed", "shuffle.seed", "`SEED` of the shuffle"},
		{"algorithm", "shuffle.algorithm", "numpy or feistel"},
	}
}

func planSettings() []setting {
	return []setting{
		{"layers", "plan.layers", "auto, or layer ids such as [2,30,58,61]"},
		{"max-tokens", "plan.max_tokens", "cap samples at `N` tokens"},
		{"overlong", "plan.overlong", "truncate, skip or split"},
		{"dtype", "plan.dtype", "bf16, fp16, fp32, or fp8, which loses precision"},
		{"rows", "plan.rows", "rows kept: all, …"},
		{"drop", "plan.drop", "leave out dataset `NAME`"},
		{"reserve", "plan.reserve", "keep `SHARE` or SIZE of the volume free"},
		{"blob-size", "plan.blob_size", "raw bytes a blob"},
		{"tokens-per-second", "plan.tokens_per_second", "engine rate to compute hours from"},
		{"gpus", "plan.gpus", "`N` GPUs, for GPU hours"},
		{"gpu-hour-price", "plan.gpu_hour_price", "price of a GPU hour"},
	}
}

func extractSettings() []setting {
	return []setting{
		{"backend", "extract.backend", "native, vllm, sglang, worker or synthetic"},
		{"memory", "extract.memory", "bound on memory, mapped weights apart"},
		{"threads", "extract.threads", "`N` threads (default: all cores)"},
		{"codec", "extract.codec", "raw, lz4, lz4-planes or dense"},
		{"endpoints", "extract.endpoints", "engine `URL`s: [http://a:8000, http://b:8000]"},
		{"max-quarantined", "extract.max_quarantined", "`SHARE` of samples that may fail"},
		{"patience", "extract.patience", "stop (20) after so long without any sample while engines fail"},
	}
}

func settingFlags(groups ...[]setting) []cli.Flag {
	var out []cli.Flag
	for _, g := range groups {
		for _, s := range g {
			out = append(out, &cli.StringFlag{Name: s.flag, Usage: s.usage + " (" + s.key + ")"})
		}
	}
	return append(out, &cli.StringSliceFlag{Name: "set", Usage: "override any key: `KEY=VALUE`, such as merge.vocab_size=32000"})
}

// given lists the settings that the command line overrides.
func given(c *cli.Context) []setting {
	all := slices.Concat(mergeSettings(), shuffleSettings(), planSettings(), extractSettings())
	return slices.DeleteFunc(all, func(s setting) bool { return !c.IsSet(s.flag) })
}

// load reads the configuration with the command's overrides.
func (e *env) load(c *cli.Context, extra ...config.Override) (config.Config, error) {
	var over []config.Override
	for _, s := range given(c) {
		over = append(over, config.Override{Key: s.key, Value: c.String(s.flag), From: "--" + s.flag})
	}
	for _, kv := range c.StringSlice("set") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return config.Config{}, usagef("--set %q: want KEY=VALUE", kv)
		}
		over = append(over, config.Override{Key: k, Value: v, From: "--set " + k})
	}
	cfg, err := config.Load(e.configPath(c), append(extra, over...))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no configuration at") {
			err = withHint(err, "write one with 'eaglebatch init', or name it with -c FILE")
		}
		return cfg, err
	}
	if w := inherited(c, "work"); w != "" {
		if cfg.Work, err = filepath.Abs(w); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func (e *env) configPath(c *cli.Context) string {
	if p := inherited(c, "config"); p != "" {
		return p
	}
	return defaultConfig
}

// workDir finds the workspace for commands that need no configuration.
func (e *env) workDir(c *cli.Context) (string, error) {
	if w := inherited(c, "work"); w != "" {
		return filepath.Abs(w)
	}
	cfg, err := config.Load(e.configPath(c), nil)
	if err != nil {
		return "", withHint(err, "name the workspace with --work DIR, or the configuration with -c FILE")
	}
	return cfg.Work, nil
}

// command renders a command line for this configuration, for hints.
func (e *env) command(c *cli.Context, args string) string {
	s := "eaglebatch " + args
	if p := inherited(c, "config"); p != "" {
		s += " -c " + quote(p)
	}
	if w := inherited(c, "work"); w != "" {
		s += " --work " + quote(w)
	}
	return s
}

// sameRun renders a run with the settings that this command line overrides:
// without them it would do something else than what was asked for.
func (e *env) sameRun(c *cli.Context, args string) string {
	args = strings.TrimSpace("run " + args)
	for _, s := range given(c) {
		args += " --" + s.flag + " " + quote(c.String(s.flag))
	}
	for _, kv := range c.StringSlice("set") {
		args += " --set " + quote(kv)
	}
	return e.command(c, args)
}

// quote makes s one word of a shell, whatever is in it.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_@%+=:,./-", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// reporter makes the run's Reporter once.
func (e *env) reporter(c *cli.Context) *progress.Renderer {
	if e.renderer == nil {
		f, isFile := e.err.(*os.File)
		tty := isFile && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
		e.renderer = progress.NewRenderer(e.err, tty, inheritedBool(c, "quiet"))
	}
	return e.renderer
}

// width is the columns of text that stdout has; 120 where that is not known.
func (e *env) width() int {
	if n := e.screen(); n > 0 {
		return n
	}
	return 120
}

// screen is how wide the terminal is, or COLUMNS says; 0 where the answer goes
// to a file or a program, which wants lines whole.
func (e *env) screen() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	out := e.out
	if a, ok := out.(*answer); ok {
		out = a.w
	}
	if f, isFile := out.(*os.File); isFile {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// tableWidth is the width of tables that end in text: whole lines where they do
// not go to a screen.
func (e *env) tableWidth() int {
	if n := e.screen(); n > 0 {
		return n
	}
	return math.MaxInt
}

// prose prints a line of text, broken between words where it is for a screen.
func (e *env) prose(line string) {
	if n := e.screen(); n > 0 {
		line = human.Wrap(line, n)
	}
	fmt.Fprintln(e.out, line)
}

// session is an open workspace with what a command needs around it.
type session struct {
	*env
	c    *cli.Context
	cfg  config.Config
	ws   *store.Workspace
	rep  progress.Reporter
	live *statusReporter
}

// open opens the workspace for writing; create makes it where there is none.
func (e *env) open(c *cli.Context, cfg config.Config, create bool) (*session, error) {
	o := store.Options{FS: e.fs, Memory: int64(cfg.Extract.Memory) / 4, Command: c.Command.FullName()}
	fn := store.Open
	if create {
		fn = store.Init
	}
	ws, err := fn(c.Context, cfg.Work, o)
	if err != nil {
		return nil, err
	}
	live := newStatusReporter(ws, c.Command.FullName())
	return &session{env: e, c: c, cfg: cfg, ws: ws, live: live, rep: progress.Numbered{Reporter: progress.Tee{e.reporter(c), live}, Names: store.Phases()}}, nil
}

// close ends the session and says in status.json how it ended.
func (s *session) close(err error) error {
	s.live.end(exitCode(err))
	return errors.Join(err, s.ws.Close())
}

func (s *session) runner() *pipeline.Runner {
	return &pipeline.Runner{
		WS: s.ws, Now: time.Now,
		Command: func(phase string) string { return s.sameRun(s.c, "--redo "+phase) },
	}
}

// withSession opens, runs fn and closes.
func (e *env) withSession(c *cli.Context, cfg config.Config, create bool, fn func(*session) error) error {
	s, err := e.open(c, cfg, create)
	if err != nil {
		return err
	}
	return s.close(fn(s))
}

// printJSON writes v to stdout.
func (e *env) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "%s\n", b)
	return err
}

// cancelled turns the end of a context into what ended it.
func cancelled(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errInterrupted) {
			return fmt.Errorf("%w: %w", errInterrupted, err)
		}
	}
	return err
}
