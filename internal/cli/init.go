package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"eaglebatch/internal/config"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

func (e *env) initCommand() *cli.Command {
	return &cli.Command{
		Name: "init", Usage: "write a configuration to start from, and make the workspace it names",
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			path := e.configPath(c)
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				if err := e.fs.WriteFileAtomic(path, func(w io.Writer) error {
					_, err := io.WriteString(w, config.Sample)
					return err
				}); err != nil {
					return err
				}
				fmt.Fprintf(e.out, "wrote %s: name your datasets and the model in it\n", path)
			} else if err != nil {
				return err
			}
			cfg, err := e.load(c)
			if err != nil {
				return err
			}
			ws, err := store.Init(c.Context, cfg.Work, store.Options{FS: e.fs, Command: "init"})
			if err != nil {
				return err
			}
			fmt.Fprintf(e.out, "workspace %s is ready\nnext: %s\n", cfg.Work, e.command(c, "run"))
			return ws.Close()
		},
	}
}

// defaultAt is the configuration for commands that only need the workspace.
func defaultAt(work string) config.Config {
	cfg := config.Default()
	if abs, err := filepath.Abs(work); err == nil {
		work = abs
	}
	cfg.Work = work
	return cfg
}

func (e *env) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a completion script: bash or zsh", ArgsUsage: "{bash|zsh}",
		Action: func(c *cli.Context) error {
			shell, err := oneArg(c, "bash or zsh")
			if err != nil {
				return err
			}
			script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion}[shell]
			if !ok {
				return usagef("completion: %q: want bash or zsh", shell)
			}
			_, err = io.WriteString(e.out, script)
			return err
		},
	}
}

const bashCompletion = `_eaglebatch() {
  local cur="${COMP_WORDS[COMP_CWORD]}"
  COMPREPLY=($(compgen -W "$("${COMP_WORDS[@]:0:$COMP_CWORD}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o default -F _eaglebatch eaglebatch
`

const zshCompletion = `#compdef eaglebatch
_eaglebatch() {
  local -a opts
  opts=("${(@f)$("${(@)words[1,$CURRENT-1]}" --generate-bash-completion 2>/dev/null)}")
  _describe 'values' opts || _files
}
compdef _eaglebatch eaglebatch
`
