package cli

import (
	"fmt"
	"syscall"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// TestWaitEndsWhereOnlyAnotherProcessMayGoOn: run --wait tries again where the
// disk was full, but not after an fsync for which it was.
func TestWaitEndsWhereOnlyAnotherProcessMayGoOn(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{&store.SpaceError{Need: 1}, true},
		{syscall.ENOSPC, true},
		{fmt.Errorf("merge: %w", &fsx.SyncError{Err: syscall.ENOSPC}), false},
		{fmt.Errorf("merge: %w (%w)", syscall.ENOSPC, samples.ErrAbandoned), false},
	} {
		if got := goesOn(tc.err); got != tc.want || exitCode(tc.err) != ExitDiskFull {
			t.Errorf("%v: goes on %v with exit code %d", tc.err, got, exitCode(tc.err))
		}
	}
}
