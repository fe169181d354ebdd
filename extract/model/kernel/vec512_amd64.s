#include "textflag.h"
#include "exp_amd64.h"

// Loads the constants of EXP512 into Z18..Z29.
#define EXPCONST512 \
	VBROADCASTSS C_HIGH, Z18  \
	VBROADCASTSS C_LOW, Z19   \
	VBROADCASTSS C_LOG2E, Z20 \
	VBROADCASTSS C_LN2HI, Z21 \
	VBROADCASTSS C_LN2LO, Z22 \
	VBROADCASTSS C_P0, Z23    \
	VBROADCASTSS C_P1, Z24    \
	VBROADCASTSS C_P2, Z25    \
	VBROADCASTSS C_P3, Z26    \
	VBROADCASTSS C_P4, Z27    \
	VBROADCASTSS C_P5, Z28    \
	VBROADCASTSS C_ONE, Z29

// x = e^x; n, r, p are scratch, k1 masks what is not below LOW (NaN is not).
#define EXP512(x, n, r, p) \
	VCMPPS       $5, Z19, x, K1 \
	VMINPS       x, Z18, r      \
	VMULPS       Z20, r, n      \
	VRNDSCALEPS  $8, n, n       \
	VFNMADD231PS Z21, n, r      \
	VFNMADD231PS Z22, n, r      \
	VMOVAPS      Z23, p         \
	VFMADD213PS  Z24, r, p      \
	VFMADD213PS  Z25, r, p      \
	VFMADD213PS  Z26, r, p      \
	VFMADD213PS  Z27, r, p      \
	VFMADD213PS  Z28, r, p      \
	VMULPS       r, r, x        \
	VFMADD213PS  r, x, p        \
	VADDPS       Z29, p, p      \
	VCVTPS2DQ    n, n           \
	VPSLLD       $23, n, n      \
	VPADDD       n, p, p        \
	VMOVAPS.Z    p, K1, x

// func softmax512(s *float32, n int, scale float32, st *SoftmaxState)
TEXT ·softmax512(SB), NOSPLIT, $0-32
	MOVQ         s+0(FP), AX
	MOVQ         n+8(FP), CX
	VBROADCASTSS scale+16(FP), Z16
	MOVQ         st+24(FP), DI
	EXPCONST512
	VMOVUPS      (AX), Z0
	MOVQ         AX, SI
	MOVQ         CX, DX

top:
	VMAXPS (SI), Z0, Z0
	ADDQ   $64, SI
	SUBQ   $16, DX
	JNZ    top

	VEXTRACTF64X4 $1, Z0, Y1
	VMAXPS        Y1, Y0, Y0
	VEXTRACTF128  $1, Y0, X1
	VMAXPS        X1, X0, X0
	VSHUFPS       $0x0e, X0, X0, X1
	VMAXPS        X1, X0, X0
	VSHUFPS       $0x01, X0, X0, X1
	VMAXPS        X1, X0, X0
	VMULSS        X16, X0, X0
	VMOVSS        (DI), X5
	VMAXSS        X0, X5, X0
	VMOVSS        X0, (DI)
	VBROADCASTSS  X0, Z17
	VSUBSS        X0, X5, X5
	VBROADCASTSS  X5, Z5
	VPXORD        Z6, Z6, Z6

exp:
	VMOVUPS     (AX), Z0
	VFMSUB213PS Z17, Z16, Z0
	EXP512(Z0, Z1, Z2, Z3)
	VMOVUPS     Z0, (AX)
	VADDPS      Z0, Z6, Z6
	ADDQ        $64, AX
	SUBQ        $16, CX
	JNZ         exp

	EXP512(Z5, Z1, Z2, Z3)
	VMOVSS        X5, 8(DI)
	VEXTRACTF64X4 $1, Z6, Y1
	VADDPS        Y1, Y6, Y6
	VEXTRACTF128  $1, Y6, X1
	VADDPS        X1, X6, X6
	VSHUFPS       $0x0e, X6, X6, X1
	VADDPS        X1, X6, X6
	VSHUFPS       $0x01, X6, X6, X1
	VADDPS        X1, X6, X6
	VMOVSS        4(DI), X1
	VFMADD213SS   X6, X5, X1
	VMOVSS        X1, 4(DI)
	VZEROUPPER
	RET

// func silu512(gate, up *float32, n int)
TEXT ·silu512(SB), NOSPLIT, $0-24
	MOVQ   gate+0(FP), AX
	MOVQ   up+8(FP), BX
	MOVQ   n+16(FP), CX
	EXPCONST512
	VPTERNLOGD $0xff, Z5, Z5, Z5
	VPSLLD $31, Z5, Z5

loop:
	VMOVUPS (AX), Z6
	VPXORD  Z5, Z6, Z0
	EXP512(Z0, Z1, Z2, Z3)
	VADDPS  Z29, Z0, Z0
	VDIVPS  Z0, Z6, Z0
	VMULPS  (BX), Z0, Z0
	VMOVUPS Z0, (AX)
	ADDQ    $64, AX
	ADDQ    $64, BX
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func sumsq512(x *float32, n int) float32
TEXT ·sumsq512(SB), NOSPLIT, $0-20
	MOVQ   x+0(FP), AX
	MOVQ   n+8(FP), CX
	VPXORD Z6, Z6, Z6

loop:
	VMOVUPS     (AX), Z0
	VFMADD231PS Z0, Z0, Z6
	ADDQ        $64, AX
	SUBQ        $16, CX
	JNZ         loop

	VEXTRACTF64X4 $1, Z6, Y1
	VADDPS        Y1, Y6, Y6
	VEXTRACTF128  $1, Y6, X1
	VADDPS        X1, X6, X6
	VSHUFPS       $0x0e, X6, X6, X1
	VADDPS        X1, X6, X6
	VSHUFPS       $0x01, X6, X6, X1
	VADDPS        X1, X6, X6
	VMOVSS        X6, ret+16(FP)
	VZEROUPPER
	RET

// func norm512(dst, x, w *float32, n int, inv float32)
TEXT ·norm512(SB), NOSPLIT, $0-36
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         w+16(FP), BX
	MOVQ         n+24(FP), CX
	VBROADCASTSS inv+32(FP), Z1

loop:
	VMULPS  (AX), Z1, Z0
	VMULPS  (BX), Z0, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, AX
	ADDQ    $64, BX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func add512(dst, x *float32, n int)
TEXT ·add512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), AX
	MOVQ n+16(FP), CX

loop:
	VMOVUPS (DI), Z0
	VADDPS  (AX), Z0, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, AX
	ADDQ    $64, DI
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func scale512(x *float32, n int, f float32)
TEXT ·scale512(SB), NOSPLIT, $0-20
	MOVQ         x+0(FP), AX
	MOVQ         n+8(FP), CX
	VBROADCASTSS f+16(FP), Z1

loop:
	VMULPS  (AX), Z1, Z0
	VMOVUPS Z0, (AX)
	ADDQ    $64, AX
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func rotate512(lo, hi, cos, sin *float32, n int)
TEXT ·rotate512(SB), NOSPLIT, $0-40
	MOVQ lo+0(FP), AX
	MOVQ hi+8(FP), BX
	MOVQ cos+16(FP), SI
	MOVQ sin+24(FP), DI
	MOVQ n+32(FP), CX

loop:
	VMOVUPS     (AX), Z0
	VMOVUPS     (BX), Z1
	VMOVUPS     (SI), Z2
	VMOVUPS     (DI), Z3
	VMULPS      Z3, Z1, Z4
	VMULPS      Z3, Z0, Z5
	VFMSUB213PS Z4, Z2, Z0
	VFMADD213PS Z5, Z2, Z1
	VMOVUPS     Z0, (AX)
	VMOVUPS     Z1, (BX)
	ADDQ        $64, AX
	ADDQ        $64, BX
	ADDQ        $64, SI
	ADDQ        $64, DI
	SUBQ        $16, CX
	JNZ         loop
	VZEROUPPER
	RET

DATA bf16Const<>+0(SB)/4, $0x7fff
DATA bf16Const<>+4(SB)/4, $1
DATA bf16Const<>+8(SB)/4, $0x40
GLOBL bf16Const<>(SB), RODATA|NOPTR, $12

// func bf16x512(dst *uint16, x *float32, n int)
TEXT ·bf16x512(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         n+16(FP), CX
	VPBROADCASTD bf16Const<>+0(SB), Z5
	VPBROADCASTD bf16Const<>+4(SB), Z6
	VPBROADCASTD bf16Const<>+8(SB), Z7

loop:
	VMOVUPS  (AX), Z0
	VCMPPS   $3, Z0, Z0, K1
	VPSRLD   $16, Z0, Z1
	VPANDD   Z6, Z1, Z2
	VPADDD   Z5, Z0, Z3
	VPADDD   Z2, Z3, Z3
	VPSRLD   $16, Z3, Z3
	VPORD    Z7, Z1, K1, Z3
	VPMOVDW  Z3, (DI)
	ADDQ     $64, AX
	ADDQ     $32, DI
	SUBQ     $16, CX
	JNZ      loop
	VZEROUPPER
	RET

// func widen512(dst *float32, src *byte, n int)
TEXT ·widen512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), AX
	MOVQ n+16(FP), CX

loop:
	VPMOVZXWD (AX), Z0
	VPSLLD    $16, Z0, Z0
	VMOVUPS   Z0, (DI)
	ADDQ      $32, AX
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// Two rows of r become pairs of columns, four rows quadruples.
#define PAIRS(r0, r1, t0, t1) \
	VUNPCKLPS r1, r0, t0 \
	VUNPCKHPS r1, r0, t1

#define QUADS(t0, t1, t2, t3, u0, u1, u2, u3) \
	VUNPCKLPD t2, t0, u0 \
	VUNPCKHPD t2, t0, u1 \
	VUNPCKLPD t3, t1, u2 \
	VUNPCKHPD t3, t1, u3

// From the quadruples of column j of four groups of rows: columns j, 4+j, 8+j
// and 12+j, stored 128 bytes apart, four rows of dst apart.
#define COLUMNS(g0, g1, g2, g3, off) \
	VSHUFF32X4 $0x88, g1, g0, Z28 \
	VSHUFF32X4 $0xdd, g1, g0, Z29 \
	VSHUFF32X4 $0x88, g3, g2, Z30 \
	VSHUFF32X4 $0xdd, g3, g2, Z31 \
	VSHUFF32X4 $0x88, Z30, Z28, g0 \
	VSHUFF32X4 $0x88, Z31, Z29, g1 \
	VSHUFF32X4 $0xdd, Z30, Z28, g2 \
	VSHUFF32X4 $0xdd, Z31, Z29, g3 \
	VMOVUPS    g0, (off)(DI)       \
	VMOVUPS    g1, (off+512)(DI)   \
	VMOVUPS    g2, (off+1024)(DI)  \
	VMOVUPS    g3, (off+1536)(DI)

#define LOADROW(i, z) \
	MOVQ    (i*24)(R8), R9 \
	VMOVUPS (R9)(R10*1), z

// func transpose512(dst *float32, rows *[]float32, from, blocks int)
// dst[32·k+j] = rows[j][from+k] for 16 rows and 16·blocks values of k.
TEXT ·transpose512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ rows+8(FP), R8
	MOVQ from+16(FP), R10
	MOVQ blocks+24(FP), CX
	SHLQ $2, R10

loop:
	LOADROW(0, Z0)
	LOADROW(1, Z1)
	LOADROW(2, Z2)
	LOADROW(3, Z3)
	PAIRS(Z0, Z1, Z16, Z17)
	PAIRS(Z2, Z3, Z18, Z19)
	QUADS(Z16, Z17, Z18, Z19, Z0, Z1, Z2, Z3)
	LOADROW(4, Z4)
	LOADROW(5, Z5)
	LOADROW(6, Z6)
	LOADROW(7, Z7)
	PAIRS(Z4, Z5, Z16, Z17)
	PAIRS(Z6, Z7, Z18, Z19)
	QUADS(Z16, Z17, Z18, Z19, Z4, Z5, Z6, Z7)
	LOADROW(8, Z8)
	LOADROW(9, Z9)
	LOADROW(10, Z10)
	LOADROW(11, Z11)
	PAIRS(Z8, Z9, Z16, Z17)
	PAIRS(Z10, Z11, Z18, Z19)
	QUADS(Z16, Z17, Z18, Z19, Z8, Z9, Z10, Z11)
	LOADROW(12, Z12)
	LOADROW(13, Z13)
	LOADROW(14, Z14)
	LOADROW(15, Z15)
	PAIRS(Z12, Z13, Z16, Z17)
	PAIRS(Z14, Z15, Z18, Z19)
	QUADS(Z16, Z17, Z18, Z19, Z12, Z13, Z14, Z15)
	COLUMNS(Z0, Z4, Z8, Z12, 0)
	COLUMNS(Z1, Z5, Z9, Z13, 128)
	COLUMNS(Z2, Z6, Z10, Z14, 256)
	COLUMNS(Z3, Z7, Z11, Z15, 384)
	ADDQ $64, R10
	ADDQ $2048, DI
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET
