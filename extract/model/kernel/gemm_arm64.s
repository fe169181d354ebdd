#include "textflag.h"

// One value of k: 16 columns of the panel, six rows of a by broadcasts.
#define ROW(base, a, c0, c1, c2, c3) \
	VLD1R.P 4(base), [a.S4]     \
	VFMLA   V24.S4, a.S4, c0.S4 \
	VFMLA   V25.S4, a.S4, c1.S4 \
	VFMLA   V26.S4, a.S4, c2.S4 \
	VFMLA   V27.S4, a.S4, c3.S4

#define STEP \
	VLD1 (R14), [V24.S4, V25.S4, V26.S4, V27.S4] \
	ADD  $128, R14               \
	ROW(R0, V28, V0, V1, V2, V3)     \
	ROW(R1, V29, V4, V5, V6, V7)     \
	ROW(R2, V30, V8, V9, V10, V11)   \
	ROW(R3, V31, V12, V13, V14, V15) \
	ROW(R4, V28, V16, V17, V18, V19) \
	ROW(R5, V29, V20, V21, V22, V23)

// The assembler does not know the vector form of FADD: d += s.
#define VFADD(s, d) WORD $(0x4e20d400|((s)<<16)|((d)<<5)|(d))

#define ADDROW(c) \
	VLD1 (R6), [V24.S4, V25.S4, V26.S4, V27.S4] \
	ADD  R9, R6    \
	VFADD(24, c)   \
	VFADD(25, c+1) \
	VFADD(26, c+2) \
	VFADD(27, c+3)

#define STOREROW(c0, c1, c2, c3) \
	VST1 [c0.S4, c1.S4, c2.S4, c3.S4], (R6) \
	ADD  R9, R6

// func gemm6x16(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)
// Two passes over the rows, one for each half of the panel.
TEXT ·gemm6x16(SB), NOSPLIT, $0-64
	MOVD lda+24(FP), R8
	MOVD ldc+48(FP), R9
	LSL  $2, R8
	LSL  $2, R9
	MOVD $0, R10

half:
	MOVD mt+8(FP), R11
	MOVD a+16(FP), R12
	MOVD c+40(FP), R13
	ADD  R10, R13

tile:
	MOVD b+32(FP), R14
	ADD  R10, R14
	MOVD kc+0(FP), R15
	MOVD R12, R0
	ADD  R8, R0, R1
	ADD  R8, R1, R2
	ADD  R8, R2, R3
	ADD  R8, R3, R4
	ADD  R8, R4, R5
	VEOR V0.B16, V0.B16, V0.B16
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16
	VEOR V4.B16, V4.B16, V4.B16
	VEOR V5.B16, V5.B16, V5.B16
	VEOR V6.B16, V6.B16, V6.B16
	VEOR V7.B16, V7.B16, V7.B16
	VEOR V8.B16, V8.B16, V8.B16
	VEOR V9.B16, V9.B16, V9.B16
	VEOR V10.B16, V10.B16, V10.B16
	VEOR V11.B16, V11.B16, V11.B16
	VEOR V12.B16, V12.B16, V12.B16
	VEOR V13.B16, V13.B16, V13.B16
	VEOR V14.B16, V14.B16, V14.B16
	VEOR V15.B16, V15.B16, V15.B16
	VEOR V16.B16, V16.B16, V16.B16
	VEOR V17.B16, V17.B16, V17.B16
	VEOR V18.B16, V18.B16, V18.B16
	VEOR V19.B16, V19.B16, V19.B16
	VEOR V20.B16, V20.B16, V20.B16
	VEOR V21.B16, V21.B16, V21.B16
	VEOR V22.B16, V22.B16, V22.B16
	VEOR V23.B16, V23.B16, V23.B16

loop:
	STEP
	STEP
	STEP
	STEP
	SUBS $4, R15
	BNE  loop

	MOVD acc+56(FP), R7
	CBZ  R7, store
	MOVD R13, R6
	ADDROW(0)
	ADDROW(4)
	ADDROW(8)
	ADDROW(12)
	ADDROW(16)
	ADDROW(20)

store:
	MOVD R13, R6
	STOREROW(V0, V1, V2, V3)
	STOREROW(V4, V5, V6, V7)
	STOREROW(V8, V9, V10, V11)
	STOREROW(V12, V13, V14, V15)
	STOREROW(V16, V17, V18, V19)
	STOREROW(V20, V21, V22, V23)
	MOVD R6, R13
	MOVD R5, R12

	// The next tile's first row: one behind the last, less the kc values walked.
	MOVD kc+0(FP), R7
	SUB  R7<<2, R12
	ADD  R8, R12
	SUBS $1, R11
	BNE  tile

	ADD $64, R10
	CMP $128, R10
	BNE half
	RET
