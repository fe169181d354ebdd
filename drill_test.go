package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"

	"golang.org/x/sys/unix"
)

// The drills start eaglebatch as a child, hurt it or its disk, let it go on,
// and compare what there is in the end with an undisturbed run.
var (
	long    = flag.Bool("long", false, "soak: more cuts, sizes and faults in the drills")
	drills  = os.Getenv("EAGLEBATCH_DRILLS") != ""     // those that need root, loop devices or strace
	table   = os.Getenv("EAGLEBATCH_DRILL_TABLE")      // where the drills' results are collected
	keepDir = os.Getenv("EAGLEBATCH_DRILL_KEEP") != "" // leave the directory of a failed drill
)

// tally counts what a drill tried and what was lost.
type tally struct{ tried, survived, lost int }

// report puts a line into the table.
func (c tally) report(t *testing.T, name string) {
	t.Helper()
	t.Logf("%s: tried %d, survived %d, lost %d", name, c.tried, c.survived, c.lost)
	if c.tried == 0 || c.lost > 0 || t.Failed() {
		t.Errorf("%s: tried %d, lost %d", name, c.tried, c.lost)
	}
	tableLine(t, fmt.Sprintf("%s\t%d\t%d\t%d", name, c.tried, c.survived, c.lost))
}

func tableLine(t *testing.T, line string) {
	t.Helper()
	if table == "" {
		return
	}
	f, err := os.OpenFile(table, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	must(t, err)
	_, err = f.WriteString(line + "\n")
	must(t, errors.Join(err, f.Close()))
}

// skip ends a drill that cannot run here, visibly.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	tableLine(t, "SKIPPED\t"+t.Name()+"\t"+fmt.Sprintf(format, args...))
	t.Skipf(format, args...)
}

// needDrills skips unless the drills that change the machine were asked for.
func needDrills(t *testing.T, tools ...string) {
	t.Helper()
	if !drills && !*long {
		t.Skip("needs EAGLEBATCH_DRILLS=1 (as .ci/run sets it) or -long")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, "needs %s: %v", tool, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scratch is a directory in memory where there is one: killing a process loses
// no page, so that only the speed differs.
func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if sp, err := fsx.SpaceAt("/dev/shm"); err == nil && sp.Free > 1<<30 {
		if d, err := os.MkdirTemp("/dev/shm", "eaglebatch-drill-"); err == nil {
			dir = d
		}
	}
	t.Cleanup(func() {
		if keepDir && t.Failed() {
			t.Logf("kept: %s", dir)
			return
		}
		must(t, os.RemoveAll(dir))
	})
	return dir
}

const drillConfig = `work: ./work
datasets:
  - {name: A, path: data/A.jsonl}
  - {name: B, path: data/B.jsonl}
  - {name: C, path: data/C.jsonl}
model: ./model
shuffle: {seed: 42}
plan: {layers: [2, 4, 8], blob_size: 256KiB, reserve: 1MiB}
gc: {keep: 1, min_age: 0s}
extract: {backend: synthetic, memory: 256MiB}
`

// site is a directory with a configuration, datasets and a workspace.
type site struct {
	dir string
	env []string // added to every child's
}

func (s site) work(path ...string) string {
	return filepath.Join(append([]string{s.dir, "work"}, path...)...)
}

// newSite writes three small datasets, the last line of each a duplicate, and
// a model that is only a shape.
func newSite(t testing.TB, dir string) site {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	must(t, os.MkdirAll(filepath.Join(dir, "data"), 0o777))
	must(t, os.MkdirAll(filepath.Join(dir, "model"), 0o777))
	for _, name := range []string{"A", "B", "C"} {
		var b bytes.Buffer
		var line []byte
		for i := range 20 {
			n := 20 + rng.IntN(40)
			ids, mask := make([]int, n), make([]int, n)
			for j := range ids {
				ids[j] = 3 + rng.IntN(997)
				mask[j] = min(1, j/7)
			}
			var err error
			line, err = json.Marshal(map[string]any{"id": fmt.Sprint(name, "-", i), "input_ids": ids, "loss_mask": mask})
			must(t, err)
			b.Write(append(line, '\n'))
		}
		b.Write(append(line, '\n'))
		must(t, os.WriteFile(filepath.Join(dir, "data", name+".jsonl"), b.Bytes(), 0o666))
	}
	must(t, os.WriteFile(filepath.Join(dir, "model", "config.json"), []byte(`{"architectures":["LlamaForCausalLM"],
"model_type":"llama","hidden_size":64,"num_hidden_layers":8,"num_attention_heads":4,"num_key_value_heads":2,
"intermediate_size":112,"vocab_size":1000,"max_position_embeddings":2048}`), 0o666))
	s := site{dir: dir}
	s.configure(t, drillConfig)
	return s
}

func (s site) configure(t testing.TB, yaml string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(s.dir, "eaglebatch.yaml"), []byte(yaml), 0o666))
}

// copySite copies a site. The reserve is never written to: it is linked.
func copySite(t testing.TB, from site, dir string) site {
	t.Helper()
	must(t, filepath.WalkDir(from.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from.dir, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o777)
		case d.Name() == "reserve.bin" && os.Link(path, to) == nil:
			return nil
		}
		return copyFile(path, to)
	}))
	return site{dir: dir, env: from.env}
}

// copyFile copies what a file holds and leaves its holes out: Badger's logs are
// a GiB of hole each while they are open.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for at := int64(0); ; {
		if at, err = in.Seek(at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return out.Truncate(st.Size())
		}
		end, herr := in.Seek(at, unix.SEEK_HOLE)
		if err = errors.Join(err, herr); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, at), io.NewSectionReader(in, at, end-at)); err != nil {
			return err
		}
		at = end
	}
}

// ending is how a child ended.
type ending struct {
	code   int // exit code, -1 where a signal ended it
	signal syscall.Signal
	out    string
	err    string
}

func (r ending) String() string {
	return fmt.Sprintf("exit code %d, signal %v\n%s%s", r.code, r.signal, r.out, r.err)
}

// command prepares a child in the site's directory.
func (s site) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "eaglebatch", args...)
	cmd.Dir = s.dir
	cmd.Env = append(append(os.Environ(), s.env...), env...)
	// Go's answer to it is the stack of every goroutine: where the child hangs.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a child to its end. A child that hangs is a failed drill.
func (s site) run(t testing.TB, env []string, args ...string) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := finish(s.command(ctx, env, args...))
	if err != nil || ctx.Err() != nil {
		t.Fatalf("eaglebatch %v: %v %v\n%v", args, err, ctx.Err(), r)
	}
	return r
}

// finish runs cmd and says how it ended.
func finish(cmd *exec.Cmd) (ending, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	r := ending{out: out.String(), err: stderr.String()}
	var x *exec.ExitError
	if !errors.As(err, &x) {
		return r, err
	}
	r.code = x.ExitCode()
	if ws, ok := x.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.signal = ws.Signal()
	}
	return r, nil
}

// ok runs a child that must succeed.
func (s site) ok(t testing.TB, args ...string) ending {
	t.Helper()
	r := s.run(t, nil, args...)
	if r.code != 0 {
		t.Fatalf("eaglebatch %v: %v", args, r)
	}
	return r
}

// files returns the SHA-256 of every file that the promises are about, by its
// path in the workspace. Times, pids and root ids live elsewhere. The order
// and the plan in force go by their role: an interrupted attempt uses up a
// number, and gc removes what it left.
func (s site) files(t testing.TB) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, dir := range []string{"generations", "rejects", "samples", "trash", "../out"} {
		err := filepath.WalkDir(s.work(dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || d.Name() == "LEASE" || d.Name() == "db.json" || filepath.Base(filepath.Dir(path)) == "db" {
				return err
			}
			b, err := os.ReadFile(path)
			sums[strings.TrimPrefix(strings.TrimPrefix(path, s.work()+"/"), s.dir+"/")] = fmt.Sprintf("%x", sha256.Sum256(b))
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			must(t, err)
		}
	}
	snap := s.snapshot(t)
	order, hasOrder, err := snap.Order()
	must(t, err)
	plan, hasPlan, err := snap.Plan()
	must(t, err)
	for path, ok := range map[string]bool{fmt.Sprintf("orders/%06d.ebo", order.ID): hasOrder, fmt.Sprintf("plans/%06d.ebi", plan.ID): hasPlan} {
		if ok {
			b, err := os.ReadFile(s.work(path))
			must(t, err)
			sums[filepath.Dir(path)] = fmt.Sprintf("%x", sha256.Sum256(b))
		}
	}
	return sums
}

// temporary lists what an interrupted file operation left.
func (s site) temporary(t testing.TB) (left []string) {
	t.Helper()
	must(t, filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(d.Name(), fsx.TempSuffix) {
			left = append(left, path)
		}
		return err
	}))
	return left
}

// snapshot looks at the ledger; nil where there is no workspace yet.
func (s site) snapshot(t testing.TB) *store.Snapshot {
	t.Helper()
	snap, err := store.Inspect(s.work())
	if errors.Is(err, store.ErrNoWorkspace) {
		return nil
	}
	must(t, err)
	return snap
}

// mount mounts a filesystem of its own; options as mount(8) takes them.
func mount(t *testing.T, fstype, image, options string) (dir string, remount func()) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"-o", options, image, dir}
	if fstype == "tmpfs" {
		args = append([]string{"-t", "tmpfs"}, args...)
	}
	up := func() {
		if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
			skip(t, "needs to mount %s: %v %s", fstype, err, out)
		}
	}
	down := func(flags int) (err error) {
		// A child that another goroutine is just starting holds this process's
		// open files for a moment.
		for range 1000 {
			if err = unix.Unmount(dir, flags); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		return err
	}
	up()
	t.Cleanup(func() { must(t, down(unix.MNT_DETACH)) })
	return dir, func() { must(t, down(0)); up() }
}
