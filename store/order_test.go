package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"iter"
	"slices"
	"testing"

	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func TestOrder(t *testing.T) {
	w := storetest.MustInit(t)
	for _, n := range []int{0, 1, 5, 70_000} {
		want := make([]uint32, n)
		for i := range want {
			want[i] = uint32(i) * 2654435761
		}
		id := uint32(n + 1)
		hash, got, err := w.WriteOrder(t.Context(), id, slices.Values(want))
		if err != nil || got != int64(n) {
			t.Fatalf("%d rows written of %d, error %v", got, n, err)
		}
		b := read(t, w.OrderPath(id))
		if sum := sha256.Sum256(b); hash != hex.EncodeToString(sum[:]) {
			t.Errorf("hash %s is not that of the file", hash)
		}
		layout := append([]byte("EBORDER\n\x01\x00\x00\x00\x00\x00\x00\x00"), make([]byte, 0)...)
		for _, r := range want {
			layout = binary.LittleEndian.AppendUint32(layout, r)
		}
		if layout = binary.LittleEndian.AppendUint64(layout, uint64(n)); !bytes.Equal(b, layout) {
			t.Errorf("n %d: not the bytes that the package doc says", n)
		}
		o, err := w.OpenOrder(store.OrderRow{ID: id, N: int64(n) - int64(n/3), Eval: int64(n / 3), Hash: hash})
		if err != nil {
			t.Fatal(err)
		}
		if o.Len() != int64(n) {
			t.Fatalf("length %d, want %d", o.Len(), n)
		}
		for i, r := range want {
			if o.At(int64(i)) != r {
				t.Fatalf("row %d is %d, want %d", i, o.At(int64(i)), r)
			}
		}
		if err := o.Verify(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(o.Close(), o.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestOrderDamage(t *testing.T) {
	w := storetest.MustInit(t)
	hash, n, err := w.WriteOrder(t.Context(), 1, slices.Values([]uint32{3, 1, 2}))
	if err != nil {
		t.Fatal(err)
	}
	row := store.OrderRow{ID: 1, N: n, Hash: hash}
	path := w.OrderPath(1)
	good := read(t, path)
	tests := []struct {
		name   string
		damage func()
		opens  bool
		is     error
	}{
		{"cut", func() { storetest.Truncate(t, path, -1) }, false, store.ErrCorrupt},
		{"empty", func() { storetest.Truncate(t, path, 0) }, false, store.ErrCorrupt},
		{"magic", func() { storetest.FlipBit(t, path, 0) }, false, store.ErrCorrupt},
		{"version", func() { write(t, path, slices.Concat(good[:8], []byte{2}, good[9:])) }, false, store.ErrNewer},
		{"count", func() { storetest.FlipBit(t, path, -1) }, false, store.ErrCorrupt},
		{"row", func() { storetest.FlipBit(t, path, 17) }, true, store.ErrCorrupt},
		{"zeroed", func() { storetest.ZeroPage(t, path, 16) }, false, store.ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			write(t, path, good)
			tt.damage()
			o, err := w.OpenOrder(row)
			if tt.opens {
				if err != nil {
					t.Fatal(err)
				}
				defer o.Close()
				err = o.Verify()
			}
			if !errors.Is(err, tt.is) {
				t.Errorf("error %v, want %v", err, tt.is)
			}
		})
	}
	write(t, path, good)
	row.Eval = 1
	if _, err := w.OpenOrder(row); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("one row too few: %v", err)
	}
}

func TestOrderStops(t *testing.T) {
	w := storetest.MustInit(t)
	ctx, cancel := context.WithCancel(t.Context())
	var endless iter.Seq[uint32] = func(yield func(uint32) bool) {
		for i := uint32(0); yield(i); i++ {
			if i == 1000 {
				cancel()
			}
		}
	}
	if _, _, err := w.WriteOrder(ctx, 1, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	if _, err := w.OpenOrder(store.OrderRow{ID: 1}); err == nil {
		t.Error("a half written order has its name")
	}
	noTemp(t, w.Dir()+"/orders")
}
