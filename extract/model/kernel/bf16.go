package kernel

import "unsafe"

// BF16 multiplies matrices of bfloat16 values and sums in float32.
//
// Families differ in the order of the sum and so in the last bits: "amx" and
// "avx512bf16" are what the instructions of that name do (both take subnormal
// numbers for zero); "fma" runs the fp32 products over rounded operands, on any
// CPU, with the same bytes everywhere. The rounding of operands is the same in
// all.
type BF16 struct {
	name string
	half bool // operands are stored as bfloat16
	tile int  // rows of a tile
	// gemm computes mt tiles of rows against one panel over k values.
	gemm  func(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc, acc int)
	pack  func(dst *float32, rows *[]float32, from, blocks int)
	pairs func(dst *uint16, a, b *float32, n int)
}

// BF16s returns the families that this CPU can run, the fastest first.
func BF16s() []*BF16 {
	fast, slow := archBF16()
	return append(append(fast, &BF16{name: "fma"}), slow...)
}

// Name is the name of the family.
func (b *BF16) Name() string { return b.name }

// Half reports whether operands are stored as bfloat16: then Gemm, PackPanel
// and PackPairs are used, else the operations of a Set on rounded values. False
// for nil.
func (b *BF16) Half() bool { return b != nil && b.half }

// Gemm computes c[m,n] = a[m,k]·B, or adds it to c. k is a multiple of 32, a
// and c have rows up to the next multiple of 96.
func (b *BF16) Gemm(c []float32, ldc int, a []uint16, lda int, w []uint16, m, n, k int, acc bool) {
	mt := (m + b.tile - 1) / b.tile
	rows := mt * b.tile
	_, _, _ = a[(rows-1)*lda+k-1], w[n*k-1], c[(rows-1)*ldc+n-1]
	add := 0
	if acc {
		add = 1
	}
	for p := 0; p < n; p += Panel {
		b.gemm(k, mt, &a[0], lda, &w[p*k], &c[p], ldc, add)
	}
}

// Words returns the first k values of x as bfloat16 storage: k/2 words.
func Words(x []float32, k int) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x[:k/2]))), k)
}

// PackPanel packs Panel rows of k bfloat16 values, each held in k/2 words as
// Words gives them, as columns col.. of a packed matrix: pairs of values of k,
// Panel columns of them in a row. k is a multiple of 32; nil rows are zero.
func (b *BF16) PackPanel(dst []uint16, rows *[Panel][]float32, col, k int) {
	words := unsafe.Slice((*float32)(unsafe.Pointer(&dst[col*k])), k/2*Panel)
	for _, r := range rows {
		if r == nil {
			packGeneric(words, rows, 0, k/2)
			return
		}
	}
	b.pack(&words[0], &rows[0], 0, k/2/Lanes)
	b.pack(&words[Lanes], &rows[Lanes], 0, k/2/Lanes)
}

// PackPairs sets one row of pairs of a packed matrix, whose columns are those
// of the rows x and y: values 2i and 2i+1 of k. Both have Panel values.
func (b *BF16) PackPairs(dst []uint16, x, y []float32) {
	_, _, _ = dst[2*Panel-1], x[Panel-1], y[Panel-1]
	b.pairs(&dst[0], &x[0], &y[0], Panel)
}
