package cli

import (
	"context"

	"eaglebatch/plan"

	"github.com/urfave/cli/v2"
)

func (e *env) checkCommand() *cli.Command        { return &cli.Command{Name: "check"} }
func (e *env) compareCommand() *cli.Command      { return &cli.Command{Name: "compare"} }
func (e *env) exportCommand() *cli.Command       { return &cli.Command{Name: "export"} }
func (e *env) workerScriptCommand() *cli.Command { return &cli.Command{Name: "worker-script"} }
func planFlags() []cli.Flag                      { return []cli.Flag{&cli.IntFlag{Name: "probe"}} }
func (j *job) planExtras(ctx context.Context, rep plan.Report) error { return nil }
func (j *job) probe(ctx context.Context, n int) error { return nil }
