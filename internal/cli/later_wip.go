package cli

import "github.com/urfave/cli/v2"

func (e *env) compareCommand() *cli.Command      { return &cli.Command{Name: "compare"} }
func (e *env) workerScriptCommand() *cli.Command { return &cli.Command{Name: "worker-script"} }
