package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"eaglebatch/internal/fsx"
)

// diskCalls are the system calls by which a run gets onto the disk.
const diskCalls = "write,pwrite64,fsync,fdatasync,msync,rename,renameat,renameat2"

// call is a system call of a traced child.
type call struct {
	name     string
	path     string // relative to the site; "" where it names no file in it
	injected bool
}

// straced runs a child under strace with opts, which logs to a file.
func (s site) straced(t testing.TB, log string, env, opts []string, args ...string) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	strace, err := exec.LookPath("strace")
	must(t, err)
	cmd := s.command(ctx, env, args...)
	cmd.Path = strace
	cmd.Args = append([]string{"strace", "-f", "-y", "--seccomp-bpf", "-o", log, "-e", "signal=none"}, opts...)
	cmd.Args = append(append(cmd.Args, "eaglebatch"), args...)
	r, err := finish(cmd)
	if err != nil || ctx.Err() != nil {
		t.Fatalf("%v: %v %v\n%v", cmd.Args, err, ctx.Err(), r)
	}
	return r
}

// Lines of strace -f -y: a call, and the second part of one that took its time.
var (
	callLine   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	resumeLine = regexp.MustCompile(`^(\d+) +<\.\.\. \w+ resumed>`)
	firstPath  = regexp.MustCompile(`^(?:\d+<([^>]*)>|[^"]*"([^"]*)")`) // of a descriptor, or the name to be changed
)

// readCalls reads what straced logged, in the order in which the calls began.
func (s site) readCalls(t testing.TB, log string) (calls []call) {
	t.Helper()
	b, err := os.ReadFile(log)
	must(t, err)
	open := map[string]int{} // the call that a thread is in
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		injected := strings.HasSuffix(line, "(INJECTED)")
		if m := resumeLine.FindStringSubmatch(line); m != nil {
			calls[open[m[1]]].injected = injected
			continue
		}
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue // the end of a thread
		}
		c := call{name: m[2], injected: injected}
		if p := firstPath.FindStringSubmatch(m[3]); p != nil && c.name != "msync" {
			if rel, ok := strings.CutPrefix(p[1]+p[2], s.dir+"/"); ok {
				c.path = rel
			}
		}
		open[m[1]] = len(calls)
		calls = append(calls, c)
	}
	return calls
}

// acknowledged is the last step that a trace of file operations shows to have
// been in the ledger: a step's line is synced before its commit begins. Step 1
// is laid down before the marker that makes a directory a workspace.
func acknowledged(t testing.TB, path, work string) (seq uint64) {
	t.Helper()
	if !exists(path) {
		return 0
	}
	for _, op := range readTrace(t, path, work) {
		if op.Kind == fsx.OpCommit && op.N > 1 {
			seq = max(seq, uint64(op.N))
		}
	}
	return seq
}
