//go:build !linux

package blob

import "os"

// pageCache does nothing where the system has no such calls.
type pageCache struct{}

func (*pageCache) wrote(*os.File, int64) error { return nil }
func (*pageCache) done(*os.File, int64)        {}
