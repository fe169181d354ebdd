package fsx

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// TestFailedSyncIsNotRetried: once an fsync of a path failed, the disk is not
// asked again, from whatever goroutine; other paths are not concerned.
func TestFailedSyncIsNotRetried(t *testing.T) {
	fs := &FS{}
	asked := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := fs.sync(OpSync, "dir/./file", func() error { asked++; return syscall.EIO })
			var s *SyncError
			if !errors.As(err, &s) || !errors.Is(err, syscall.EIO) {
				t.Errorf("error %v, want a SyncError", err)
			}
		})
	}
	wg.Wait()
	if err := fs.sync(OpSync, "dir/file", func() error { asked++; return nil }); err == nil {
		t.Error("an fsync after a failed one succeeded")
	}
	if asked != 1 {
		t.Errorf("the disk was asked %d times", asked)
	}
	if err := fs.sync(OpSync, "dir/other", func() error { return nil }); err != nil {
		t.Error(err)
	}
	if len(fs.syncs) != 1 {
		t.Errorf("%d paths are remembered, want the failed one", len(fs.syncs))
	}
}

// TestNoDirectoryToSync: a directory that is not there is told, not hidden.
func TestNoDirectoryToSync(t *testing.T) {
	for _, fs := range []*FS{nil, {}} {
		if err := fs.SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	}
}

func TestUnflatten(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want error // nil: err comes back as it is
	}{
		{nil, nil},
		{syscall.EIO, nil},
		{errors.New("file sync error: sync manifest.db: no space left on device"), syscall.ENOSPC},
		{errors.New("while flushing: input/output error, retrying"), syscall.EIO},
		{errors.New("key not found"), nil},
	} {
		got := Unflatten(tc.err)
		if tc.want == nil {
			if got != tc.err {
				t.Errorf("%v became %v", tc.err, got)
			}
			continue
		}
		if !errors.Is(got, tc.want) || got.Error() != tc.err.Error() || !errors.Is(got, tc.err) {
			t.Errorf("%v became %v", tc.err, got)
		}
	}
}
