// Command eaglebatch merges, shuffles, plans and extracts hidden states for
// EAGLE-3 drafter training, and survives whatever happens meanwhile.
package main

import (
	"os"

	"eaglebatch/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
