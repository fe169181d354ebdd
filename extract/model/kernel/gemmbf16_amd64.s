#include "textflag.h"

// The assembler does not know VDPBF16PS and the tile instructions: they are
// spelled as bytes, from register numbers.

// dst += pairs of b · pairs of a, all Z registers.
#define VDPBF16PS(a, b, dst) \
	BYTE $0x62 \
	BYTE $((((dst>>3)&1^1)<<7)|(((a>>4)&1^1)<<6)|(((a>>3)&1^1)<<5)|(((dst>>4)&1^1)<<4)|2) \
	BYTE $(((b&15^15)<<3)|6) \
	BYTE $(0x40|(((b>>4)&1^1)<<3)) \
	BYTE $0x52 \
	BYTE $(0xc0|((dst&7)<<3)|(a&7))

// One pair of values of k of three rows at base.
#define THREEBF(base, off, z0, z1, z2, z3, z4, z5) \
	VBROADCASTSS off(base), Z28        \
	VBROADCASTSS off(base)(R8*1), Z29  \
	VBROADCASTSS off(base)(R8*2), Z30  \
	VDPBF16PS(28, 24, z0)              \
	VDPBF16PS(28, 25, z1)              \
	VDPBF16PS(29, 24, z2)              \
	VDPBF16PS(29, 25, z3)              \
	VDPBF16PS(30, 24, z4)              \
	VDPBF16PS(30, 25, z5)

#define STEPBF(off, boff) \
	VMOVUPS    boff(BX), Z24          \
	VMOVUPS    (boff+64)(BX), Z25     \
	PREFETCHT0 (boff+1024)(BX)        \
	PREFETCHT0 (boff+1088)(BX)        \
	THREEBF(R11, off, 0, 1, 2, 3, 4, 5)       \
	THREEBF(R12, off, 6, 7, 8, 9, 10, 11)     \
	THREEBF(R13, off, 12, 13, 14, 15, 16, 17) \
	THREEBF(DX, off, 18, 19, 20, 21, 22, 23)

#define ADD512(za, zb) \
	VADDPS (DI), za, za    \
	VADDPS 64(DI), zb, zb  \
	ADDQ   SI, DI

#define STORE512(za, zb) \
	VMOVUPS za, (DI)   \
	VMOVUPS zb, 64(DI) \
	ADDQ    SI, DI

// func bf16gemm12x32(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc, acc int)
// As gemm12x32, over pairs of k.
TEXT ·bf16gemm12x32(SB), NOSPLIT, $0-64
	MOVQ mt+8(FP), R9
	MOVQ a+16(FP), R11
	MOVQ lda+24(FP), R8
	MOVQ c+40(FP), R10
	MOVQ ldc+48(FP), SI
	SHLQ $1, R8
	SHLQ $2, SI

tile:
	MOVQ b+32(FP), BX
	MOVQ k+0(FP), CX
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
	STEPBF(0, 0)
	STEPBF(4, 128)
	STEPBF(8, 256)
	STEPBF(12, 384)
	ADDQ $16, R11
	ADDQ $16, R12
	ADDQ $16, R13
	ADDQ $16, DX
	ADDQ $512, BX
	SUBQ $8, CX
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

	MOVQ k+0(FP), AX
	SHLQ $1, AX
	SUBQ AX, DX
	LEAQ (R8)(R8*2), AX
	LEAQ (DX)(AX*1), R11
	DECQ R9
	JNZ  tile
	VZEROUPPER
	RET

// Registers 0 AX, 1 CX, 2 DX, 3 BX, 6 SI, 7 DI in base and index.
#define LDTILECFG_AX \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00
#define TILERELEASE \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0
#define TILEZERO(t) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $(0xc0|(t<<3))
#define TILELOADD(base, index, t) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x04|(t<<3)); BYTE $((index<<3)|base)
#define TILELOADD64(base, index, t) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x44|(t<<3)); BYTE $((index<<3)|base); BYTE $0x40
#define TILESTORED(t, base, index) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $(0x04|(t<<3)); BYTE $((index<<3)|base)
#define TILESTORED64(t, base, index) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $(0x44|(t<<3)); BYTE $((index<<3)|base); BYTE $0x40
// c += a · b
#define TDPBF16PS(a, b, c) \
	BYTE $0xc4; BYTE $0xe2; BYTE $(((b^15)<<3)|2); BYTE $0x5c; BYTE $(0xc0|(c<<3)|a)

// Eight tiles of 16 rows of 64 bytes.
DATA tileConfig<>+0(SB)/8, $1
DATA tileConfig<>+8(SB)/8, $0
DATA tileConfig<>+16(SB)/8, $0x0040004000400040
DATA tileConfig<>+24(SB)/8, $0x0040004000400040
DATA tileConfig<>+32(SB)/8, $0
DATA tileConfig<>+40(SB)/8, $0
DATA tileConfig<>+48(SB)/8, $0x1010101010101010
DATA tileConfig<>+56(SB)/8, $0
GLOBL tileConfig<>(SB), RODATA|NOPTR, $64

// func amxgemm32x32(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc, acc int)
// Four tiles of c, two of a, two of b. The tile state lives within one call,
// which the scheduler does not interrupt.
TEXT ·amxgemm32x32(SB), NOSPLIT, $0-64
	LEAQ tileConfig<>(SB), AX
	LDTILECFG_AX
	MOVQ mt+8(FP), R9
	MOVQ a+16(FP), R11
	MOVQ lda+24(FP), R8
	MOVQ c+40(FP), DI
	MOVQ ldc+48(FP), R10
	SHLQ $1, R8
	SHLQ $2, R10

tile:
	MOVQ  acc+56(FP), AX
	TESTQ AX, AX
	JZ    zero
	MOVQ  R10, SI
	SHLQ  $4, R10
	LEAQ  (DI)(R10*1), DX
	SHRQ  $4, R10
	TILELOADD(7, 6, 0)
	TILELOADD64(7, 6, 1)
	TILELOADD(2, 6, 2)
	TILELOADD64(2, 6, 3)
	JMP   start

zero:
	TILEZERO(0)
	TILEZERO(1)
	TILEZERO(2)
	TILEZERO(3)

start:
	MOVQ b+32(FP), BX
	MOVQ k+0(FP), R12
	MOVQ $128, CX
	MOVQ R8, SI
	MOVQ R11, AX
	MOVQ R8, DX
	SHLQ $4, DX
	ADDQ AX, DX

loop:
	TILELOADD(3, 1, 6)
	TILELOADD(0, 6, 4)
	TILELOADD64(3, 1, 7)
	TDPBF16PS(4, 6, 0)
	TILELOADD(2, 6, 5)
	TDPBF16PS(4, 7, 1)
	TDPBF16PS(5, 6, 2)
	TDPBF16PS(5, 7, 3)
	ADDQ $64, AX
	ADDQ $64, DX
	ADDQ $2048, BX
	SUBQ $32, R12
	JNZ  loop

	MOVQ R10, SI
	MOVQ R10, R13
	SHLQ $4, R13
	LEAQ (DI)(R13*1), DX
	TILESTORED(0, 7, 6)
	TILESTORED64(1, 7, 6)
	TILESTORED(2, 2, 6)
	TILESTORED64(3, 2, 6)
	LEAQ (DX)(R13*1), DI

	MOVQ R8, AX
	SHLQ $5, AX
	ADDQ AX, R11
	DECQ R9
	JNZ  tile
	TILERELEASE
	VZEROUPPER
	RET

DATA pairConst<>+0(SB)/4, $0x7fff
DATA pairConst<>+4(SB)/4, $1
DATA pairConst<>+8(SB)/4, $0x40
DATA pairConst<>+12(SB)/4, $0xffff0000
GLOBL pairConst<>(SB), RODATA|NOPTR, $16

// Rounds x to bfloat16 in the upper half of each word.
#define ROUNDHIGH(x, t, u) \
	VCMPPS   $3, x, x, K1      \
	VPSRLD   $16, x, t         \
	VPORD    Z7, t, u          \
	VPSLLD   $16, u, u         \
	VPANDD   Z6, t, t          \
	VPADDD   Z5, x, x          \
	VPADDD   t, x, x           \
	VMOVDQA32 u, K1, x

// func pairs512(dst *uint16, a, b *float32, n int)
TEXT ·pairs512(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         a+8(FP), AX
	MOVQ         b+16(FP), BX
	MOVQ         n+24(FP), CX
	VPBROADCASTD pairConst<>+0(SB), Z5
	VPBROADCASTD pairConst<>+4(SB), Z6
	VPBROADCASTD pairConst<>+8(SB), Z7
	VPBROADCASTD pairConst<>+12(SB), Z8

loop:
	VMOVUPS (AX), Z0
	VMOVUPS (BX), Z1
	ROUNDHIGH(Z0, Z2, Z3)
	ROUNDHIGH(Z1, Z2, Z3)
	VPSRLD  $16, Z0, Z0
	VPANDD  Z8, Z1, Z1
	VPORD   Z0, Z1, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, AX
	ADDQ    $64, BX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func round512(dst, x *float32, n int)
TEXT ·round512(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         n+16(FP), CX
	VPBROADCASTD pairConst<>+0(SB), Z5
	VPBROADCASTD pairConst<>+4(SB), Z6
	VPBROADCASTD pairConst<>+8(SB), Z7
	VPBROADCASTD pairConst<>+12(SB), Z8

loop:
	VMOVUPS (AX), Z0
	ROUNDHIGH(Z0, Z2, Z3)
	VPANDD  Z8, Z0, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, AX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET
