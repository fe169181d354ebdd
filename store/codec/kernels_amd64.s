#include "textflag.h"

// All functions: n is a positive multiple of 64; unaligned addresses are fine.

// replicate spreads 4 bytes to 32, each to 8.
DATA replicate<>+0(SB)/8, $0x0000000000000000
DATA replicate<>+8(SB)/8, $0x0101010101010101
DATA replicate<>+16(SB)/8, $0x0202020202020202
DATA replicate<>+24(SB)/8, $0x0303030303030303
GLOBL replicate<>(SB), RODATA|NOPTR, $32

// bits has bit i in byte i.
DATA bits<>+0(SB)/8, $0x8040201008040201
GLOBL bits<>(SB), RODATA|NOPTR, $8

// spread makes byte i of the lower half meet byte i of the upper half in an
// unpack, which works within 16-byte lanes.
DATA spread<>+0(SB)/8, $0
DATA spread<>+8(SB)/8, $4
DATA spread<>+16(SB)/8, $1
DATA spread<>+24(SB)/8, $5
DATA spread<>+32(SB)/8, $2
DATA spread<>+40(SB)/8, $6
DATA spread<>+48(SB)/8, $3
DATA spread<>+56(SB)/8, $7
GLOBL spread<>(SB), RODATA|NOPTR, $64

// gather puts the quadwords of a lane-wise pack in order.
DATA gather<>+0(SB)/8, $0
DATA gather<>+8(SB)/8, $2
DATA gather<>+16(SB)/8, $4
DATA gather<>+24(SB)/8, $6
DATA gather<>+32(SB)/8, $1
DATA gather<>+40(SB)/8, $3
DATA gather<>+48(SB)/8, $5
DATA gather<>+56(SB)/8, $7
GLOBL gather<>(SB), RODATA|NOPTR, $64

// func splitAVX2(top, low, src *byte, n int)
TEXT ·splitAVX2(SB), NOSPLIT, $0-32
	MOVQ     top+0(FP), DI
	MOVQ     low+8(FP), DX
	MOVQ     src+16(FP), SI
	MOVQ     n+24(FP), CX
	VPCMPEQW Y7, Y7, Y7
	VPSRLW   $8, Y7, Y7        // 0x00ff

splitAVX2loop:
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	VPSRLW    $15, Y0, Y2
	VPADDW    Y0, Y0, Y0
	VPOR      Y2, Y0, Y0
	VPSRLW    $15, Y1, Y3
	VPADDW    Y1, Y1, Y1
	VPOR      Y3, Y1, Y1
	VPAND     Y7, Y0, Y2
	VPAND     Y7, Y1, Y3
	VPACKUSWB Y3, Y2, Y2
	VPERMQ    $0xd8, Y2, Y2
	VPSRLW    $8, Y0, Y0
	VPSRLW    $8, Y1, Y1
	VPACKUSWB Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVDQU   Y2, (DX)
	VMOVDQU   Y0, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	ADDQ      $32, DX
	SUBQ      $32, CX
	JNZ       splitAVX2loop
	VZEROUPPER
	RET

// func joinAVX2(dst, top, low *byte, n int)
TEXT ·joinAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ top+8(FP), SI
	MOVQ low+16(FP), DX
	MOVQ n+24(FP), CX

joinAVX2loop:
	VPERMQ     $0xd8, (SI), Y0
	VPERMQ     $0xd8, (DX), Y1
	VPUNPCKLBW Y0, Y1, Y2
	VPUNPCKHBW Y0, Y1, Y3
	VPSRLW     $1, Y2, Y0
	VPSLLW     $15, Y2, Y2
	VPOR       Y0, Y2, Y2
	VPSRLW     $1, Y3, Y1
	VPSLLW     $15, Y3, Y3
	VPOR       Y1, Y3, Y3
	VMOVDQU    Y2, (DI)
	VMOVDQU    Y3, 32(DI)
	ADDQ       $64, DI
	ADDQ       $32, SI
	ADDQ       $32, DX
	SUBQ       $32, CX
	JNZ        joinAVX2loop
	VZEROUPPER
	RET

// func splitAVX512(top, low, src *byte, n int)
TEXT ·splitAVX512(SB), NOSPLIT, $0-32
	MOVQ        top+0(FP), DI
	MOVQ        low+8(FP), DX
	MOVQ        src+16(FP), SI
	MOVQ        n+24(FP), CX
	VPTERNLOGD  $0xff, Z7, Z7, Z7
	VPSRLW      $8, Z7, Z7          // 0x00ff
	VMOVDQU64   gather<>(SB), Z6

splitAVX512loop:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VPSRLW    $15, Z0, Z2
	VPADDW    Z0, Z0, Z0
	VPORQ     Z2, Z0, Z0
	VPSRLW    $15, Z1, Z3
	VPADDW    Z1, Z1, Z1
	VPORQ     Z3, Z1, Z1
	VPANDQ    Z7, Z0, Z2
	VPANDQ    Z7, Z1, Z3
	VPACKUSWB Z3, Z2, Z2
	VPERMQ    Z2, Z6, Z2
	VPSRLW    $8, Z0, Z0
	VPSRLW    $8, Z1, Z1
	VPACKUSWB Z1, Z0, Z0
	VPERMQ    Z0, Z6, Z0
	VMOVDQU64 Z2, (DX)
	VMOVDQU64 Z0, (DI)
	ADDQ      $128, SI
	ADDQ      $64, DI
	ADDQ      $64, DX
	SUBQ      $64, CX
	JNZ       splitAVX512loop
	VZEROUPPER
	RET

// func joinAVX512(dst, top, low *byte, n int)
TEXT ·joinAVX512(SB), NOSPLIT, $0-32
	MOVQ      dst+0(FP), DI
	MOVQ      top+8(FP), SI
	MOVQ      low+16(FP), DX
	MOVQ      n+24(FP), CX
	VMOVDQU64 spread<>(SB), Z6

joinAVX512loop:
	VPERMQ     (SI), Z6, Z0
	VPERMQ     (DX), Z6, Z1
	VPUNPCKLBW Z0, Z1, Z2
	VPUNPCKHBW Z0, Z1, Z3
	VPSRLW     $1, Z2, Z0
	VPSLLW     $15, Z2, Z2
	VPORQ      Z0, Z2, Z2
	VPSRLW     $1, Z3, Z1
	VPSLLW     $15, Z3, Z3
	VPORQ      Z1, Z3, Z3
	VMOVDQU64  Z2, (DI)
	VMOVDQU64  Z3, 64(DI)
	ADDQ       $128, DI
	ADDQ       $64, SI
	ADDQ       $64, DX
	SUBQ       $64, CX
	JNZ        joinAVX512loop
	VZEROUPPER
	RET
// func planeAVX2(dst, src *byte, n, stride int, mask, base byte)
TEXT ·planeAVX2(SB), NOSPLIT, $0-34
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), R8
	LEAQ (R8)(R8*2), R9        // 3 strides
	LEAQ (DI)(R8*4), R10
	VPBROADCASTB mask+32(FP), Y1
	VPBROADCASTB base+33(FP), Y2
	VPXOR Y3, Y3, Y3

planeAVX2loop:
	VMOVDQU (SI), Y0
	VPAND Y1, Y0, Y4
	VPSUBB Y2, Y4, Y4
	VPCMPGTB Y4, Y3, Y5        // all ones where negative
	VPADDB Y4, Y4, Y4
	VPXOR Y5, Y4, Y4
	VPAND Y1, Y4, Y4
	VPANDN Y0, Y1, Y0
	VPOR Y0, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (R10)(R9*1)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (R10)(R8*2)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (R10)(R8*1)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (R10)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (DI)(R9*1)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (DI)(R8*2)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (DI)(R8*1)
	VPADDB Y4, Y4, Y4
	VPMOVMSKB Y4, AX
	MOVL AX, (DI)
	ADDQ $32, SI
	ADDQ $4, DI
	ADDQ $4, R10
	SUBQ $32, CX
	JNZ planeAVX2loop
	VZEROUPPER
	RET

// func planeAVX512(dst, src *byte, n, stride int, mask, base byte)
TEXT ·planeAVX512(SB), NOSPLIT, $0-34
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), R8
	LEAQ (R8)(R8*2), R9        // 3 strides
	LEAQ (DI)(R8*4), R10
	VPBROADCASTB mask+32(FP), Z1
	VPBROADCASTB base+33(FP), Z2

planeAVX512loop:
	VMOVDQU64 (SI), Z0
	VPANDQ Z1, Z0, Z4
	VPSUBB Z2, Z4, Z4
	VPMOVB2M Z4, K1
	VPMOVM2B K1, Z5            // all ones where negative
	VPADDB Z4, Z4, Z4
	VPXORQ Z5, Z4, Z4
	VPTERNLOGQ $0xe4, Z1, Z0, Z4 // mask ? Z4 : Z0
	VPMOVB2M Z4, K1
	KMOVQ K1, (R10)(R9*1)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (R10)(R8*2)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (R10)(R8*1)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (R10)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (DI)(R9*1)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (DI)(R8*2)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (DI)(R8*1)
	VPADDB Z4, Z4, Z4
	VPMOVB2M Z4, K1
	KMOVQ K1, (DI)
	ADDQ $64, SI
	ADDQ $8, DI
	ADDQ $8, R10
	SUBQ $64, CX
	JNZ planeAVX512loop
	VZEROUPPER
	RET

// func unplaneAVX2(dst, src *byte, n, stride int, mask, base byte)
TEXT ·unplaneAVX2(SB), NOSPLIT, $0-34
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), R8
	LEAQ (R8)(R8*2), R9        // 3 strides
	LEAQ (SI)(R8*4), R10
	VPBROADCASTB mask+32(FP), Y1
	VPBROADCASTB base+33(FP), Y2
	VMOVDQU replicate<>(SB), Y3
	VPBROADCASTQ bits<>(SB), Y4
	VPCMPEQB Y6, Y6, Y6
	VPABSB Y6, Y8              // 1
	VPADDB Y8, Y8, Y9
	VPADDB Y9, Y9, Y10
	VPADDB Y10, Y10, Y11
	VPADDB Y11, Y11, Y12
	VPADDB Y12, Y12, Y13
	VPADDB Y13, Y13, Y14
	VPADDB Y14, Y14, Y15
	VPXOR Y7, Y7, Y7
	VPSUBB Y1, Y7, Y7
	VPAND Y1, Y7, Y7           // lowest bit of mask
	VPANDN Y1, Y15, Y6         // mask without 0x80

unplaneAVX2loop:
	VPXOR Y0, Y0, Y0
	VPBROADCASTD (SI), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y8, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (SI)(R8*1), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y9, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (SI)(R8*2), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y10, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (SI)(R9*1), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y11, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (R10), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y12, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (R10)(R8*1), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y13, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (R10)(R8*2), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y14, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD (R10)(R9*1), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y15, Y5, Y5
	VPOR Y5, Y0, Y0
	VPSRLW $1, Y0, Y5
	VPAND Y6, Y5, Y5           // half the folded exponent
	VPANDN Y0, Y1, Y8          // what is not exponent
	VPAND Y7, Y0, Y0
	VPCMPEQB Y7, Y0, Y0        // all ones where negative
	VPXOR Y0, Y5, Y5
	VPAND Y1, Y5, Y5
	VPADDB Y2, Y5, Y5
	VPAND Y1, Y5, Y5
	VPOR Y8, Y5, Y5
	VMOVDQU Y5, (DI)
	VPCMPEQB Y8, Y8, Y8
	VPABSB Y8, Y8              // 1 again
	ADDQ $32, DI
	ADDQ $4, SI
	ADDQ $4, R10
	SUBQ $32, CX
	JNZ unplaneAVX2loop
	VZEROUPPER
	RET

// func unplaneAVX512(dst, src *byte, n, stride int, mask, base byte)
TEXT ·unplaneAVX512(SB), NOSPLIT, $0-34
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), R8
	LEAQ (R8)(R8*2), R9        // 3 strides
	LEAQ (SI)(R8*4), R10
	VPBROADCASTB mask+32(FP), Z1
	VPBROADCASTB base+33(FP), Z2
	VPTERNLOGD $0xff, Z6, Z6, Z6
	VPABSB Z6, Z8              // 1
	VPADDB Z8, Z8, Z9
	VPADDB Z9, Z9, Z10
	VPADDB Z10, Z10, Z11
	VPADDB Z11, Z11, Z12
	VPADDB Z12, Z12, Z13
	VPADDB Z13, Z13, Z14
	VPADDB Z14, Z14, Z15
	VPXORQ Z7, Z7, Z7
	VPSUBB Z1, Z7, Z7
	VPANDQ Z1, Z7, Z7          // lowest bit of mask
	VPANDNQ Z1, Z15, Z6        // mask without 0x80

unplaneAVX512loop:
	VPXORQ Z0, Z0, Z0
	KMOVQ (SI), K1
	VPADDB Z8, Z0, K1, Z0
	KMOVQ (SI)(R8*1), K2
	VPADDB Z9, Z0, K2, Z0
	KMOVQ (SI)(R8*2), K3
	VPADDB Z10, Z0, K3, Z0
	KMOVQ (SI)(R9*1), K4
	VPADDB Z11, Z0, K4, Z0
	KMOVQ (R10), K5
	VPADDB Z12, Z0, K5, Z0
	KMOVQ (R10)(R8*1), K6
	VPADDB Z13, Z0, K6, Z0
	KMOVQ (R10)(R8*2), K7
	VPADDB Z14, Z0, K7, Z0
	KMOVQ (R10)(R9*1), K1
	VPADDB Z15, Z0, K1, Z0
	VPSRLW $1, Z0, Z5
	VPANDQ Z6, Z5, Z5          // half the folded exponent
	VPTESTMB Z7, Z0, K1
	VPMOVM2B K1, Z3            // all ones where negative
	VPXORQ Z3, Z5, Z5
	VPANDQ Z1, Z5, Z5
	VPADDB Z2, Z5, Z5
	VPTERNLOGQ $0xe4, Z1, Z0, Z5 // mask ? Z5 : Z0
	VMOVDQU64 Z5, (DI)
	ADDQ $64, DI
	ADDQ $8, SI
	ADDQ $8, R10
	SUBQ $64, CX
	JNZ unplaneAVX512loop
	VZEROUPPER
	RET
