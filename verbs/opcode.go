package verbs

// WROpcode is the operation of a send work request (ibv_wr_opcode, same values).
type WROpcode uint8

const (
	RDMAWrite         WROpcode = 0
	RDMAWriteWithImm  WROpcode = 1
	Send              WROpcode = 2
	SendWithImm       WROpcode = 3
	RDMARead          WROpcode = 4
	AtomicCmpAndSwp   WROpcode = 5
	AtomicFetchAndAdd WROpcode = 6
	LocalInv          WROpcode = 7
	BindMW            WROpcode = 8
	SendWithInv       WROpcode = 9
	Flush             WROpcode = 14
	AtomicWrite       WROpcode = 15
)

var wrOpcodes = []string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV", 14: "FLUSH", "ATOMIC_WRITE"}

// String returns the ibverbs name without IBV_WR_.
func (o WROpcode) String() string { return name(wrOpcodes, int(o), "WR opcode") }

// completion returns the opcode of the work completion of a send work request.
func (o WROpcode) completion() WCOpcode { return wcOfWR[o] }

var wcOfWR = [...]WCOpcode{RDMAWrite: WCRDMAWrite, RDMAWriteWithImm: WCRDMAWrite, Send: WCSend, SendWithImm: WCSend,
	RDMARead: WCRDMARead, AtomicCmpAndSwp: WCCompSwap, AtomicFetchAndAdd: WCFetchAdd, LocalInv: WCLocalInv,
	BindMW: WCBindMW, SendWithInv: WCSend, Flush: WCFlush, AtomicWrite: WCAtomicWrite}

// opcodeSet is a set of send opcodes.
type opcodeSet uint16

func opcodes(ops ...WROpcode) (s opcodeSet) {
	for _, o := range ops {
		s |= 1 << o
	}
	return s
}

func (s opcodeSet) has(o WROpcode) bool { return s>>o&1 != 0 }

var (
	inlineOps = opcodes(Send, SendWithImm, SendWithInv, RDMAWrite, RDMAWriteWithImm, AtomicWrite)
	localOps  = opcodes(LocalInv, BindMW)
	atomicOps = opcodes(AtomicCmpAndSwp, AtomicFetchAndAdd)
)

// sendOps returns the opcodes that a QP type supports. Over iWARP, Send with Invalidate does not
// need memory windows. Immediate data is a separate message after a WRITE, and SEND has none (RFC
// 7306 §6).
func sendOps(t QPType, transport Transport, dev *DeviceAttr) opcodeSet {
	switch t {
	case XRCRecv:
		return 0
	case RawPacket:
		return opcodes(Send)
	case UD:
		return opcodes(Send, SendWithImm)
	case UC:
		s := opcodes(Send, SendWithImm, RDMAWrite, RDMAWriteWithImm)
		if dev.MaxMW > 0 {
			s |= localOps
		}
		return s
	}
	if transport == IWARP {
		s := opcodes(Send, SendWithInv, RDMAWrite, RDMAWriteWithImm, RDMARead)
		if dev.AtomicCap != AtomicNone {
			s |= atomicOps
		}
		if dev.MaxMW > 0 {
			s |= localOps
		}
		return s
	}
	s := opcodes(Send, SendWithImm, RDMAWrite, RDMAWriteWithImm, RDMARead)
	if dev.AtomicCap != AtomicNone {
		s |= atomicOps
	}
	if dev.MaxMW > 0 {
		s |= localOps | opcodes(SendWithInv)
	}
	if dev.DeviceCapFlags&(DeviceFlushGlobal|DeviceFlushPersistent) != 0 {
		s |= opcodes(Flush)
	}
	if dev.DeviceCapFlags&DeviceAtomicWrite != 0 {
		s |= opcodes(AtomicWrite)
	}
	return s
}

// lateErrorOps returns the opcodes that a QP type does not support, and that fail only when the
// device executes them.
func lateErrorOps(t QPType) opcodeSet {
	if t == UD || t == UC {
		return opcodes(SendWithInv, RDMAWrite, RDMAWriteWithImm, RDMARead) | atomicOps
	}
	return 0
}

// SendFlags modify a send work request (ibv_send_flags, same values).
type SendFlags uint8

const (
	SendFence     SendFlags = 1 << 0 // start after earlier READs and atomics are complete
	SendSignaled  SendFlags = 1 << 1 // generate a work completion
	SendSolicited SendFlags = 1 << 2 // set the solicited event bit: see CQ.ReqNotify
	SendInline    SendFlags = 1 << 3 // copy the data when the request is posted

	sendFlagsKnown = SendFence | SendSignaled | SendSolicited | SendInline
)

func (f SendFlags) String() string {
	return flags([]string{"FENCE", "SIGNALED", "SOLICITED", "INLINE"}, uint32(f))
}
