package wire

import "time"

// mask24 keeps the 24 bits of a PSN, an MSN or a QP number.
const mask24 = 1<<24 - 1

// PSNAdd returns p + n modulo 2^24. Bits of p above the 24th are ignored.
func PSNAdd(p, n uint32) uint32 { return (p + n) & mask24 }

// PSNDiff returns a − b as a signed 24-bit number. It is negative if a comes before b, for PSNs
// less than 2^23 apart (IBTA Vol 1 §9.7.1).
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// RNRTimer returns the time of an RNR NAK's 5-bit timer code (IBTA Vol 1 §9.7.5.2.8).
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&syndromeValue]) * 10 * time.Microsecond
}

// rnrTimers is in units of 10 µs.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}
