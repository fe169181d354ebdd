package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func numbered(id uint32) string { return fmt.Sprintf("%06d", id) }

func genName(id uint32) string { return fmt.Sprintf("gen-%06d", id) }

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustWrite(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}
