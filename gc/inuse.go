package gc

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// openElsewhere looks for another process that has a file below dir open or
// mapped, as a trainer has that reads old states: what eaglebatch did not make
// has no lease. Processes of other users cannot be looked into without
// privileges; they, and systems without /proc, are passed over.
func openElsewhere(dir string) (who, file string) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return "", ""
	}
	self := os.Getpid()
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == self {
			continue
		}
		if file = openBy(filepath.Join("/proc", p.Name()), dir+"/"); file == "" {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))), file
	}
	return "", ""
}

// openBy returns a file with the prefix that a process has open or mapped.
func openBy(proc, prefix string) string {
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name())); err == nil && strings.HasPrefix(to, prefix) {
			return to
		}
	}
	maps, err := os.Open(filepath.Join(proc, "maps"))
	if err != nil {
		return ""
	}
	defer maps.Close() // read only: nothing can be lost
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		if i := strings.IndexByte(sc.Text(), '/'); i >= 0 && strings.HasPrefix(sc.Text()[i:], prefix) {
			return sc.Text()[i:]
		}
	}
	return ""
}
