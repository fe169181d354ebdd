package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"

	"golang.org/x/sys/unix"
)

// Main runs the command line in args and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	faults, err := fault.FromEnv(os.Getenv)
	if err != nil {
		fmt.Fprintf(stderr, "eaglebatch: error: %v\n", err)
		return ExitUsage
	}
	// A crash of the Go runtime itself (SIGBUS when others fill the disk under
	// a mapped file) would exit with 2, as bad usage does. "crash" makes it die
	// by SIGABRT instead; no core file is wanted.
	debug.SetTraceback("crash")
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		fmt.Fprintf(stderr, "eaglebatch: cannot turn core files off: %v\n", err)
	}
	fs := &fsx.FS{Faults: faults}
	closeTrace, err := traceFromEnv(fs)
	if err != nil {
		fmt.Fprintf(stderr, "eaglebatch: error: %v\n", err)
		return ExitUsage
	}
	defer closeTrace()
	answer := &answer{w: stdout}
	e := &env{in: stdin, out: answer, err: stderr, fs: fs, interrupt: make(chan struct{})}
	ctx, stop := e.signals(context.Background())
	defer stop()
	err = newApp(e).RunContext(ctx, reorder(newApp(e), args))
	if err == nil {
		err = answer.err
	}
	return e.exit(err)
}

// answer is stdout. It remembers the first write that failed: an answer that did
// not arrive is no success, whoever printed it.
type answer struct {
	w   io.Writer
	err error
}

func (a *answer) Write(p []byte) (int, error) {
	n, err := a.w.Write(p)
	if err != nil && a.err == nil {
		a.err = err
	}
	return n, err
}

// traceFromEnv records every file operation to the file that
// EAGLEBATCH_FSTRACE names, one a line, for drills that check their order.
func traceFromEnv(fs *fsx.FS) (func(), error) {
	path := os.Getenv("EAGLEBATCH_FSTRACE")
	if path == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	fs.Trace = func(op fsx.Op) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(f, "%s\t%s\t%d\n", op.Kind, op.Path, op.N)
	}
	return func() { f.Close() }, nil
}

// env is what one invocation shares.
type env struct {
	in       io.Reader
	out, err io.Writer
	fs       *fsx.FS
	renderer *progress.Renderer

	interrupt chan struct{} // closed at the first SIGINT or SIGTERM
}

// signals arranges that the first SIGINT or SIGTERM asks for an orderly end and
// the second ends now. SIGHUP is ignored: a night survives a lost terminal.
func (e *env) signals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 4)
	signal.Ignore(syscall.SIGHUP)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	done := make(chan struct{})
	go func() {
		first := true
		for {
			select {
			case <-done:
				return
			case s := <-ch:
				if s == syscall.SIGUSR1 {
					if e.renderer != nil {
						e.renderer.Snapshot()
					}
					continue
				}
				if !first {
					cancel(errInterrupted)
					continue
				}
				first = false
				fmt.Fprintf(e.err, "eaglebatch: %v: finishing what is open (again to stop now)\n", s)
				close(e.interrupt)
			}
		}
	}()
	return ctx, func() { signal.Stop(ch); close(done); cancel(nil) }
}

// phaseContext is cancelled by the first signal already: for phases that lose
// nothing by stopping at once.
func (e *env) phaseContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-e.interrupt:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
