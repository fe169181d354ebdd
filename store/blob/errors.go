package blob

import (
	"errors"
	"fmt"
)

// ErrAbsent is returned for the rows of an entry that was skipped when the blob
// was written; Reader.Absent says why.
var ErrAbsent = errors.New("entry is absent")

// CorruptError is damage in a file.
type CorruptError struct {
	Path   string
	Offset int64  // of the damaged part, -1 where not known
	What   string // the part: header, footer, chunk 12 (entry 3, layer 5) …
	Err    error
}

func (e *CorruptError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%s: %s: %v", e.Path, e.What, e.Err)
	}
	return fmt.Sprintf("%s: %s at byte %d: %v", e.Path, e.What, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// NewerError says that a file was written by a newer version of the program.
type NewerError struct {
	Path string
	What string // what this version does not know: version 2, feature bits 0x1 …
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("%s: written by a newer version: %s is not known here", e.Path, e.What)
}
