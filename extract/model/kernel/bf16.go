package kernel

// BF16 multiplies matrices of bfloat16 values and sums in float32.
//
// Families differ in the order of the sum and so in the last bits: "amx" and
// "avx512bf16" are what the instructions of that name do; "fma" runs the fp32
// products over rounded operands, on any CPU, with the same bytes everywhere.
// The rounding of operands is the same in all.
type BF16 struct {
	name string
	half bool // operands are stored as bfloat16
	tile int  // rows of a tile
	// gemm computes mt tiles of rows against one panel over k values.
	gemm func(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc int, acc bool)
	pack func(dst []uint16, rows *[Panel][]float32, k int)
}

// BF16s returns the families that this CPU can run, the fastest first.
func BF16s() []*BF16 { return append(archBF16(), &BF16{name: "fma"}) }

// Name is the name of the family.
func (b *BF16) Name() string { return b.name }

// Half reports whether operands are stored as bfloat16: then Gemm and PackPanel
// are used, else those of a Set on rounded values. False for nil.
func (b *BF16) Half() bool { return b != nil && b.half }

// Gemm computes c[m,n] = a[m,k]·B, or adds it to c. k is a multiple of 32, a
// and c have rows up to the next multiple of 96.
func (b *BF16) Gemm(c []float32, ldc int, a []uint16, lda int, w []uint16, m, n, k int, acc bool) {
	mt := (m + b.tile - 1) / b.tile
	rows := mt * b.tile
	_, _, _ = a[(rows-1)*lda+k-1], w[n*k-1], c[(rows-1)*ldc+n-1]
	for p := 0; p < n; p += Panel {
		b.gemm(k, mt, &a[0], lda, &w[p*k], &c[p], ldc, acc)
	}
}

// PackPanel packs Panel rows of k values, rounded, as columns col.. of a
// packed matrix: pairs of values of k, 32 columns of them in a row.
func (b *BF16) PackPanel(dst []uint16, rows *[Panel][]float32, col, k int) {
	b.pack(dst[col*k:][:Panel*k], rows, k)
}

func packBF16Generic(dst []uint16, rows *[Panel][]float32, k int) {
	var buf [2]uint16
	for j, row := range rows {
		for i := 0; i < k; i += 2 {
			buf = [2]uint16{}
			if row != nil {
				toBF16Generic(buf[:], row[i:i+2])
			}
			dst[i*Panel+2*j], dst[i*Panel+2*j+1] = buf[0], buf[1]
		}
	}
}
