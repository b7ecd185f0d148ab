package wire

import "encoding/binary"

// The ICRC of FLUSH in Linux's rxe (seen in 6.12 and 7.2; 6.1 has no FLUSH). Its table of opcodes
// has no offset of the payload for FLUSH (rxe_opcode.c), so that the payload begins at the BTH for
// rxe_icrc.c: after the headers it adds all of them again, and this time byte 4 of the BTH as it
// is. It does so when it sends a FLUSH and when it checks one. So neither it nor another device
// answers the other's FLUSH. The answers have the usual ICRC.

// RxeFlushICRC returns the ICRC of an RC FLUSH as Linux's rxe computes it. header and b are as for
// [ICRC].
func RxeFlushICRC(header, b []byte) uint32 { return Update(ICRC(header, b), b) }

// CheckRxeFlushICRC reports whether pkt, which is everything after the header, is an RC FLUSH with
// the ICRC of Linux's rxe. It returns false if pkt has another length or the header an unknown one.
func CheckRxeFlushICRC(header, pkt []byte) bool {
	n := len(pkt) - ICRCLen
	return isRCFlush(pkt) && checkable(header, n) && binary.LittleEndian.Uint32(pkt[n:]) == RxeFlushICRC(header, pkt[:n])
}

// SolveRxeFlushID is [SolveID] for an RC FLUSH with the ICRC of Linux's rxe. ok is also false for
// another packet.
func SolveRxeFlushID(header, pkt []byte) (id uint16, ok bool) {
	if !isRCFlush(pkt) || len(header) != ipv4UDPLen {
		return 0, false
	}
	n := len(pkt) - ICRCLen
	return solveID(header, binary.LittleEndian.Uint32(pkt[n:])^RxeFlushICRC(header, pkt[:n]), 2*n)
}

// isRCFlush reports whether pkt, with its ICRC, may be an RC FLUSH. It has no payload.
func isRCFlush(pkt []byte) bool {
	return len(pkt) == RCFlush.Info().HeaderLen()+ICRCLen && Opcode(pkt[0]) == RCFlush
}
