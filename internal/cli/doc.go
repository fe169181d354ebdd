// Package cli is the command line: one file a command, flags to options to the
// phase to its report. It alone knows urfave/cli, exit codes and hints.
//
// stdout is the answer; everything else, progress included, goes to stderr.
package cli
