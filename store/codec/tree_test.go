package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// skewed returns n symbols with a few frequent and many rare ones.
func skewed(r *rand.Rand, n int, spread float64) []byte {
	b := make([]byte, n, (n+63)&^63)
	for i := range b {
		b[i] = byte(int(math.Round(120 + spread*r.NormFloat64())))
	}
	return b
}

func TestTreeForms(t *testing.T) {
	for _, k := range kernelForms() {
		t.Run(k.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			for n := 1; n < 500; n++ {
				checkTree(t, k, skewed(r, n, 2))
			}
			for _, spread := range []float64{0, 0.2, 1, 3, 10, 40, 500} {
				checkTree(t, k, skewed(r, 20_000+r.IntN(20_000), spread))
			}
		})
	}
}

// checkTree sends top down a tree and up again, with the portable kernels and
// with k, and compares all that they leave.
func checkTree(t *testing.T, k kernels, top []byte) {
	t.Helper()
	encode := func(k kernels) []byte {
		var tr tree
		tr.plan(histogram(top))
		tr.start(len(top))
		if tr.inner > 0 {
			k.encodeTree(&tr, top)
		}
		return tr.append(nil, len(top))
	}
	enc := encode(portableKernels())
	if got := encode(k); !bytes.Equal(got, enc) {
		t.Fatalf("%d symbols: %s gives another tree than portable code", len(top), k.name)
	}
	var tr tree
	if err := tr.parse(enc, len(top), 0xff); err != nil {
		t.Fatal(err)
	}
	if tr.inner == 0 {
		return
	}
	padded := (len(top) + 63) &^ 63
	buf := bytes.Repeat([]byte{0xa5}, padded+64)
	back := buf[:len(top):padded]
	k.decodeTree(&tr, back)
	if !bytes.Equal(back, top) {
		t.Fatalf("%d symbols come back changed from %s", len(top), k.name)
	}
	for _, v := range buf[padded:] {
		if v != 0xa5 {
			t.Fatalf("%d symbols: %s wrote past them", len(top), k.name)
		}
	}
}

// TestTreeSize holds the tree to the entropy of its symbols.
func TestTreeSize(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, spread := range []float64{1, 2, 3, 5} {
		top := skewed(r, 1<<17, spread)
		hist := map[byte]float64{}
		for _, s := range top {
			hist[s]++
		}
		entropy := 0.0
		for _, n := range hist {
			entropy += n * math.Log2(float64(len(top))/n) / 8
		}
		var tr tree
		tr.plan(histogram(top))
		tr.start(len(top))
		encodeTreeGo(&tr, top)
		got := float64(len(tr.append(nil, len(top))))
		if got > 1.06*entropy+200 {
			t.Errorf("spread %v: %.0f bytes for %.0f of entropy", spread, got, entropy)
		}
	}
}

func TestTreeRefuses(t *testing.T) {
	deep := []byte{}
	for range maxLeaves + 1 {
		deep = append(deep, kindInner, 0)
	}
	tests := []struct {
		name string
		src  []byte
		n    int
	}{
		{"empty", nil, 8},
		{"unknown kind", []byte{3}, 8},
		{"leaf without symbol", []byte{kindLeaf}, 8},
		{"node without bits", []byte{kindInner}, 8},
		{"node without children", []byte{kindInner, 0x0f}, 8},
		{"spare bits", []byte{kindInner, 0xff, kindLeaf, 1, kindLeaf, 2}, 7},
		{"spare bytes", []byte{kindLeaf, 1, 0}, 8},
		{"same symbol twice", []byte{kindInner, 0x0f, kindLeaf, 1, kindLeaf, 1}, 8},
		{"symbol out of range", []byte{kindLeaf, 0x07}, 8},
		{"literal out of range", []byte{kindInner, 0x80, kindLeaf, 8, kindLiteral, 7}, 8},
		{"literals cut short", []byte{kindInner, 0x81, kindLeaf, 8, kindLiteral, 16}, 8},
		{"literals alone", append([]byte{kindLiteral}, make([]byte, 8)...), 8},
		{"two literal leaves", []byte{kindInner, 0x80, kindLiteral, 8, 8, 8, 8, 8, 8, 8, kindLiteral, 8}, 8},
		{"too many nodes", deep, 8},
	}
	for _, tt := range tests {
		var tr tree
		if err := tr.parse(tt.src, tt.n, 0xf8); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	var tr tree
	if err := tr.parse([]byte{kindInner, 0x0f, kindLeaf, 8, kindLeaf, 16}, 8, 0xf8); err != nil {
		t.Error(fmt.Errorf("a sound tree: %w", err))
	}
}
