#include "textflag.h"

// func write(p *byte, ahead, n int)
TEXT ·write(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	ADDQ ahead+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0e // PREFETCHW (SI); without it, no processor faults
	ADDQ $64, SI
	SUBQ $64, CX
	JGT  loop
	RET

// func read(p *byte, ahead, n int)
TEXT ·read(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	ADDQ ahead+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	PREFETCHT0 (SI)
	ADDQ       $64, SI
	SUBQ       $64, CX
	JGT        loop
	RET
