package fsx

import (
	"path/filepath"
	"sync"
)

// SyncError is a failed fsync. What it was for may or may not be on disk, and
// only another process can find out by reading it.
type SyncError struct{ Err error }

func (e *SyncError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SyncError) Unwrap() error { return e.Err }

// syncState keeps the fsyncs of one path apart, so that none begins before the
// outcome of another is known.
type syncState struct {
	mu    sync.Mutex
	err   error // the first failure
	users int   // guarded by FS.mu
}

// sync runs fn unless an fsync of path failed before.
func (fs *FS) sync(k Kind, path string, fn func() error) error {
	if fs == nil {
		return fn()
	}
	key := filepath.Clean(path)
	s := fs.enter(key)
	defer fs.leave(key, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		fs.Note(k, path, 0)
		if err := fn(); err != nil {
			s.err = &SyncError{Err: err}
		}
	}
	return s.err
}

func (fs *FS) enter(key string) *syncState {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s := fs.syncs[key]
	if s == nil {
		s = &syncState{}
		if fs.syncs == nil {
			fs.syncs = map[string]*syncState{}
		}
		fs.syncs[key] = s
	}
	s.users++
	return s
}

func (fs *FS) leave(key string, s *syncState) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s.users--
	// Nobody can be changing s.err: the last user is leaving.
	if s.users == 0 && s.err == nil {
		delete(fs.syncs, key)
	}
}
