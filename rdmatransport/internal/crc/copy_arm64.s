#include "textflag.h"

// COPY16 loads 16 bytes, stores them, and adds them to the CRC.
#define COPY16(SUM, AT) \
	LDP AT(R1), (R5, R6); \
	STP (R5, R6), AT(R0); \
	SUM R5, R4; \
	SUM R6, R4

#define COPY(SUM) \
	MOVD  dst+0(FP), R0; \
	MOVD  src+8(FP), R1; \
	MOVD  n+16(FP), R2; \
	MOVD  ahead+24(FP), R3; \
	MOVWU crc+32(FP), R4; \
	ADD   R1, R3, R3; \
loop: \
	PRFM  (R3), PLDL1KEEP; \
	COPY16(SUM, 0); \
	COPY16(SUM, 16); \
	COPY16(SUM, 32); \
	COPY16(SUM, 48); \
	ADD   $64, R0; \
	ADD   $64, R1; \
	ADD   $64, R3; \
	SUBS  $64, R2; \
	BNE   loop; \
	MOVW  R4, ret+40(FP); \
	RET

// func copyIEEE(dst, src *byte, n, ahead int, crc uint32) uint32
TEXT ·copyIEEE(SB), NOSPLIT, $0-44
	COPY(CRC32X)

// func copyCastagnoli(dst, src *byte, n, ahead int, crc uint32) uint32
TEXT ·copyCastagnoli(SB), NOSPLIT, $0-44
	COPY(CRC32CX)
