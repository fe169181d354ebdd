package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"eaglebatch/extract/backend/worker"
)

// WorkerEnv makes the test binary a worker: its value is the script.
const WorkerEnv = "EAGLEBATCH_TEST_WORKER"

// The fake's model.
const (
	WorkerHidden = 32
	WorkerLayers = 12
	WorkerVocab  = 500
	WorkerMax    = 900
)

// RunWorker runs the fake worker if the environment asks for one, and does not
// return then. Call it from TestMain.
//
// The script is a list of items separated by commas; N counts the requests of
// one process from 1:
//
//	die@N        exits at request N, the first time only: FILE=… remembers
//	poison=ID    exits at every sample with that token
//	refuse@N     ERR for request N
//	hang@N       answers nothing any more, PING neither
//	slow@N       request N takes as long as five watchdogs, PING is answered
//	badmagic@N, short@N, layers@N, wrongids@N, stray@N, crc@N, rows@N
//	             a broken answer
//	setup        says that it cannot
//	dead         exits before HELLO
//	mute         no HELLO, nor an answer to PING
//	loading      no HELLO, PING is answered
//	other        HELLO with other layers than asked
//	chatty       prints on stdout and stderr
//	stay         does not leave when the host closes
//	reverse      answers in reverse order where it can
func RunWorker() {
	script, ok := os.LookupEnv(WorkerEnv)
	if !ok {
		return
	}
	w := &fakeWorker{items: strings.Split(script, ",")}
	if err := w.run(); err != nil {
		fmt.Fprintln(os.Stderr, "fake worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type fakeWorker struct {
	items []string
	conn  net.Conn
	start worker.StartMeta
	n     int
}

// has reports whether the script has an item, with @N for the current request.
func (w *fakeWorker) has(name string) bool {
	for _, it := range w.items {
		if it == name || it == name+"@"+strconv.Itoa(w.n) {
			return true
		}
	}
	return false
}

func (w *fakeWorker) arg(name string) string {
	for _, it := range w.items {
		if v, ok := strings.CutPrefix(it, name+"="); ok {
			return v
		}
	}
	return ""
}

func (w *fakeWorker) send(t worker.Type, seq uint32, meta any, body []byte) error {
	b, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	return worker.WriteFrame(w.conn, worker.Frame{Type: t, Seq: seq, Meta: b, Body: body, Sum: t == worker.Resp})
}

func (w *fakeWorker) run() (err error) {
	if w.conn, err = net.FileConn(os.NewFile(3, "host")); err != nil {
		return err
	}
	if w.has("dead") {
		fmt.Fprintln(os.Stderr, "no such GPU")
		os.Exit(3)
	}
	if w.arg("child") != "" { // a grandchild of the same group
		c := exec.Command("sleep", w.arg("child"))
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
	}
	r := worker.NewReader(w.conn, 64<<20)
	for {
		f, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		switch f.Type {
		case worker.Start:
			err = w.hello(f)
		case worker.Ping:
			err = w.send(worker.Pong, f.Seq, struct{}{}, nil)
		case worker.Req:
			w.n++
			err = w.answer(f)
		default:
			err = fmt.Errorf("%s from the host", f.Type)
		}
		if err != nil {
			return err
		}
	}
	if w.has("stay") {
		time.Sleep(time.Hour)
	}
	return w.send(worker.Bye, 0, struct{}{}, nil)
}

func (w *fakeWorker) hello(f worker.Frame) error {
	if err := json.Unmarshal(f.Meta, &w.start); err != nil {
		return err
	}
	if w.has("setup") {
		return w.send(worker.Fail, 0, worker.FailMeta{Code: "setup", Message: "torch is not installed"}, nil)
	}
	if w.has("mute") {
		time.Sleep(time.Hour)
	}
	if w.has("loading") {
		return nil // for ever, but it answers pings
	}
	if w.has("chatty") {
		fmt.Println("a library greets on stdout")
		fmt.Fprintln(os.Stderr, "and on stderr")
	}
	layers := w.start.Layers
	if w.has("other") {
		layers = []int{1, 3}
	}
	return w.send(worker.Hello, 0, worker.HelloMeta{
		Proto: worker.Version, Engine: "fake", EngineVersion: "1", Model: w.start.Model, Hidden: WorkerHidden, NumLayers: WorkerLayers,
		Vocab: WorkerVocab, Layers: layers, DType: w.start.DType, LastPreNorm: true, MaxTokens: WorkerMax, MaxInFlight: 4, Deterministic: true,
	}, nil)
}

// once reports whether an event happens the first time, over all processes.
func (w *fakeWorker) once() bool {
	name := w.arg("FILE")
	if name == "" {
		return true
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func (w *fakeWorker) die() {
	fmt.Fprintln(os.Stderr, "Segmentation fault (scripted)")
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (w *fakeWorker) answer(f worker.Frame) error {
	ids := make([]uint32, len(f.Body)/4)
	poison, _ := strconv.Atoi(w.arg("poison"))
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint32(f.Body[4*i:])
		if poison > 0 && int(ids[i]) == poison {
			w.die()
		}
	}
	switch {
	case w.has("die") && w.once():
		w.die()
	case w.has("hang"):
		time.Sleep(time.Hour)
	case w.has("refuse"):
		return w.send(worker.Fail, f.Seq, worker.FailMeta{Code: "oom", Retryable: true, Message: "scripted"}, nil)
	case w.has("badmagic"):
		_, err := w.conn.Write([]byte("Traceback (most recent call last):\n  File worker.py, line 1, in <module>\n"))
		return err
	case w.has("stray"):
		f.Seq += 1000
	}
	return w.rows(f.Seq, ids)
}

// rows sends an answer in frames of at most max_body bytes.
func (w *fakeWorker) rows(seq uint32, ids []uint32) error {
	data := Rows(ids, w.start.Layers, WorkerHidden)
	row := len(w.start.Layers) * WorkerHidden * 2
	step := max(1, w.start.MaxBody/row)
	var raw []byte
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	sum := crc32.ChecksumIEEE(raw)
	if w.has("wrongids") {
		sum++
	}
	for first := 0; first < len(ids); first += step {
		n := min(step, len(ids)-first)
		m := worker.RespMeta{First: first, Shape: [3]int{n, len(w.start.Layers), WorkerHidden}, DType: w.start.DType}
		if first == 0 {
			m.Tokens = &sum
		}
		body := data[first*row : (first+n)*row]
		switch {
		case w.has("short"):
			body = body[:len(body)-2]
		case w.has("layers"):
			m.Shape[1]--
		case w.has("rows"):
			m.First++
		}
		if err := w.send(worker.Resp, seq, m, body); err != nil {
			return err
		}
	}
	return nil
}
