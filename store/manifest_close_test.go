package store

import (
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// TestCloseOfStuckManifest: a panic in the middle of a change leaves bbolt's lock
// held, and closing must not wait for it for ever.
func TestCloseOfStuckManifest(t *testing.T) {
	db, err := openBolt(filepath.Join(t.TempDir(), "manifest.db"))
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(true) // as if it had never ended
	if err != nil {
		t.Fatal(err)
	}
	var damage *CorruptError
	if err := closeBolt(db, time.Millisecond); !errors.As(err, &damage) {
		t.Errorf("closed with %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}
