package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/native"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// finding is one thing that doctor looked at.
type finding struct {
	What    string `json:"what"`
	Verdict string `json:"verdict"` // ok, warn, fail
	Detail  string `json:"detail"`
}

func (e *env) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "look at the machine, the configuration and the engine",
		Flags: slices.Concat([]cli.Flag{jsonFlag()}, settingFlags(planSettings(), extractSettings())),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			return e.doctor(c)
		},
	}
}

func (e *env) doctor(c *cli.Context) error {
	fs := []finding{e.machine()}
	kernels, err := native.Doctor(c.Context)
	fs = append(fs, verdict("native kernels", kernelText(kernels), err))
	cfg, err := e.load(c)
	fs = append(fs, verdict("configuration", e.configPath(c), err))
	if err == nil {
		j := &job{session: &session{env: e, c: c, cfg: cfg}}
		fs = append(fs, j.examine(c.Context)...)
	}
	if c.Bool("json") {
		err = e.printJSON(map[string]any{"findings": fs})
	} else {
		err = e.printFindings(fs)
	}
	if err == nil && slices.ContainsFunc(fs, func(f finding) bool { return f.Verdict == "fail" }) {
		err = errors.New("doctor found something that stops a run")
	}
	return err
}

// kernelText names the kernels and what they do on one thread; the first of
// each kind is the one in use.
func kernelText(ks []native.KernelSpeed) string {
	var out []string
	for _, k := range ks {
		used := ""
		if k.Default {
			used = " (in use)"
		}
		out = append(out, fmt.Sprintf("%s %s%s %.3g GFLOP/s", k.Compute, k.Name, used, k.GFLOPS))
	}
	return strings.Join(out, ", ")
}

func verdict(what, detail string, err error) finding {
	if err != nil {
		return finding{what, "fail", err.Error()}
	}
	return finding{what, "ok", detail}
}

func (e *env) printFindings(fs []finding) error {
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', 0)
	for _, f := range fs {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Verdict, f.What, f.Detail)
	}
	return w.Flush()
}

func (e *env) machine() finding {
	var lim unix.Rlimit
	detail := fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return verdict("machine", detail, err)
	}
	f := finding{"machine", "ok", fmt.Sprintf("%s, %d open files allowed", detail, lim.Cur)}
	if lim.Cur < 1024 {
		f.Verdict, f.Detail = "warn", f.Detail+": raise it to 1024 or more with ulimit -n"
	}
	return f
}

// examine looks at model, workspace, disk and engine.
func (j *job) examine(ctx context.Context) []finding {
	var fs []finding
	dir := existing(j.cfg.Work)
	if sp, err := fsx.SpaceAt(dir); err != nil {
		fs = append(fs, verdict("disk", "", err))
	} else {
		f := finding{"disk", "ok", fmt.Sprintf("%s free of %s under %s (%s), reserve %s", human.Bytes(sp.Free), human.Bytes(sp.Total), dir, fsType(dir), human.Bytes(j.cfg.Plan.Reserve.Of(sp.Total)))}
		if sp.Free < j.cfg.Plan.Reserve.Of(sp.Total) {
			f.Verdict, f.Detail = "fail", f.Detail+": free space is below the reserve"
		}
		fs = append(fs, f)
	}
	fs = append(fs, j.examineWorkspace())
	if err := j.readModel(); err != nil {
		return append(fs, verdict("model", "", err))
	}
	fs = append(fs, finding{"model", "ok", fmt.Sprintf("%s: %s, hidden size %d, %d layers, vocabulary %d, weights at hand: %v; layers to store %v", j.cfg.Model, j.model.Arch, j.model.Hidden, j.model.Layers, j.model.Vocab, j.model.Weights, j.layers)})
	if j.cfg.Extract.Backend == "vllm" {
		fs = append(fs, j.examineVLLM()...)
	}
	if j.cfg.Extract.APIKeyFile != "" {
		fs = append(fs, examineKeyFile(j.cfg.Extract.APIKeyFile))
	}
	return append(fs, j.examineEngine(ctx)...)
}

func (j *job) examineWorkspace() finding {
	snap, err := store.Inspect(j.cfg.Work)
	switch {
	case errors.Is(err, store.ErrNoWorkspace):
		return finding{"workspace", "ok", j.cfg.Work + ": not made yet"}
	case err != nil:
		return verdict("workspace", "", err)
	case snap.Live:
		return finding{"workspace", "warn", fmt.Sprintf("%s: in use by pid %d (%s)", j.cfg.Work, snap.Holder.PID, snap.Holder.Command)}
	}
	return finding{"workspace", "ok", j.cfg.Work}
}

// examineEngine asks the engine for one short sample.
func (j *job) examineEngine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	b, err := j.newBackend(ctx)
	if err != nil {
		return []finding{verdict("engine", "", err)}
	}
	defer b.Close()
	fs := j.examineServers(ctx, b)
	if n, ok := b.(*native.Backend); ok {
		fs = append(fs, nativeMemory(n.Need(), int(j.cfg.Plan.MaxTokens)))
	}
	began := time.Now()
	info, err := b.Describe(ctx)
	if err != nil {
		return append(fs, verdict("engine "+j.cfg.Extract.Backend, "", err))
	}
	bad := j.examineSlots(ctx, b, info)
	if fs = append(fs, bad...); len(bad) > 0 && (len(bad) == info.Slots || !several(b)) {
		return fs
	}
	f := finding{"engine " + j.cfg.Extract.Backend, "ok", fmt.Sprintf("%s %s, %d slot(s), returns layers %v as %s; one sample of %d tokens in %s",
		info.Engine, info.Version, info.Slots, info.Capture, info.DType, len(j.preflightTokens()), human.Duration(time.Since(began)))}
	if info.Hidden != j.model.Hidden || !slices.Equal(info.Capture, j.layers) {
		f.Verdict, f.Detail = "fail", f.Detail+fmt.Sprintf(": the model has hidden size %d and layers %v are wanted", j.model.Hidden, j.layers)
		return append(fs, f)
	}
	return append(fs, f, j.examineSense(ctx, b, info))
}

// several: the backend's slots are servers of their own.
func several(b backend.Backend) bool {
	_, ok := b.(backend.Namer)
	return ok
}

// examineSlots asks each endpoint for a short sample, and returns what is wrong. Of
// workers, which would each load the model, the first speaks for all.
func (j *job) examineSlots(ctx context.Context, b backend.Backend, info backend.Info) (bad []finding) {
	slots := 1
	if several(b) {
		slots = info.Slots
	}
	for slot := range slots {
		if err := askSlot(ctx, b, slot, j.preflightTokens()); err != nil {
			bad = append(bad, verdict("engine "+j.cfg.Extract.Backend, "", err))
		}
	}
	return bad
}

// nativeMemory states what the native engine takes before it takes it, for
// samples of up to longest tokens; 0: of any length.
func nativeMemory(n native.Need, longest int) finding {
	f := finding{"native memory", "ok", fmt.Sprintf("%s of weights mapped; %s and %s for each token of a batch: samples of up to %d tokens fit into half of extract.memory",
		human.Bytes(n.Weights), human.Bytes(n.Fixed), human.Bytes(n.Token), n.MaxTokens)}
	if longest > n.MaxTokens {
		f.Verdict, f.Detail = "warn", f.Detail+fmt.Sprintf("; plan.max_tokens is %d: raise extract.memory to %s, or lower it", longest, human.Bytes(n.Memory(longest)))
	}
	return f
}

// existing returns the deepest part of path that is there.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

func fsType(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "unknown filesystem"
	}
	names := map[int64]string{0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x6969: "nfs", 0x794c7630: "overlay", 0x2fc12fc1: "zfs"}
	if n, ok := names[int64(st.Type)]; ok {
		return n
	}
	return fmt.Sprintf("filesystem type %#x", st.Type)
}
