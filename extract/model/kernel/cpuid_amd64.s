#include "textflag.h"

// func cpuid(leaf uint32) (b, c, d uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL BX, b+8(FP)
	MOVL CX, c+12(FP)
	MOVL DX, d+16(FP)
	RET
