package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"eaglebatch/extract/backend"

	"golang.org/x/sys/unix"
)

// process is one child with its socket.
type process struct {
	o     Options
	slot  int
	pid   int
	conn  *net.UnixConn
	r     *Reader
	hello HelloMeta
	log   *log.Logger
	logs  *os.File // of log
	over  sync.Once

	wmu sync.Mutex // one frame at a time

	out     *os.File      // what it prints
	exited  chan struct{} // closed when the child is gone and its output read
	exitErr error         // set before that

	mu   sync.Mutex
	tail []string // last lines that it printed
}

const tailLines = 12

// launch starts a worker and agrees with it on what it computes.
func (b *Backend) launch(ctx context.Context, slot int) (*process, error) {
	p, err := b.spawn(slot)
	if err != nil {
		return nil, fmt.Errorf("worker %d: %w", slot, err)
	}
	if err := p.greet(ctx); err != nil {
		p.kill()
		return nil, p.explain(err)
	}
	return p, nil
}

// spawn starts the child.
func (b *Backend) spawn(slot int) (_ *process, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "worker")
	defer theirs.Close()
	conn, err := net.FileConn(ours) // a copy of the descriptor
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	p := &process{o: b.o, slot: slot, conn: conn.(*net.UnixConn), exited: make(chan struct{})}
	p.r = NewReader(bufio.NewReaderSize(p.conn, 256<<10), max(b.o.MaxBody, 1<<20))
	defer func() {
		if err != nil {
			err = errors.Join(err, p.conn.Close())
		}
	}()
	f, err := b.logFile(slot)
	if err != nil {
		return nil, err
	}
	p.logs, p.log = f, log.New(f, "", log.LstdFlags|log.Lmsgprefix)
	started := make(chan error, 1)
	go p.run(b.o.Command, theirs, started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p.log.SetPrefix(fmt.Sprintf("[%d] ", p.pid))
	p.log.Printf("host: started %q", b.o.Command)
	return p, nil
}

// run starts the child, reads what it prints and waits for it, all on one
// thread: the kernel kills the child when the thread that started it ends.
func (p *process) run(command []string, socket *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	files := []*os.File{socket}
	args := slices.Clone(command)
	if i := slices.Index(args, ScriptArg); i >= 0 {
		script, err := scriptFile()
		if err != nil {
			started <- err
			return
		}
		defer script.Close()
		files = append(files, script)
		args[i] = "/dev/fd/4"
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), "EAGLEBATCH_WORKER_FD=3", "PYTHONUNBUFFERED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, w, err := os.Pipe()
	if err != nil {
		started <- err
		return
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	if err == nil {
		p.pid, p.out = cmd.Process.Pid, out
	}
	err = errors.Join(err, w.Close())
	started <- err
	if err != nil {
		return
	}
	p.copyOutput(out)
	p.exitErr = cmd.Wait()
	p.log.Printf("host: it ended: %v", exitText(p.exitErr))
	close(p.exited)
}

// copyOutput logs what the child and its children print, until none of them
// has the pipe open any more.
func (p *process) copyOutput(r io.Reader) {
	br := bufio.NewReaderSize(r, 8<<10)
	for {
		line, err := br.ReadSlice('\n')
		if s := strings.TrimRight(string(line), "\r\n"); s != "" {
			p.log.Print(s)
			p.mu.Lock()
			p.tail = append(p.tail, s)
			if len(p.tail) > tailLines {
				p.tail = slices.Delete(p.tail, 0, 1)
			}
			p.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// setupError is a worker's statement that it cannot do what it is asked to:
// trying again does not help.
type setupError struct{ message string }

func (e *setupError) Error() string { return e.message }

// greet sends START and waits for HELLO; while the worker loads, it is pinged.
func (p *process) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.end)
	defer stop()
	w := p.watch(func() bool { return true })
	defer w.stop()
	var late atomic.Bool
	limit := time.AfterFunc(p.o.Load, func() { late.Store(true); p.end() })
	defer limit.Stop()
	err := p.send(Frame{Type: Start}, StartMeta{
		Proto: Version, Model: p.o.Model, Layers: p.o.Capture, DType: p.o.DType, Device: p.o.Device,
		Worker: p.slot, Workers: p.o.Workers, MaxBody: p.o.MaxBody,
	})
	for err == nil {
		var f Frame
		if f, err = p.r.Next(); err != nil {
			break
		}
		w.heard()
		switch f.Type {
		case Hello:
			if err := f.decode(&p.hello); err != nil {
				return err
			}
			return p.agree()
		case Fail:
			var m FailMeta
			if err := f.decode(&m); err != nil {
				return err
			}
			return &setupError{m.Message}
		case Log, Pong:
			p.note(f)
		default:
			return fmt.Errorf("%w: %s before HELLO", ErrFrame, f.Type)
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.bit():
		return fmt.Errorf("while it loaded: %w", w.silence())
	case late.Load():
		return fmt.Errorf("it was not ready within %s", p.o.Load)
	}
	return err
}

// agree compares HELLO with what was asked.
func (p *process) agree() error {
	h := &p.hello
	switch {
	case h.Proto != Version:
		return &setupError{fmt.Sprintf("it speaks version %d of the protocol, this program version %d", h.Proto, Version)}
	case !slices.Equal(h.Layers, p.o.Capture):
		return &setupError{fmt.Sprintf("it gives layers %v, asked were %v", h.Layers, p.o.Capture)}
	case h.DType != p.o.DType:
		return &setupError{fmt.Sprintf("it gives %s, asked was %s", h.DType, p.o.DType)}
	case h.Hidden <= 0 || h.NumLayers <= 0 || h.MaxInFlight <= 0 || h.Engine == "" || h.EngineVersion == "":
		return &setupError{fmt.Sprintf("HELLO lacks engine, version, sizes or max_inflight: %+v", *h)}
	}
	// One row may be larger than what was asked for.
	p.r.maxBody = max(p.r.maxBody, h.Hidden*len(h.Layers)*dtypeSize(h.DType))
	return nil
}

// explain adds what the worker printed and how it ended.
func (p *process) explain(err error) error {
	var setup *setupError
	if errors.As(err, &setup) {
		where := ""
		if p.o.LogDir != "" {
			where = ", and what it printed in " + filepath.Join(p.o.LogDir, fmt.Sprintf("worker-%d.log", p.slot))
		}
		return fmt.Errorf("worker %d cannot do what it is asked to: %w (see extract.command%s)", p.slot, err, where)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := fmt.Sprintf("worker %d (pid %d)", p.slot, p.pid)
	select {
	case <-p.exited:
		text += " died: " + exitText(p.exitErr)
	default:
		text += " failed"
	}
	p.mu.Lock()
	if n := len(p.tail); n > 0 {
		text += fmt.Sprintf("; its last words: %q", p.tail[n-1])
	}
	p.mu.Unlock()
	return fmt.Errorf("%s: %w: %w", text, err, backend.ErrUnavailable)
}

// send writes one frame. A worker that takes nothing for the time after which
// it would be dead is.
func (p *process) send(f Frame, meta any) error {
	b, err := marshal(meta)
	if err != nil {
		return err
	}
	f.Meta = b
	p.wmu.Lock()
	defer p.wmu.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(p.o.Quiet + p.o.Dead)); err != nil {
		return err
	}
	return WriteFrame(p.conn, f)
}

// note keeps a LOG.
func (p *process) note(f Frame) {
	var m struct {
		Message string `json:"message"`
	}
	if f.Type == Log && f.decode(&m) == nil {
		p.log.Print(m.Message)
	}
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill ends the process and closes its log.
func (p *process) kill() {
	p.end()
	p.over.Do(func() { _ = p.logs.Close() })
}

// end ends the process group and waits. It may be called at any time and often.
func (p *process) end() {
	// While the child is not waited for, its id, which is its group's, is its own.
	if p.alive() {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
	_ = p.conn.Close()
	select {
	case <-p.exited:
		return
	case <-time.After(p.o.Grace):
	}
	_ = p.out.Close() // a grandchild that left the group holds the other end
	<-p.exited
}

// leave lets the child finish by itself, within grace.
func (p *process) leave(grace time.Duration) {
	if err := p.conn.CloseWrite(); err == nil {
		go func() { // its BYE and what it still has to say
			for {
				if _, err := p.r.Next(); err != nil {
					return
				}
			}
		}()
		select {
		case <-p.exited:
		case <-time.After(grace):
			p.log.Printf("host: it did not leave within %s", grace)
		}
	}
	p.kill()
}
