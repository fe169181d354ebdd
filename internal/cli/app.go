package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"eaglebatch/internal/human"

	"github.com/urfave/cli/v2"
)

// newApp builds the command tree.
func newApp(e *env) *cli.App {
	app := &cli.App{
		Name:  "eaglebatch",
		Usage: "merge, shuffle, plan and extract hidden states for EAGLE-3 drafters, safely and resumably",
		Description: "Reads eaglebatch.yaml and brings tokenized datasets and a model to a sealed generation\n" +
			"of hidden states. The same command resumes after any interruption.\n\n" + exitTable,
		UsageText:            "eaglebatch [-c FILE] [--work DIR] COMMAND [options]",
		HideVersion:          true,
		EnableBashCompletion: true,
		// "--set plan.layers=[2,30]" is one value.
		DisableSliceFlagSeparator: true,
		Writer:                    e.out,
		ErrWriter:                 e.err,
		Reader:                    e.in,
		ExitErrHandler:            func(*cli.Context, error) {},
		Flags:                     commonFlags(),
		Commands: []*cli.Command{
			e.runCommand(), e.initCommand(), e.mergeCommand(), e.shuffleCommand(), e.planCommand(),
			e.gcCommand(), e.extractCommand(), e.statCommand(), e.checkCommand(), e.auditCommand(),
			e.compareCommand(), e.exportCommand(), e.catCommand(), e.generationsCommand(),
			e.doctorCommand(), e.workerScriptCommand(), e.completionCommand(), e.versionCommand(),
		},
	}
	app.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return unknownCommand(app, c.Args().First())
		}
		return cli.ShowAppHelp(c)
	}
	app.OnUsageError = onUsageError
	walk(app.Commands, func(cmd *cli.Command) {
		cmd.OnUsageError = onUsageError
		cmd.Flags = append(cmd.Flags, commonFlags()...)
	})
	return app
}

func walk(cmds []*cli.Command, fn func(*cli.Command)) {
	for _, c := range cmds {
		fn(c)
		walk(c.Subcommands, fn)
	}
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	name := "eaglebatch"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != name {
		name += " " + c.Command.Name
	}
	msg := err.Error()
	if bad, ok := strings.CutPrefix(msg, "flag provided but not defined: "); ok {
		msg = "unknown option " + bad
		if near := human.Nearest(strings.TrimLeft(bad, "-"), flagNames(c)); near != "" {
			return withHint(usagef("%s", msg), "did you mean --%s?", near)
		}
	}
	return withHint(usagef("%s", msg), "see '%s --help'", name)
}

func flagNames(c *cli.Context) []string {
	var out []string
	if c.Command != nil {
		for _, f := range c.Command.Flags {
			out = append(out, f.Names()...)
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < 2 })
}

func unknownCommand(app *cli.App, name string) error {
	var names []string
	for _, c := range app.Commands {
		names = append(names, c.Name)
	}
	err := usagef("there is no command %q", name)
	if near := human.Nearest(name, names); near != "" {
		return withHint(err, "did you mean 'eaglebatch %s'?", near)
	}
	return withHint(err, "see 'eaglebatch --help'")
}

func commonFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "configuration `FILE` (default eaglebatch.yaml)", EnvVars: []string{"EAGLEBATCH_CONFIG"}},
		&cli.StringFlag{Name: "work", Usage: "workspace `DIR`; overrides the file's work", EnvVars: []string{"EAGLEBATCH_WORK"}},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "no progress on stderr"},
	}
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "the report as JSON on stdout"}
}

// inherited returns the value of a string flag given before or after the
// command's name; the one after it wins.
func inherited(c *cli.Context, name string) string {
	for _, l := range c.Lineage() {
		if l != nil && l.IsSet(name) {
			return l.String(name)
		}
	}
	return ""
}

func inheritedBool(c *cli.Context, name string) bool {
	for _, l := range c.Lineage() {
		if l != nil && l.IsSet(name) {
			return l.Bool(name)
		}
	}
	return false
}

// reorder moves the options of a command before its arguments, since the flag
// package stops at the first argument: "cat 3:17 --json" then means what it
// says.
func reorder(app *cli.App, args []string) []string {
	if len(args) < 2 {
		return args
	}
	out, rest := args[:1:1], args[1:]
	cmds, flags := app.Commands, app.Flags
	for len(rest) > 0 {
		var opts, pos []string
		opts, pos = leading(flags, rest)
		out = append(out, opts...)
		rest = pos
		if len(rest) == 0 {
			return out
		}
		i := slices.IndexFunc(cmds, func(c *cli.Command) bool { return c.HasName(rest[0]) })
		if i < 0 {
			opts, pos = split(flags, rest)
			return append(append(out, opts...), pos...)
		}
		out = append(out, rest[0])
		cmds, flags, rest = cmds[i].Subcommands, cmds[i].Flags, rest[1:]
	}
	return out
}

// leading takes the options at the front of args.
func leading(flags []cli.Flag, args []string) (opts, rest []string) {
	for len(args) > 0 && isOption(args[0]) {
		n := width(flags, args)
		opts, args = append(opts, args[:n]...), args[n:]
	}
	return opts, args
}

// split separates all options from the arguments between them.
func split(flags []cli.Flag, args []string) (opts, pos []string) {
	for len(args) > 0 {
		if args[0] == "--" {
			return opts, append(pos, args...)
		}
		if !isOption(args[0]) {
			pos, args = append(pos, args[0]), args[1:]
			continue
		}
		n := width(flags, args)
		opts, args = append(opts, args[:n]...), args[n:]
	}
	return opts, pos
}

func isOption(s string) bool { return len(s) > 1 && s[0] == '-' && s != "--" }

// width is 2 for an option whose value is the next argument.
func width(flags []cli.Flag, args []string) int {
	name := strings.TrimLeft(args[0], "-")
	if strings.Contains(name, "=") || len(args) < 2 {
		return 1
	}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			if _, isBool := f.(*cli.BoolFlag); isBool {
				return 1
			}
			return 2
		}
	}
	return 1
}

// noArgs refuses arguments that a command does not take.
func noArgs(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("%s takes no argument %q", c.Command.Name, c.Args().First())
	}
	return nil
}

func oneArg(c *cli.Context, what string) (string, error) {
	if c.Args().Len() != 1 {
		return "", usagef("%s takes one argument: %s", c.Command.Name, what)
	}
	return c.Args().First(), nil
}

var errNotYet = errors.New("not done yet")

func notYet(phase, command string) error {
	return withHint(fmt.Errorf("%s is %w", phase, errNotYet), "%s", command)
}
