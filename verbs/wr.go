package verbs

// SGE is one piece of registered memory (ibv_sge).
type SGE struct {
	Addr   uint64 // in the region's address space: MR.Addr + offset
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a send work request (ibv_send_wr). PostSend copies it and its lists: it may be reused at once. The memory
// that SGList names must stay unchanged until completion, except with SendInline. It must be registered even then: other
// than in libibverbs, an lkey is the only way from an address to memory.
type SendWR struct {
	ID     uint64
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE
	// ImmData is carried by SendWithImm and RDMAWriteWithImm; the value, in host order: it is sent big-endian.
	ImmData uint32
	// InvalidateRKey is carried by SendWithInv, for the peer, and LocalInv: the rkey of a bound window of type 2.
	InvalidateRKey uint32

	// RDMA, atomic and FLUSH operations: the remote address and key.
	RemoteAddr uint64
	RKey       uint32

	// UD QPs (wr.ud): the way to the peer, its QP number (0xffffff for a multicast group) and its Q_Key. A Q_Key with the
	// top bit set stands for the sending QP's own (IBTA Vol 1 §10.2.5).
	AH         *AH
	RemoteQPN  uint32
	RemoteQKey uint32

	// XRC_SEND QPs (qp_type.xrc): the number of the peer's SRQ, and with it the protection domain of RKey.
	RemoteSRQN uint32

	// Atomic operations (wr.atomic): the value to compare with or to add, and the value to swap in.
	CompareAdd uint64
	Swap       uint64

	// Flush: how many bytes from RemoteAddr on, how far they are to get, and whether it is rather the whole region.
	FlushLength uint32
	FlushType   FlushType
	FlushLevel  FlushLevel

	// BindMW: the window and what it is to cover; copied too.
	Bind *MWBind

	inline []byte // a posted SendInline request's data, in place of SGList; owned by the queue, whose slots keep it
	length uint64 // total bytes of SGList or inline, set by PostSend
}

// Inline is the data of a posted SendInline request, for the provider: its SGList is then empty. Nil without.
func (wr *SendWR) Inline() []byte {
	if wr.Flags&SendInline == 0 {
		return nil
	}
	return wr.inline
}

// Length is the message length, in bytes, of a posted request.
func (wr *SendWR) Length() uint64 { return wr.length }

// RecvWR is a receive work request (ibv_recv_wr); PostRecv copies it.
type RecvWR struct {
	ID     uint64
	SGList []SGE

	length uint64
}

// Length is the room, in bytes, of a posted request.
func (wr *RecvWR) Length() uint64 { return wr.length }
