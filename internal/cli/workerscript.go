package cli

import (
	"io"

	"eaglebatch/extract/backend/worker"

	"github.com/urfave/cli/v2"
)

func (e *env) workerScriptCommand() *cli.Command {
	return &cli.Command{
		Name: "worker-script", Usage: "write out the transformers worker that is built in",
		Description: "The worker backend runs it by itself; write it out to read or to change it, and name the copy in\n" +
			"extract.command. Its first lines say what it needs.\n\n" +
			"Example: eaglebatch worker-script --out eagle_worker.py",
		Flags: []cli.Flag{&cli.StringFlag{Name: "out", Usage: "write to `FILE` instead of stdout"}},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if out := c.String("out"); out != "" {
				return e.fs.WriteFileAtomic(out, func(w io.Writer) error {
					_, err := w.Write(worker.Script)
					return err
				})
			}
			_, err := e.out.Write(worker.Script)
			return err
		},
	}
}
