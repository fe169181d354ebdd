#include "textflag.h"

// Offsets in type tree.
#define SLOTS  0
#define NODES  512
#define TABLE  1024
#define LEAVES 256 // of slot slotLeaf, in slots
#define RARE   504 // of slot slotLiteral, in slots

// replicate spreads 4 bytes to 32, each to 8.
DATA replicate<>+0(SB)/8, $0x0000000000000000
DATA replicate<>+8(SB)/8, $0x0101010101010101
DATA replicate<>+16(SB)/8, $0x0202020202020202
DATA replicate<>+24(SB)/8, $0x0303030303030303
GLOBL replicate<>(SB), RODATA|NOPTR, $32

// bits has bit i in byte i.
DATA bits<>+0(SB)/8, $0x8040201008040201
GLOBL bits<>(SB), RODATA|NOPTR, $8

// All functions go through groups of 64 symbols; each inner node has a slot
// and an innerNode {pos uint64; left, right uint32}.
//
//	DI top        BX streams      R8  slots
//	SI rare       R9 nodes        R10 table
//	DX groups     R13 bytes of nodes in use
//	R12 bytes of leaf slots in use

// func decodeTreeAVX512(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)
TEXT ·decodeTreeAVX512(SB), NOSPLIT, $0-64
	MOVQ top+0(FP), DI
	MOVQ rare+8(FP), SI
	MOVQ streams+16(FP), BX
	MOVQ t+24(FP), R8
	MOVQ inner+32(FP), R13
	MOVQ leaves+40(FP), R12
	MOVQ groups+48(FP), DX
	LEAQ NODES(R8), R9
	LEAQ TABLE(R8), R10
	SHLQ $4, R13
	SHLQ $3, R12

decodeTreeAVX512group:
	MOVQ    $-1, AX
	CMPQ    DX, $1
	CMOVQEQ last+56(FP), AX
	MOVQ    AX, (R8)
	// Down the tree: the bits of a node tell its symbols apart.
	XORQ R11, R11

decodeTreeAVX512node:
	MOVQ    R11, AX
	SHRQ    $1, AX
	MOVQ    (R8)(AX*1), R14        // symbols at this node
	MOVQ    (R9)(R11*1), CX        // pos
	MOVQ    CX, AX
	SHRQ    $6, AX
	MOVQ    8(BX)(AX*8), R15
	MOVQ    (BX)(AX*8), AX
	SHRQ    CX, R15, AX            // 64 bits from pos on
	PDEPQ   R14, AX, AX            // symbols that go right
	POPCNTQ R14, R15
	ADDQ    R15, CX
	MOVQ    CX, (R9)(R11*1)
	XORQ    AX, R14
	MOVL    8(R9)(R11*1), CX
	MOVL    12(R9)(R11*1), R15
	MOVQ    R14, (R8)(CX*8)
	MOVQ    AX, (R8)(R15*8)
	ADDQ    $16, R11
	CMPQ    R11, R13
	JB      decodeTreeAVX512node
	MOVQ    RARE(R8), AX
	MOVQ    AX, (SI)
	// Table entry j holds symbol j 64 times.
	XORQ   R11, R11

decodeTreeAVX512leaf:
	KMOVQ     LEAVES(R8)(R11*1), K1
	VMOVDQU8  (R10)(R11*8), K1, Z0
	ADDQ      $8, R11
	CMPQ      R11, R12
	JB        decodeTreeAVX512leaf
	VMOVDQU64 Z0, (DI)
	ADDQ $64, DI
	ADDQ $8, SI
	DECQ DX
	JNZ  decodeTreeAVX512group
	VZEROUPPER
	RET

// func encodeTreeAVX512(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)
TEXT ·encodeTreeAVX512(SB), NOSPLIT, $0-64
	MOVQ top+0(FP), DI
	MOVQ rare+8(FP), SI
	MOVQ streams+16(FP), BX
	MOVQ t+24(FP), R8
	MOVQ inner+32(FP), R13
	MOVQ leaves+40(FP), R12
	MOVQ groups+48(FP), DX
	LEAQ NODES(R8), R9
	LEAQ TABLE(R8), R10
	SHLQ $4, R13
	SHLQ $3, R12

encodeTreeAVX512group:
	MOVQ      $-1, AX
	CMPQ      DX, $1
	CMOVQEQ   last+56(FP), AX
	KMOVQ     AX, K2               // symbols of this group
	KMOVQ     K2, K3               // those without a leaf so far
	VMOVDQU64 (DI), Z0
	XORQ      R11, R11

	// Table entry j holds symbol j 64 times.
encodeTreeAVX512leaf:
	VPCMPEQB (R10)(R11*8), Z0, K2, K1
	KMOVQ    K1, LEAVES(R8)(R11*1)
	KANDNQ   K3, K1, K3
	ADDQ     $8, R11
	CMPQ     R11, R12
	JB       encodeTreeAVX512leaf
	KMOVQ    K3, RARE(R8)
	KMOVQ    K3, (SI)
	// Up the tree: which symbols reach a node, and which go right from it.
	MOVQ R13, R11

encodeTreeAVX512node:
	SUBQ    $16, R11
	MOVL    8(R9)(R11*1), AX
	MOVL    12(R9)(R11*1), CX
	MOVQ    (R8)(AX*8), R14
	MOVQ    (R8)(CX*8), R15
	ORQ     R15, R14               // symbols at this node
	MOVQ    R11, AX
	SHRQ    $1, AX
	MOVQ    R14, (R8)(AX*1)
	PEXTQ   R14, R15, R15          // bits of this node
	POPCNTQ R14, R14
	MOVQ    (R9)(R11*1), CX        // pos
	MOVQ    CX, AX
	SHRQ    $6, AX
	ADDQ    CX, R14
	MOVQ    R14, (R9)(R11*1)
	SHLXQ   CX, R15, R14
	ORQ     R14, (BX)(AX*8)
	NOTQ    CX
	SHRQ    $1, R15
	SHRXQ   CX, R15, R15
	MOVQ    R15, 8(BX)(AX*8)       // what did not fit, and zeros
	TESTQ   R11, R11
	JNZ     encodeTreeAVX512node
	ADDQ $64, DI
	ADDQ $8, SI
	DECQ DX
	JNZ  encodeTreeAVX512group
	VZEROUPPER
	RET

// func decodeTreeAVX2(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)
TEXT ·decodeTreeAVX2(SB), NOSPLIT, $0-64
	MOVQ top+0(FP), DI
	MOVQ rare+8(FP), SI
	MOVQ streams+16(FP), BX
	MOVQ t+24(FP), R8
	MOVQ inner+32(FP), R13
	MOVQ leaves+40(FP), R12
	MOVQ groups+48(FP), DX
	LEAQ NODES(R8), R9
	LEAQ TABLE(R8), R10
	SHLQ $4, R13
	SHLQ $3, R12
	VMOVDQU      replicate<>(SB), Y3
	VPBROADCASTQ bits<>(SB), Y4
	VPCMPEQB     Y5, Y5, Y5
	VPABSB       Y5, Y8            // 1
	VPADDB       Y8, Y8, Y9
	VPADDB       Y9, Y9, Y10
	VPADDB       Y10, Y10, Y11
	VPADDB       Y11, Y11, Y12
	VPADDB       Y12, Y12, Y13
	VPADDB       Y13, Y13, Y14
	VPADDB       Y14, Y14, Y15

decodeTreeAVX2group:
	MOVQ    $-1, AX
	CMPQ    DX, $1
	CMOVQEQ last+56(FP), AX
	MOVQ    AX, (R8)
	// Down the tree: the bits of a node tell its symbols apart.
	XORQ R11, R11

decodeTreeAVX2node:
	MOVQ    R11, AX
	SHRQ    $1, AX
	MOVQ    (R8)(AX*1), R14        // symbols at this node
	MOVQ    (R9)(R11*1), CX        // pos
	MOVQ    CX, AX
	SHRQ    $6, AX
	MOVQ    8(BX)(AX*8), R15
	MOVQ    (BX)(AX*8), AX
	SHRQ    CX, R15, AX            // 64 bits from pos on
	PDEPQ   R14, AX, AX            // symbols that go right
	POPCNTQ R14, R15
	ADDQ    R15, CX
	MOVQ    CX, (R9)(R11*1)
	XORQ    AX, R14
	MOVL    8(R9)(R11*1), CX
	MOVL    12(R9)(R11*1), R15
	MOVQ    R14, (R8)(CX*8)
	MOVQ    AX, (R8)(R15*8)
	ADDQ    $16, R11
	CMPQ    R11, R13
	JB      decodeTreeAVX2node
	MOVQ    RARE(R8), AX
	MOVQ    AX, (SI)
	// Table entry j holds, for each bit of symbol j, 64 times that bit. The
	// planes of all leaves together are those of the symbols; they go to the
	// slots of the inner nodes, which are done with.
	XORQ  R11, R11
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2

decodeTreeAVX2leaf:
	VPBROADCASTQ LEAVES(R8)(R11*1), Y0
	VPAND        (R10)(R11*8), Y0, Y5
	VPAND        32(R10)(R11*8), Y0, Y6
	VPOR         Y5, Y1, Y1
	VPOR         Y6, Y2, Y2
	ADDQ         $8, R11
	CMPQ         R11, R12
	JB           decodeTreeAVX2leaf
	VMOVDQU      Y1, 8(R8)
	VMOVDQU      Y2, 40(R8)
	VPXOR Y0, Y0, Y0
	VPBROADCASTD 8(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y8, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 16(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y9, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 24(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y10, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 32(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y11, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 40(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y12, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 48(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y13, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 56(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y14, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 64(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y15, Y5, Y5
	VPOR Y5, Y0, Y0
	VMOVDQU Y0, 0(DI)
	VPXOR Y0, Y0, Y0
	VPBROADCASTD 12(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y8, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 20(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y9, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 28(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y10, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 36(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y11, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 44(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y12, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 52(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y13, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 60(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y14, Y5, Y5
	VPOR Y5, Y0, Y0
	VPBROADCASTD 68(R8), Y5
	VPSHUFB Y3, Y5, Y5
	VPAND Y4, Y5, Y5
	VPCMPEQB Y4, Y5, Y5
	VPAND Y15, Y5, Y5
	VPOR Y5, Y0, Y0
	VMOVDQU Y0, 32(DI)
	ADDQ $64, DI
	ADDQ $8, SI
	DECQ DX
	JNZ  decodeTreeAVX2group
	VZEROUPPER
	RET

// func encodeTreeAVX2(top *byte, rare *uint64, streams *byte, t *tree, inner, leaves, groups int, last uint64)
TEXT ·encodeTreeAVX2(SB), NOSPLIT, $0-64
	MOVQ top+0(FP), DI
	MOVQ rare+8(FP), SI
	MOVQ streams+16(FP), BX
	MOVQ t+24(FP), R8
	MOVQ inner+32(FP), R13
	MOVQ leaves+40(FP), R12
	MOVQ groups+48(FP), DX
	LEAQ NODES(R8), R9
	LEAQ TABLE(R8), R10
	SHLQ $4, R13
	SHLQ $3, R12

encodeTreeAVX2group:
	MOVQ    $-1, R14
	CMPQ    DX, $1
	CMOVQEQ last+56(FP), R14      // symbols of this group
	MOVQ    R14, R15              // those without a leaf so far
	VMOVDQU (DI), Y0
	VMOVDQU 32(DI), Y1
	XORQ    R11, R11

	// Table entry j holds symbol j 64 times.
encodeTreeAVX2leaf:
	VMOVDQU   (R10)(R11*8), Y2
	VPCMPEQB  Y2, Y0, Y3
	VPCMPEQB  Y2, Y1, Y4
	VPMOVMSKB Y3, AX
	VPMOVMSKB Y4, CX
	SHLQ      $32, CX
	ORQ       CX, AX
	ANDQ      R14, AX
	MOVQ      AX, LEAVES(R8)(R11*1)
	XORQ      AX, R15
	ADDQ      $8, R11
	CMPQ      R11, R12
	JB        encodeTreeAVX2leaf
	MOVQ      R15, RARE(R8)
	MOVQ      R15, (SI)
	// Up the tree: which symbols reach a node, and which go right from it.
	MOVQ R13, R11

encodeTreeAVX2node:
	SUBQ    $16, R11
	MOVL    8(R9)(R11*1), AX
	MOVL    12(R9)(R11*1), CX
	MOVQ    (R8)(AX*8), R14
	MOVQ    (R8)(CX*8), R15
	ORQ     R15, R14               // symbols at this node
	MOVQ    R11, AX
	SHRQ    $1, AX
	MOVQ    R14, (R8)(AX*1)
	PEXTQ   R14, R15, R15          // bits of this node
	POPCNTQ R14, R14
	MOVQ    (R9)(R11*1), CX        // pos
	MOVQ    CX, AX
	SHRQ    $6, AX
	ADDQ    CX, R14
	MOVQ    R14, (R9)(R11*1)
	SHLXQ   CX, R15, R14
	ORQ     R14, (BX)(AX*8)
	NOTQ    CX
	SHRQ    $1, R15
	SHRXQ   CX, R15, R15
	MOVQ    R15, 8(BX)(AX*8)       // what did not fit, and zeros
	TESTQ   R11, R11
	JNZ     encodeTreeAVX2node
	ADDQ $64, DI
	ADDQ $8, SI
	DECQ DX
	JNZ  encodeTreeAVX2group
	VZEROUPPER
	RET

// func cpuid(leaf uint32) (a, b, c, d uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL AX, a+8(FP)
	MOVL BX, b+12(FP)
	MOVL CX, c+16(FP)
	MOVL DX, d+20(FP)
	RET
