package rocetransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// Opcodes: kinds of work requests, and the opcodes of a message's packets.

func kindOf(op verbs.WROpcode) send.Kind {
	switch op {
	case verbs.Send, verbs.SendWithImm, verbs.SendWithInv:
		return send.Send
	case verbs.RDMAWrite:
		return send.Write
	case verbs.RDMAWriteWithImm:
		return send.WriteImm
	case verbs.RDMARead:
		return send.Read
	case verbs.BindMW, verbs.LocalInv:
		return send.Local
	}
	return send.Atomic
}

func isAtomic(op verbs.WROpcode) bool {
	return op == verbs.AtomicCmpAndSwp || op == verbs.AtomicFetchAndAdd
}

// dataOpcode returns the RC opcode of one packet of a SEND or WRITE. UC has the same with its own
// upper bits.
func dataOpcode(op verbs.WROpcode, first, last bool) wire.Opcode {
	var o [4]wire.Opcode // middle, first, last, only
	switch op {
	case verbs.Send:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLast, wire.RCSendOnly}
	case verbs.SendWithImm:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLastImm, wire.RCSendOnlyImm}
	case verbs.SendWithInv:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLastInv, wire.RCSendOnlyInv}
	case verbs.AtomicWrite:
		return wire.RCAtomicWrite
	case verbs.RDMAWrite:
		o = [4]wire.Opcode{wire.RCWriteMiddle, wire.RCWriteFirst, wire.RCWriteLast, wire.RCWriteOnly}
	case verbs.RDMAWriteWithImm:
		o = [4]wire.Opcode{wire.RCWriteMiddle, wire.RCWriteFirst, wire.RCWriteLastImm, wire.RCWriteOnlyImm}
	}
	i := 0
	if first {
		i |= 1
	}
	if last {
		i |= 2
	}
	return o[i]
}

// hasAnswer reports whether a request counts in max_rd_atomic until its response, which alone
// acknowledges it.
func hasAnswer(op verbs.WROpcode) bool {
	return op == verbs.RDMARead || isAtomic(op) || emptyAnswer(op)
}

// emptyAnswer reports whether that response has no payload.
func emptyAnswer(op verbs.WROpcode) bool { return op == verbs.Flush || op == verbs.AtomicWrite }

// isLocal reports whether a request needs no packets.
func isLocal(wr *verbs.PostedSend) bool {
	return wr.Opcode == verbs.BindMW || wr.Opcode == verbs.LocalInv || wr.Fault() != verbs.WCSuccess
}

// operation returns the same operation's RC opcode.
func operation(o wire.Opcode) wire.Opcode { return o & 0x1f }
