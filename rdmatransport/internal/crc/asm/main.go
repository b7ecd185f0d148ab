// Command asm writes fold_amd64.s and the declarations of its functions. `go generate` in package
// crc calls it.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The offsets of package crc's constants, in bytes.
const (
	by4   = 64 * iota // multiply each 16-byte lane of a register by x^(8·4 registers)
	by3               // … of 3 registers
	by2               // … of 2
	by1               // … of 1
	lanes             // multiply each lane except the last by its distance from the last
	// x^96, x^64, the polynomial, its inverse, a 32-bit mask, and whether it has an instruction.
	finish
)

// accumulators is the number of registers folded in parallel: a carry-less multiplication has a
// latency of about four cycles, and one can start each cycle.
const accumulators = 4

func main() {
	for _, bits := range []int{256, 512} {
		generate(bits, false)
		generate(bits, true)
	}
	features()
	Generate()
}

// features writes the function that detects VPCLMULQDQ. golang.org/x/sys/cpu detects it only on
// processors with AVX-512.
func features() {
	TEXT("hasVPCLMULQDQ", NOSPLIT, "func() bool")
	Doc("hasVPCLMULQDQ reports whether the processor has VPCLMULQDQ. The processor must have AVX2.")
	MOVL(U32(7), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	BTL(U8(10), reg.ECX)
	has := GP8()
	SETCS(has)
	Store(has, ReturnIndex(0))
	RET()
}

func vector(bits int) reg.VecVirtual {
	if bits == 512 {
		return ZMM()
	}
	return YMM()
}

// move writes an unaligned load or store.
func move(bits int, from, to Op) {
	if bits == 512 {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// fold multiplies both halves of each lane of acc by those of factor, and adds with. acc, factor
// and with have the same width.
func fold(bits int, acc, factor, with reg.VecVirtual) {
	high := vector(bits)
	VPCLMULQDQ(U8(0x11), factor, acc, high)
	VPCLMULQDQ(U8(0x00), factor, acc, acc)
	if bits == 512 {
		VPTERNLOGQ(U8(0x96), with, high, acc) // add all three
	} else {
		VPXOR(with, high, high)
		VPXOR(high, acc, acc)
	}
}

// generate writes the function for registers of a number of bits, with or without the copy.
func generate(bits int, copies bool) {
	w := bits / 8
	name, signature := fmt.Sprintf("update%d", bits), "func(k *[46]uint64, src *byte, n int, crc uint32) uint32"
	doc := []string{name + " returns the result of adding n bytes at src to crc."}
	if copies {
		name, signature = fmt.Sprintf("copy%d", bits), "func(k *[46]uint64, dst, src *byte, n, ahead int, crc uint32) uint32"
		doc = []string{name + " copies n bytes from src to dst, and returns the result of adding them to crc.",
			"It prefetches the memory ahead bytes further on."}
	}
	doc = append(doc, fmt.Sprintf("n is a multiple of %d and at least %d. crc and the result are not inverted.", w, accumulators*w))
	TEXT(name, NOSPLIT, signature)
	Doc(doc...)
	Pragma("noescape")

	k := Load(Param("k"), GP64())
	src := Load(Param("src"), GP64())
	var dst, ahead reg.Register
	if copies {
		dst = Load(Param("dst"), GP64())
		ahead = Load(Param("ahead"), GP64())
	}
	n := Load(Param("n"), GP64())
	at := func(i int) Mem { return Mem{Base: src, Disp: i * w} }
	to := func(i int) Mem { return Mem{Base: dst, Disp: i * w} }
	advance := func(registers int) {
		ADDQ(I32(registers*w), src)
		if copies {
			ADDQ(I32(registers*w), dst)
		}
		SUBQ(I32(registers*w), n)
	}
	prefetch := func(i int) {
		if copies && i*w%64 == 0 {
			PREFETCHT0(Mem{Base: src, Index: ahead, Scale: 1, Disp: i * w})
		}
	}

	var acc [accumulators]reg.VecVirtual
	for i := range acc {
		acc[i] = vector(bits)
		prefetch(i)
		move(bits, at(i), acc[i])
		if copies {
			move(bits, acc[i], to(i))
		}
	}
	crc := Load(Param("crc"), GP32())
	start := XMM()
	VMOVD(crc, start)
	if bits == 512 {
		VPXORQ(start.AsZ(), acc[0], acc[0])
	} else {
		VPXOR(start.AsY(), acc[0], acc[0])
	}
	advance(accumulators)
	factor, next := vector(bits), vector(bits)
	move(bits, Mem{Base: k, Disp: by4}, factor)
	CMPQ(n, U32(accumulators*w))
	JB(LabelRef("merge"))

	Label("loop")
	for i := range acc {
		prefetch(i)
		move(bits, at(i), next)
		if copies {
			move(bits, next, to(i))
		}
		fold(bits, acc[i], factor, next)
	}
	advance(accumulators)
	CMPQ(n, U32(accumulators*w))
	JAE(LabelRef("loop"))

	Label("merge")
	last := acc[accumulators-1]
	for i, distance := range []int{by3, by2, by1} {
		move(bits, Mem{Base: k, Disp: distance}, factor)
		fold(bits, acc[i], factor, last)
		last = acc[i]
	}
	// factor is by1 now.
	CMPQ(n, U32(w))
	JB(LabelRef("lanes"))
	Label("rest")
	move(bits, at(0), next)
	if copies {
		move(bits, next, to(0))
	}
	fold(bits, last, factor, next)
	advance(1)
	CMPQ(n, U32(w))
	JAE(LabelRef("rest"))

	Label("lanes")
	state := addLanes(bits, k, last)
	finishCRC(k, state)
}

// addLanes combines the lanes of 16 bytes into one.
func addLanes(bits int, k reg.Register, v reg.VecVirtual) reg.VecVirtual {
	factor, high, low := vector(bits), vector(bits), vector(bits)
	move(bits, Mem{Base: k, Disp: lanes}, factor) // zero for the last lane
	VPCLMULQDQ(U8(0x11), factor, v, high)
	VPCLMULQDQ(U8(0x00), factor, v, low)
	state, half := XMM(), XMM()
	if bits == 512 {
		VPXORQ(low, high, high)
		VEXTRACTI32X4(U8(3), v, state)
		upper := YMM()
		VEXTRACTI64X4(U8(1), high, upper)
		VPXOR(high.AsY(), upper, upper)
		VEXTRACTI128(U8(1), upper, half)
		VPXOR(upper.AsX(), state, state)
		VPXOR(half, state, state)
	} else {
		VPXOR(low, high, high)
		VEXTRACTI128(U8(1), v, state)
		VPXOR(high.AsX(), state, state)
	}
	VZEROUPPER()
	return state
}

// finishCRC returns the CRC of the 16 bytes of state. CRC-32C has an instruction for it. For
// CRC-32, a multiplication reduces 128 bits to 64, followed by a Barrett reduction: a
// multiplication by the inverse yields the quotient, and then the remainder.
func finishCRC(k reg.Register, state reg.VecVirtual) {
	result := GP32()
	kind := GP64()
	MOVQ(Mem{Base: k, Disp: finish + 40}, kind)
	TESTQ(kind, kind)
	JNE(LabelRef("castagnoli"))
	c, t, mask := XMM(), XMM(), XMM()
	MOVQ(Mem{Base: k, Disp: finish}, c) // x^96
	MOVO(state, t)
	PCLMULQDQ(U8(0x00), c, t)
	PSRLDQ(U8(8), state)
	PXOR(t, state)
	MOVQ(Mem{Base: k, Disp: finish + 32}, mask) // 32 bits
	MOVQ(Mem{Base: k, Disp: finish + 8}, c)     // x^64
	MOVO(state, t)
	PAND(mask, t)
	PCLMULQDQ(U8(0x00), c, t)
	PSRLDQ(U8(4), state)
	PXOR(t, state)
	MOVOU(Mem{Base: k, Disp: finish + 16}, c) // the polynomial, the inverse
	MOVO(state, t)
	PAND(mask, t)
	PCLMULQDQ(U8(0x10), c, t)
	PAND(mask, t)
	PCLMULQDQ(U8(0x00), c, t)
	PXOR(t, state)
	PEXTRD(U8(1), state, result)
	Store(result, ReturnIndex(0))
	RET()

	Label("castagnoli")
	word, sum := GP64(), GP64()
	XORL(sum.As32(), sum.As32())
	MOVQ(state, word)
	CRC32Q(word, sum)
	PEXTRQ(U8(1), state, word)
	CRC32Q(word, sum)
	Store(sum.As32(), ReturnIndex(0))
	RET()
}
