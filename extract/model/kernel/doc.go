// Package kernel computes: matrix products and the row operations of a
// decoder, with the vector instructions that the CPU has.
//
// # Layout
//
// A Set is one implementation of all operations. Sets returns those that this
// CPU can run, the fastest first; "generic" is plain Go and always there. "neon"
// (arm64) is products in assembly and the rest of "generic".
//
// The right-hand matrix of a product is packed once (Pack) and used for many
// rows: panels of Panel columns, k inner, cut into blocks of at most KBlock
// along k. The left-hand matrix stays row-major. Rows are padded by the
// caller: m to a multiple of RowTile, n to one of Panel, k to one of 4; what is
// read in the padding must be finite memory of the caller, what is written
// there is of no use.
//
// # Same bytes
//
// Every operation is defined down to the rounding: a product sums each block
// of k by fused multiply-add from zero, in order, and adds the blocks in order;
// a sum over a row runs in 16 lanes (element i in lane i mod 16), folded by
// halves. So a row of a result depends on nothing but its own inputs: not on
// the rows beside it, not on threads, and not on the set: generic, avx2, avx512
// and neon give identical bytes, which the tests hold them to. (Infinities and
// NaN stay what they are; the payload of a NaN is not promised.)
//
// The bf16 products are faster and are not the same everywhere: see BF16.
//
// # Concurrency
//
// A Set is immutable. Operations may run at the same time on different
// outputs.
package kernel
