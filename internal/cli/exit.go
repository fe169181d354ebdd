package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"eaglebatch/extract"
	"eaglebatch/extract/backend"
	"eaglebatch/internal/config"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/samples"
	"eaglebatch/store/states"
)

// The exit codes.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitQuarantined = 3
	ExitDecision    = 4
	ExitStopped     = 5
	ExitNoWorkspace = 10
	ExitInUse       = 11
	ExitDamage      = 12
	ExitNewer       = 13
	ExitEngine      = 20
	ExitDiskFull    = 28
	ExitInterrupted = 130
)

const exitTable = `EXIT STATUS
   0  done
   1  error
   2  usage or configuration
   3  sealed, with some samples quarantined
   4  waiting for a decision: what and how is printed
   5  stopped at the requested time; run again to go on
  10  no workspace here
  11  workspace in use
  12  damage found
  13  written by a newer version
  20  engine unreachable or not making sense; trying again may help (--wait does)
  28  disk full or below the reserve; free space and run again (--wait does)
 130  interrupted; run again to resume`

var (
	errUsage       = errors.New("usage")
	errQuarantined = errors.New("some samples are quarantined")
	errInterrupted = errors.New("interrupted")
	errDamage      = errors.New("damage found")
)

// hinted attaches the command that helps to an error.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

func withHint(err error, format string, args ...any) error {
	return hinted{err, fmt.Sprintf(format, args...)}
}

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// exitCode maps an error to its code. The order matters: an interrupt explains
// whatever else failed because of it.
func exitCode(err error) int {
	for _, m := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{errInterrupted, ExitInterrupted},
		{context.Canceled, ExitInterrupted},
		{store.ErrStopped, ExitStopped},
		{store.ErrDecision, ExitDecision},
		{errQuarantined, ExitQuarantined},
		{store.ErrNoWorkspace, ExitNoWorkspace},
		{store.ErrInUse, ExitInUse},
		{store.ErrNewer, ExitNewer},
		{store.ErrDiskFull, ExitDiskFull},
		{syscall.ENOSPC, ExitDiskFull},
		{syscall.EDQUOT, ExitDiskFull},
		{backend.ErrUnavailable, ExitEngine},
		{store.ErrCorrupt, ExitDamage},
		{errDamage, ExitDamage},
		{config.ErrConfig, ExitUsage},
		{errUsage, ExitUsage},
	} {
		if m.err == nil && err == nil || m.err != nil && errors.Is(err, m.err) {
			return m.code
		}
	}
	return fileExitCode(err)
}

// fileExitCode maps the errors of packages below store, which know no
// sentinels of store.
func fileExitCode(err error) int {
	var (
		badBlob   *blob.CorruptError
		badSample *samples.CorruptError
		newer     *blob.NewerError
	)
	switch {
	case errors.As(err, &badBlob), errors.As(err, &badSample):
		return ExitDamage
	case errors.As(err, &newer):
		return ExitNewer
	}
	return ExitError
}

// exit shows err and returns its code.
func (e *env) exit(err error) int {
	code := exitCode(err)
	if err == nil {
		return code
	}
	var d *store.DecisionError
	switch {
	case errors.As(err, &d):
		e.showDecision(err, d)
	case code == ExitInterrupted:
		fmt.Fprintln(e.err, "eaglebatch: interrupted; what was committed is kept")
	case code == ExitStopped: // asked for: no error
		msg := err.Error()
		fmt.Fprintf(e.err, "eaglebatch: %s; what was committed is kept\n", msg[max(0, strings.Index(msg, store.ErrStopped.Error())):])
	default:
		msg := strings.TrimPrefix(err.Error(), errUsage.Error()+": ")
		fmt.Fprintf(e.err, "eaglebatch: error: %s\n", strings.ReplaceAll(msg, "\n", "\neaglebatch: error: "))
	}
	if h := hintFor(err, code); h != "" {
		fmt.Fprintf(e.err, "eaglebatch: hint: %s\n", strings.ReplaceAll(h, "\n", "\neaglebatch: hint: "))
	}
	return code
}

func (e *env) showDecision(err error, d *store.DecisionError) {
	fmt.Fprintf(e.err, "eaglebatch: decision needed: %s\n", err)
	for _, l := range d.Details {
		fmt.Fprintf(e.err, "  %s\n", l)
	}
	for _, c := range d.Commands {
		fmt.Fprintf(e.err, "eaglebatch: hint: %s\n", c)
	}
}

const (
	hintRedoMerge = "'eaglebatch run --redo merge' makes the samples anew from their sources; states of samples that stay the same are kept"
	hintRepair    = "'eaglebatch check --repair' "
)

// fileHint says what helps when a file of a generation, or a plan, is damaged.
func fileHint(path string) string {
	switch name := filepath.Base(path); {
	case filepath.Ext(name) == ".ebb":
		return hintRepair + "computes the damaged samples anew, into a new generation that points to all that is sound"
	case filepath.Base(filepath.Dir(path)) == "plans":
		return "'eaglebatch run' takes the plan from the generation that it belongs to; where that has none, 'eaglebatch run --redo plan' makes it anew"
	case remakes(name):
		return hintRepair + "makes " + name + " anew from ledger, plan and model"
	}
	return "restore " + path + " from a copy"
}

// remakes: the files of a generation that follow from others.
func remakes(name string) bool {
	return slices.Contains([]string{states.ManifestName, states.IndexName, states.PlanName, genindex.LeaseName, headName}, name)
}

const headName = "target_head.safetensors"

func hintFor(err error, code int) string {
	var h hinted
	if errors.As(err, &h) {
		return h.hint
	}
	var c *store.CorruptError
	if errors.As(err, &c) && c.Hint != "" {
		return c.Hint
	}
	var s *samples.CorruptError
	if errors.As(err, &s) {
		return hintRedoMerge
	}
	var b *blob.CorruptError
	if errors.As(err, &b) {
		return fileHint(b.Path)
	}
	if errors.Is(err, extract.ErrQuarantined) {
		return "raise extract.max_quarantined and run again to seal without them: nothing is computed twice; 'eaglebatch extract --retry-quarantined' then tries them once more"
	}
	if errors.Is(err, extract.ErrNonsense) {
		return "compare engine and model with 'eaglebatch doctor'; where the text itself cannot be foretold, lower extract.min_top1 (0 turns the check off)"
	}
	switch code {
	case ExitNoWorkspace:
		return "make one with 'eaglebatch init', or name it with --work DIR"
	case ExitInUse:
		return "look with 'eaglebatch stat'; wait for it or stop it with 'kill PID'"
	case ExitNewer:
		return "use the version of eaglebatch that wrote it, or a newer one"
	case ExitDamage:
		return "'eaglebatch check --full' says what is hit and what helps"
	case ExitEngine:
		return "check the engine with 'eaglebatch doctor', then run again; 'run --wait' tries again by itself"
	case ExitDiskFull:
		return "free space (see 'eaglebatch gc'), then run again; 'run --wait' goes on by itself"
	case ExitInterrupted, ExitStopped:
		return "the same command resumes"
	}
	return ""
}
