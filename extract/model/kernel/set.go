package kernel

import (
	"fmt"
	"unsafe"
)

// The shapes that callers pad to.
const (
	Panel   = 32  // columns of a packed panel
	RowTile = 12  // rows of a tile
	KBlock  = 384 // most of k that is summed before it is added to the result
	Lanes   = 16  // of a sum over a row
)

// groupPanels is how many panels a product takes through all of k at once.
const groupPanels = 16

// Set is one implementation of the operations.
type Set struct {
	name string
	// gemm adds (acc) or stores the product of mt tiles of RowTile rows of a
	// and one panel over kc values of k.
	gemm    func(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool)
	softmax func(s []float32, scale float32, st *SoftmaxState)
	silu    func(gate, up []float32)
	sumsq   func(x []float32) float32
	norm    func(dst, x, w []float32, inv float32)
	add     func(dst, x []float32)
	scale   func(x []float32, f float32)
	rotate  func(lo, hi, cos, sin []float32)
	toBF16  func(dst []uint16, x []float32)
	round   func(dst, x []float32)
	widen   func(dst []float32, src []byte)
	pack    func(dst []float32, rows *[Panel][]float32, k0, kc int)
}

// Name is the name of the set: generic, avx2, avx512 or neon.
func (s *Set) Name() string { return s.name }

// Sets returns the sets that this CPU can run, the fastest first.
func Sets() []*Set { return append(archSets(), Generic()) }

// Best returns the fastest set.
func Best() *Set { return Sets()[0] }

// ByName returns the named set, "" for the fastest.
func ByName(name string) (*Set, error) {
	var names []string
	for _, s := range Sets() {
		if name == "" || s.name == name {
			return s, nil
		}
		names = append(names, s.name)
	}
	return nil, fmt.Errorf("kernels %q: this CPU has %q", name, names)
}

// Up rounds n up to a multiple of m.
func Up(n, m int) int { return (n + m - 1) / m * m }

// KSplit returns the size of the blocks that k is cut into: for a k that is a
// multiple of Panel another such, so that the blocks of what one product gives
// can be those that the next one sums.
func KSplit(k int) int {
	blocks := (k + KBlock - 1) / KBlock
	if k%Panel == 0 {
		return Up((k+blocks-1)/blocks, Panel)
	}
	return Up((k+blocks-1)/blocks, 4)
}

// Gemm computes c[m,n] = a[m,k]·B, or adds it to c. B is packed: PackedLen(n,k)
// values. m, n and k are padded as the package says.
func (s *Set) Gemm(c []float32, ldc int, a []float32, lda int, b []float32, m, n, k int, acc bool) {
	if m == 0 {
		return
	}
	_, _, _ = a[(m-1)*lda+k-1], b[n*k-1], c[(m-1)*ldc+n-1]
	step := KSplit(k)
	// The columns go in groups whose part of c stays in the cache while all
	// blocks of k are added to it.
	for g := 0; g < n; g += groupPanels * Panel {
		for k0 := 0; k0 < k; k0 += step {
			kc := min(step, k-k0)
			panels := b[n*k0:]
			for p := g; p < min(g+groupPanels*Panel, n); p += Panel {
				s.gemm(kc, m/RowTile, &a[k0], lda, &panels[p*kc], &c[p], ldc, acc || k0 > 0)
			}
		}
	}
}

// PackedLen is the number of values of a packed matrix of n rows of k.
func PackedLen(n, k int) int { return Up(n, Panel) * Up(k, 4) }

// PackPanel packs Panel rows of a matrix of n rows of k values (both padded)
// into dst, which holds all of it: the rows from row p on. Rows that are nil
// are zero.
func (s *Set) PackPanel(dst []float32, rows *[Panel][]float32, p, n, k int) {
	step := KSplit(k)
	for k0 := 0; k0 < k; k0 += step {
		kc := min(step, k-k0)
		s.pack(dst[n*k0+p*kc:][:kc*Panel], rows, k0, kc)
	}
}

// SoftmaxState is a row's running softmax: the largest scaled score, the sum
// of exponentials relative to it, and the factor by which what was summed
// before must shrink.
type SoftmaxState struct{ Max, Sum, Alpha float32 }

// NoMax is SoftmaxState.Max before the first block.
const NoMax = -1e30

// Softmax replaces the scores s, a multiple of 16, by exp(s*scale - Max) after
// raising st.Max to their largest, adds their sum to st.Sum·Alpha and sets
// Alpha. A score of -Inf gives exactly 0.
func (s *Set) Softmax(x []float32, scale float32, st *SoftmaxState) { s.softmax(x, scale, st) }

// SiLUMul replaces gate by silu(gate)·up.
func (s *Set) SiLUMul(gate, up []float32) { s.silu(gate, up[:len(gate)]) }

// RMSNorm sets dst to x·w/sqrt(mean(x²)+eps), the mean over n values. x and w
// are padded with zeros to a multiple of 16.
func (s *Set) RMSNorm(dst, x, w []float32, n int, eps float64) {
	s.norm(dst[:len(x)], x, w[:len(x)], rsqrt(s.sumsq(x), n, eps))
}

// Add adds x to dst.
func (s *Set) Add(dst, x []float32) { s.add(dst, x[:len(dst)]) }

// Scale multiplies x by f.
func (s *Set) Scale(x []float32, f float32) { s.scale(x, f) }

// Rotate rotates the pairs (lo[i], hi[i]).
func (s *Set) Rotate(lo, hi, cos, sin []float32) {
	n := len(lo)
	s.rotate(lo, hi[:n], cos[:n], sin[:n])
}

// ToBF16 rounds x to bfloat16, ties to even.
func (s *Set) ToBF16(dst []uint16, x []float32) { s.toBF16(dst[:len(x)], x) }

// RoundBF16 sets dst, which may be x, to x rounded as by ToBF16.
func (s *Set) RoundBF16(dst, x []float32) { s.round(dst[:len(x)], x) }

// FromBF16 widens len(dst) little-endian bfloat16 values of src.
func (s *Set) FromBF16(dst []float32, src []byte) { s.widen(dst, src[:2*len(dst)]) }

// CopyBF16 copies len(dst) little-endian bfloat16 values of src as they are.
func CopyBF16(dst []uint16, src []byte) {
	if littleEndian() {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 2*len(dst)), src)
		return
	}
	for i := range dst {
		dst[i] = uint16(src[2*i]) | uint16(src[2*i+1])<<8
	}
}

func littleEndian() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}
