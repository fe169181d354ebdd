package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// eaten: on a full disk others have the room of the reserve too, and take every
// block at the moment it becomes free, while gc deletes old states. What the ledger
// has to write lies in blocks that it had before.
func (v *fullVolume) eaten(t *testing.T) (c tally) {
	v.s.configure(t, strings.Replace(drillConfig, "256KiB", "4MiB", 1))
	for range 3 {
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		v.wipe(t)
		v.s.ok(t, "run")
		must(t, os.Remove(v.s.work("reserve.bin")))
		must(t, v.fill())
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				case <-time.After(100 * time.Microsecond):
				}
				if err := v.fill(); err != nil {
					done <- err
					return
				}
			}
		}()
		r := v.s.run(t, nil, "gc", "--apply", "--now", "--name", "gen-000002", "--yes", "gen-000002", "--no-fallback")
		close(stop)
		must(t, <-done)
		if r.code != 0 {
			bad("gc while others fill the disk: %v", r)
		}
		if _, err := os.Lstat(v.s.work("generations", "000002")); err == nil {
			bad("the old states are still there")
		}
		v.grow(t)
		if r := v.s.run(t, nil, "check", "--full"); r.code != 0 {
			bad("afterwards: %v", r)
		}
		if c.tried++; len(problems) > 0 {
			c.lost++
			t.Errorf("%s", strings.Join(problems, "\n"))
		}
	}
	v.wipe(t)
	c.survived = c.tried - c.lost
	return c
}
