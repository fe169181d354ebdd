package fsx

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyRegularFiles: what is no file is refused at once; a pipe without a writer would block for ever.
func TestOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, os.DevNull} {
		_, open := Open(path)
		_, read := ReadFile(path)
		for _, err := range []error{open, read} {
			if !errors.Is(err, ErrNotRegular) {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	for _, n := range []int{0, 1, 4095, 100_000} {
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i * 7)
		}
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(file); err != nil || string(got) != string(want) {
			t.Errorf("%d bytes: %d read, %v", n, len(got), err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
