#include "textflag.h"

// func write(p *byte, ahead, n int)
TEXT ·write(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD ahead+8(FP), R1
	MOVD n+16(FP), R2
	ADD  R1, R0

loop:
	PRFM (R0), PSTL1KEEP
	ADD  $64, R0
	SUBS $64, R2
	BGT  loop
	RET

// func read(p *byte, ahead, n int)
TEXT ·read(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD ahead+8(FP), R1
	MOVD n+16(FP), R2
	ADD  R1, R0

loop:
	PRFM (R0), PLDL1KEEP
	ADD  $64, R0
	SUBS $64, R2
	BGT  loop
	RET
