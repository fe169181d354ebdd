#include "textflag.h"

// Both products keep a tile of c in registers over all of kc, with the rows
// of a read in place by broadcasts: base registers 3 rows apart reach every
// row with the strides 0, 1 and 2.

// One value of k of three rows at base: broadcast, multiply, add.
#define THREE512(base, off, z0, z1, z2, z3, z4, z5) \
	VBROADCASTSS off(base), Z28        \
	VBROADCASTSS off(base)(R8*1), Z29  \
	VBROADCASTSS off(base)(R8*2), Z30  \
	VFMADD231PS  Z24, Z28, z0          \
	VFMADD231PS  Z25, Z28, z1          \
	VFMADD231PS  Z24, Z29, z2          \
	VFMADD231PS  Z25, Z29, z3          \
	VFMADD231PS  Z24, Z30, z4          \
	VFMADD231PS  Z25, Z30, z5

#define STEP512(off, boff) \
	VMOVUPS    boff(BX), Z24          \
	VMOVUPS    (boff+64)(BX), Z25     \
	THREE512(R11, off, Z0, Z1, Z2, Z3, Z4, Z5)      \
	THREE512(R12, off, Z6, Z7, Z8, Z9, Z10, Z11)    \
	THREE512(R13, off, Z12, Z13, Z14, Z15, Z16, Z17) \
	THREE512(DX, off, Z18, Z19, Z20, Z21, Z22, Z23)

#define ADD512(za, zb) \
	VADDPS (DI), za, za    \
	VADDPS 64(DI), zb, zb  \
	ADDQ   SI, DI

#define STORE512(za, zb) \
	VMOVUPS za, (DI)   \
	VMOVUPS zb, 64(DI) \
	ADDQ    SI, DI

// func gemm12x32(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)
TEXT ·gemm12x32(SB), NOSPLIT, $0-64
	MOVQ mt+8(FP), R9
	MOVQ a+16(FP), R11
	MOVQ lda+24(FP), R8
	MOVQ c+40(FP), R10
	MOVQ ldc+48(FP), SI
	SHLQ $2, R8
	SHLQ $2, SI

	// Walks the panel behind this one, which comes next, into the caches.
	MOVQ kc+0(FP), R14
	SHLQ $7, R14
	ADDQ b+32(FP), R14

tile:
	MOVQ b+32(FP), BX
	MOVQ kc+0(FP), CX
	LEAQ (R8)(R8*2), AX
	LEAQ (R11)(AX*1), R12
	LEAQ (R12)(AX*1), R13
	LEAQ (R13)(AX*1), DX
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
	VPXORD Z2, Z2, Z2
	VPXORD Z3, Z3, Z3
	VPXORD Z4, Z4, Z4
	VPXORD Z5, Z5, Z5
	VPXORD Z6, Z6, Z6
	VPXORD Z7, Z7, Z7
	VPXORD Z8, Z8, Z8
	VPXORD Z9, Z9, Z9
	VPXORD Z10, Z10, Z10
	VPXORD Z11, Z11, Z11
	VPXORD Z12, Z12, Z12
	VPXORD Z13, Z13, Z13
	VPXORD Z14, Z14, Z14
	VPXORD Z15, Z15, Z15
	VPXORD Z16, Z16, Z16
	VPXORD Z17, Z17, Z17
	VPXORD Z18, Z18, Z18
	VPXORD Z19, Z19, Z19
	VPXORD Z20, Z20, Z20
	VPXORD Z21, Z21, Z21
	VPXORD Z22, Z22, Z22
	VPXORD Z23, Z23, Z23

loop:
	STEP512(0, 0)
	STEP512(4, 128)
	STEP512(8, 256)
	STEP512(12, 384)
	PREFETCHT1 (R14)
	ADDQ $64, R14
	ADDQ $16, R11
	ADDQ $16, R12
	ADDQ $16, R13
	ADDQ $16, DX
	ADDQ $512, BX
	SUBQ $4, CX
	JNZ  loop

	MOVQ acc+56(FP), AX
	TESTQ AX, AX
	JZ   store
	MOVQ R10, DI
	ADD512(Z0, Z1)
	ADD512(Z2, Z3)
	ADD512(Z4, Z5)
	ADD512(Z6, Z7)
	ADD512(Z8, Z9)
	ADD512(Z10, Z11)
	ADD512(Z12, Z13)
	ADD512(Z14, Z15)
	ADD512(Z16, Z17)
	ADD512(Z18, Z19)
	ADD512(Z20, Z21)
	ADD512(Z22, Z23)

store:
	MOVQ R10, DI
	STORE512(Z0, Z1)
	STORE512(Z2, Z3)
	STORE512(Z4, Z5)
	STORE512(Z6, Z7)
	STORE512(Z8, Z9)
	STORE512(Z10, Z11)
	STORE512(Z12, Z13)
	STORE512(Z14, Z15)
	STORE512(Z16, Z17)
	STORE512(Z18, Z19)
	STORE512(Z20, Z21)
	STORE512(Z22, Z23)
	MOVQ DI, R10

	// The next tile's first row: 12 rows on, less the kc values walked.
	MOVQ kc+0(FP), AX
	SHLQ $2, AX
	SUBQ AX, DX
	LEAQ (R8)(R8*2), AX
	LEAQ (DX)(AX*1), R11
	DECQ R9
	JNZ  tile
	VZEROUPPER
	RET

#define THREE256(base, off, y0, y1, y2, y3, y4, y5) \
	VBROADCASTSS off(base), Y14        \
	VBROADCASTSS off(base)(R8*1), Y15  \
	VFMADD231PS  Y12, Y14, y0          \
	VFMADD231PS  Y13, Y14, y1          \
	VBROADCASTSS off(base)(R8*2), Y14  \
	VFMADD231PS  Y12, Y15, y2          \
	VFMADD231PS  Y13, Y15, y3          \
	VFMADD231PS  Y12, Y14, y4          \
	VFMADD231PS  Y13, Y14, y5

#define STEP256(off, boff) \
	VMOVUPS    boff(BX), Y12          \
	VMOVUPS    (boff+32)(BX), Y13     \
	PREFETCHT0 (boff+1024)(BX)        \
	THREE256(R11, off, Y0, Y1, Y2, Y3, Y4, Y5) \
	THREE256(R12, off, Y6, Y7, Y8, Y9, Y10, Y11)

#define ADD256(ya, yb) \
	VADDPS (DI), ya, ya    \
	VADDPS 32(DI), yb, yb  \
	ADDQ   SI, DI

#define STORE256(ya, yb) \
	VMOVUPS ya, (DI)   \
	VMOVUPS yb, 32(DI) \
	ADDQ    SI, DI

// func gemm6x16(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)
// Two passes over the rows, one for each half of the panel.
TEXT ·gemm6x16(SB), NOSPLIT, $0-64
	MOVQ lda+24(FP), R8
	MOVQ ldc+48(FP), SI
	SHLQ $2, R8
	SHLQ $2, SI
	XORQ R13, R13

half:
	MOVQ mt+8(FP), R9
	MOVQ a+16(FP), R11
	MOVQ c+40(FP), R10
	ADDQ R13, R10

tile:
	MOVQ b+32(FP), BX
	ADDQ R13, BX
	MOVQ kc+0(FP), CX
	LEAQ (R8)(R8*2), AX
	LEAQ (R11)(AX*1), R12
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11

loop:
	STEP256(0, 0)
	STEP256(4, 128)
	STEP256(8, 256)
	STEP256(12, 384)
	ADDQ $16, R11
	ADDQ $16, R12
	ADDQ $512, BX
	SUBQ $4, CX
	JNZ  loop

	MOVQ acc+56(FP), AX
	TESTQ AX, AX
	JZ   store
	MOVQ R10, DI
	ADD256(Y0, Y1)
	ADD256(Y2, Y3)
	ADD256(Y4, Y5)
	ADD256(Y6, Y7)
	ADD256(Y8, Y9)
	ADD256(Y10, Y11)

store:
	MOVQ R10, DI
	STORE256(Y0, Y1)
	STORE256(Y2, Y3)
	STORE256(Y4, Y5)
	STORE256(Y6, Y7)
	STORE256(Y8, Y9)
	STORE256(Y10, Y11)
	MOVQ DI, R10

	MOVQ kc+0(FP), AX
	SHLQ $2, AX
	SUBQ AX, R12
	LEAQ (R8)(R8*2), AX
	LEAQ (R12)(AX*1), R11
	DECQ R9
	JNZ  tile

	ADDQ $64, R13
	CMPQ R13, $128
	JNE  half
	VZEROUPPER
	RET
