package storetest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"eaglebatch/store"
)

func TestDamage(t *testing.T) {
	tests := []struct {
		name   string
		damage func(path string)
		want   []byte
	}{
		{"flip first", func(p string) { FlipBit(t, p, 0) }, []byte{0, 1, 1}},
		{"flip last", func(p string) { FlipBit(t, p, -1) }, []byte{1, 1, 0}},
		{"zero from the second", func(p string) { ZeroPage(t, p, 1) }, []byte{1, 0, 0}},
		{"cut to two", func(p string) { Truncate(t, p, 2) }, []byte{1, 1}},
		{"cut by two", func(p string) { Truncate(t, p, -2) }, []byte{1}},
		{"grow", func(p string) { Truncate(t, p, 4) }, []byte{1, 1, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, []byte{1, 1, 1}, 0o666); err != nil {
				t.Fatal(err)
			}
			tt.damage(path)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, tt.want) {
				t.Errorf("%v, error %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestMustOpen(t *testing.T) {
	w := MustInit(t)
	err := w.Update(t.Context(), "x", func(tx *store.Tx) error { return tx.PutValue("k", []byte("v")) })
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	err = MustOpen(t, w.Dir()).View(func(r store.Reader) error {
		v, ok, err := r.Value("k")
		if string(v) != "v" || !ok {
			t.Errorf("value %q, there %v", v, ok)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
