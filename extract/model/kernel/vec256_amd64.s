#include "textflag.h"
#include "exp_amd64.h"

// x = e^x; n, r, p, m are scratch.
#define EXP256(x, n, r, p, m) \
	VMOVUPS      C_LOW, m        \
	VCMPPS       $5, m, x, m     \
	VMOVUPS      C_HIGH, r       \
	VMINPS       x, r, r         \
	VMULPS       C_LOG2E, r, n   \
	VROUNDPS     $8, n, n        \
	VFNMADD231PS C_LN2HI, n, r   \
	VFNMADD231PS C_LN2LO, n, r   \
	VMOVUPS      C_P0, p         \
	VFMADD213PS  C_P1, r, p      \
	VFMADD213PS  C_P2, r, p      \
	VFMADD213PS  C_P3, r, p      \
	VFMADD213PS  C_P4, r, p      \
	VFMADD213PS  C_P5, r, p      \
	VMULPS       r, r, x         \
	VFMADD213PS  r, x, p         \
	VADDPS       C_ONE, p, p     \
	VCVTPS2DQ    n, n            \
	VPSLLD       $23, n, n       \
	VPADDD       n, p, p         \
	VANDPS       m, p, x

// func softmax256(s *float32, n int, scale float32, st *SoftmaxState)
TEXT ·softmax256(SB), NOSPLIT, $0-32
	MOVQ         s+0(FP), AX
	MOVQ         n+8(FP), CX
	VBROADCASTSS scale+16(FP), Y14
	MOVQ         st+24(FP), DI
	VMOVUPS      (AX), Y0
	MOVQ         AX, SI
	MOVQ         CX, DX

top:
	VMAXPS (SI), Y0, Y0
	VMAXPS 32(SI), Y0, Y0
	ADDQ   $64, SI
	SUBQ   $16, DX
	JNZ    top

	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VSHUFPS      $0x0e, X0, X0, X1
	VMAXPS       X1, X0, X0
	VSHUFPS      $0x01, X0, X0, X1
	VMAXPS       X1, X0, X0
	VMULSS       X14, X0, X0
	VMOVSS       (DI), X5
	VMAXSS       X0, X5, X0
	VMOVSS       X0, (DI)
	VBROADCASTSS X0, Y13
	VSUBSS       X0, X5, X5
	VBROADCASTSS X5, Y12
	VXORPS       Y10, Y10, Y10
	VXORPS       Y11, Y11, Y11

exp:
	VMOVUPS     (AX), Y0
	VMOVUPS     32(AX), Y5
	VFMSUB213PS Y13, Y14, Y0
	VFMSUB213PS Y13, Y14, Y5
	EXP256(Y0, Y1, Y2, Y3, Y4)
	EXP256(Y5, Y6, Y7, Y8, Y9)
	VMOVUPS     Y0, (AX)
	VMOVUPS     Y5, 32(AX)
	VADDPS      Y0, Y10, Y10
	VADDPS      Y5, Y11, Y11
	ADDQ        $64, AX
	SUBQ        $16, CX
	JNZ         exp

	EXP256(Y12, Y1, Y2, Y3, Y4)
	VMOVSS       X12, 8(DI)
	VADDPS       Y11, Y10, Y6
	VEXTRACTF128 $1, Y6, X1
	VADDPS       X1, X6, X6
	VSHUFPS      $0x0e, X6, X6, X1
	VADDPS       X1, X6, X6
	VSHUFPS      $0x01, X6, X6, X1
	VADDPS       X1, X6, X6
	VMOVSS       4(DI), X1
	VFMADD213SS  X6, X12, X1
	VMOVSS       X1, 4(DI)
	VZEROUPPER
	RET

// func silu256(gate, up *float32, n int)
TEXT ·silu256(SB), NOSPLIT, $0-24
	MOVQ     gate+0(FP), AX
	MOVQ     up+8(FP), BX
	MOVQ     n+16(FP), CX
	VPCMPEQD Y5, Y5, Y5
	VPSLLD   $31, Y5, Y5

loop:
	VMOVUPS (AX), Y6
	VXORPS  Y5, Y6, Y0
	EXP256(Y0, Y1, Y2, Y3, Y4)
	VADDPS  C_ONE, Y0, Y0
	VDIVPS  Y0, Y6, Y0
	VMULPS  (BX), Y0, Y0
	VMOVUPS Y0, (AX)
	ADDQ    $32, AX
	ADDQ    $32, BX
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func sumsq256(x *float32, n int) float32
TEXT ·sumsq256(SB), NOSPLIT, $0-20
	MOVQ   x+0(FP), AX
	MOVQ   n+8(FP), CX
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop:
	VMOVUPS     (AX), Y0
	VMOVUPS     32(AX), Y1
	VFMADD231PS Y0, Y0, Y6
	VFMADD231PS Y1, Y1, Y7
	ADDQ        $64, AX
	SUBQ        $16, CX
	JNZ         loop

	VADDPS       Y7, Y6, Y6
	VEXTRACTF128 $1, Y6, X1
	VADDPS       X1, X6, X6
	VSHUFPS      $0x0e, X6, X6, X1
	VADDPS       X1, X6, X6
	VSHUFPS      $0x01, X6, X6, X1
	VADDPS       X1, X6, X6
	VMOVSS       X6, ret+16(FP)
	VZEROUPPER
	RET

// func norm256(dst, x, w *float32, n int, inv float32)
TEXT ·norm256(SB), NOSPLIT, $0-36
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         w+16(FP), BX
	MOVQ         n+24(FP), CX
	VBROADCASTSS inv+32(FP), Y1

loop:
	VMULPS  (AX), Y1, Y0
	VMULPS  (BX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, AX
	ADDQ    $32, BX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func add256(dst, x *float32, n int)
TEXT ·add256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), AX
	MOVQ n+16(FP), CX

loop:
	VMOVUPS (DI), Y0
	VADDPS  (AX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, AX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func scale256(x *float32, n int, f float32)
TEXT ·scale256(SB), NOSPLIT, $0-20
	MOVQ         x+0(FP), AX
	MOVQ         n+8(FP), CX
	VBROADCASTSS f+16(FP), Y1

loop:
	VMULPS  (AX), Y1, Y0
	VMOVUPS Y0, (AX)
	ADDQ    $32, AX
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func rotate256(lo, hi, cos, sin *float32, n int)
TEXT ·rotate256(SB), NOSPLIT, $0-40
	MOVQ lo+0(FP), AX
	MOVQ hi+8(FP), BX
	MOVQ cos+16(FP), SI
	MOVQ sin+24(FP), DI
	MOVQ n+32(FP), CX

loop:
	VMOVUPS     (AX), Y0
	VMOVUPS     (BX), Y1
	VMOVUPS     (SI), Y2
	VMOVUPS     (DI), Y3
	VMULPS      Y3, Y1, Y4
	VMULPS      Y3, Y0, Y5
	VFMSUB213PS Y4, Y2, Y0
	VFMADD213PS Y5, Y2, Y1
	VMOVUPS     Y0, (AX)
	VMOVUPS     Y1, (BX)
	ADDQ        $32, AX
	ADDQ        $32, BX
	ADDQ        $32, SI
	ADDQ        $32, DI
	SUBQ        $8, CX
	JNZ         loop
	VZEROUPPER
	RET

DATA bf16Const<>+0(SB)/4, $0x7fff
DATA bf16Const<>+4(SB)/4, $1
DATA bf16Const<>+8(SB)/4, $0x40
GLOBL bf16Const<>(SB), RODATA|NOPTR, $12

// func bf16x256(dst *uint16, x *float32, n int)
TEXT ·bf16x256(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         n+16(FP), CX
	VPBROADCASTD bf16Const<>+0(SB), Y5
	VPBROADCASTD bf16Const<>+4(SB), Y6
	VPBROADCASTD bf16Const<>+8(SB), Y7

loop:
	VMOVUPS   (AX), Y0
	VCMPPS    $3, Y0, Y0, Y4
	VPSRLD    $16, Y0, Y1
	VPAND     Y6, Y1, Y2
	VPADDD    Y5, Y0, Y3
	VPADDD    Y2, Y3, Y3
	VPSRLD    $16, Y3, Y3
	VPOR      Y7, Y1, Y1
	VBLENDVPS Y4, Y1, Y3, Y3
	VPACKUSDW Y3, Y3, Y3
	VPERMQ    $0x08, Y3, Y3
	VMOVUPS   X3, (DI)
	ADDQ      $32, AX
	ADDQ      $16, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// func widen256(dst *float32, src *byte, n int)
TEXT ·widen256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), AX
	MOVQ n+16(FP), CX

loop:
	VPMOVZXWD (AX), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, AX
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

DATA highHalf<>+0(SB)/4, $0xffff0000
GLOBL highHalf<>(SB), RODATA|NOPTR, $4

// func round256(dst, x *float32, n int)
TEXT ·round256(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), AX
	MOVQ         n+16(FP), CX
	VPBROADCASTD bf16Const<>+0(SB), Y5
	VPBROADCASTD bf16Const<>+4(SB), Y6
	VPBROADCASTD bf16Const<>+8(SB), Y7
	VPBROADCASTD highHalf<>+0(SB), Y8
	VPSLLD       $16, Y7, Y7

loop:
	VMOVUPS   (AX), Y0
	VCMPPS    $3, Y0, Y0, Y4
	VPSRLD    $16, Y0, Y1
	VPAND     Y6, Y1, Y1
	VPADDD    Y5, Y0, Y3
	VPADDD    Y1, Y3, Y3
	VPOR      Y7, Y0, Y1
	VBLENDVPS Y4, Y1, Y3, Y3
	VPAND     Y8, Y3, Y3
	VMOVUPS   Y3, (DI)
	ADDQ      $32, AX
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET
