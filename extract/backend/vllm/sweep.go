package vllm

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// newID makes the id of one attempt at one request.
func (b *Backend) newID() string {
	id := fmt.Sprintf("%s%06d", b.prefix(), b.count.Add(1))
	b.mu.Lock()
	b.flight[id] = true
	b.mu.Unlock()
	return id
}

// prefix begins the ids of this run, and of earlier ones with the same tag.
func (b *Backend) prefix() string { return "eb-" + b.o.Tag + "-" }

// forget ends an attempt; lost says that its file may yet appear.
func (b *Backend) forget(id string, lost bool) {
	b.mu.Lock()
	delete(b.flight, id)
	if lost {
		b.lost[id] = time.Now()
	}
	b.mu.Unlock()
}

// remove unlinks a file of states and its lock. That they are gone already is
// no failure, and one that cannot be removed costs room, not truth: the sweep
// meets it again.
func remove(path string) {
	_ = os.Remove(path)
	_ = os.Remove(path + ".lock")
}

// lostFor is how long a file of a request that was given up is waited for.
const lostFor = 30 * time.Minute

// Sweep removes the files of this run's tag that no request waits for, those
// that a server still writes apart. It returns how many of the requests that
// were given up may still leave something.
func (b *Backend) Sweep() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.o.SharedDir == "" {
		return 0
	}
	entries, err := os.ReadDir(b.o.SharedDir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".lock")
		id, ok := b.idOf(name)
		if !ok || b.flight[id] || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(b.o.SharedDir, name)
		if held(path) {
			continue
		}
		remove(path)
		delete(b.lost, id)
	}
	maps.DeleteFunc(b.lost, func(_ string, at time.Time) bool { return time.Since(at) > lostFor })
	return len(b.lost)
}

// idOf returns the request id in a file's name, if it is one of this tag:
// "cmpl-" + id + "-0-" + 8 hex digits + ".safetensors".
func (b *Backend) idOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "cmpl-"+b.prefix())
	if !ok || filepath.Ext(name) != ".safetensors" {
		return "", false
	}
	n, _, ok := strings.Cut(rest, "-")
	if !ok || n == "" || strings.Trim(n, "0123456789") != "" {
		return "", false
	}
	return b.prefix() + n, true
}

// held reports whether a server still writes the file.
func held(path string) bool {
	f, err := os.Open(path + ".lock")
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
