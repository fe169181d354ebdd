package worker

import (
	_ "embed" // the script
	"os"

	"golang.org/x/sys/unix"
)

// ScriptArg stands for the shipped worker's path in a command.
const ScriptArg = "{script}"

// Script is the shipped worker: Hugging Face transformers.
//
//go:embed eagle_worker.py
var Script []byte

// scriptFile returns the script as a file in memory, for a child to read.
func scriptFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("eagle_worker.py", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "eagle_worker.py")
	if _, err := f.Write(Script); err != nil {
		return nil, err
	}
	return f, nil
}
