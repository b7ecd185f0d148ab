package verbs

// SGE is a scatter/gather element: a range of registered memory (ibv_sge).
type SGE struct {
	Addr   uint64 // MR.Addr plus an offset in the region
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a send work request (ibv_send_wr). PostSend copies it and its lists, which may be
// reused immediately. The memory of SGList must not change until completion, except with
// SendInline. Unlike in libibverbs, this memory must be registered even with SendInline, because a
// Go program cannot access memory by its address alone. InlineData is for data that is not
// registered.
type SendWR struct {
	WRID   uint64
	Opcode WROpcode
	Flags  SendFlags
	// Of a posted request that fails when it is executed, and fault again if an Injector gave it.
	fault, injected WCStatus
	SGList          []SGE
	// ImmData is for SendWithImm and RDMAWriteWithImm. It is a number, not in network byte order.
	ImmData uint32
	// InvalidateRKey is the rkey of a bound window of type 2, of the peer for SendWithInv and of
	// this side for LocalInv.
	InvalidateRKey uint32

	// RDMA, atomic and FLUSH operations: the remote address and key.
	RemoteAddr uint64
	RKey       uint32

	// UD QPs (wr.ud): the path to the peer, its QP number (0xffffff for a multicast group) and its
	// Q_Key. If the Q_Key's top bit is set, the sending QP's own is used instead (IBTA Vol 1
	// §10.2.5).
	AH         *AH
	RemoteQPN  uint32
	RemoteQKey uint32

	// XRC_SEND QPs (qp_type.xrc): the number of the peer's SRQ, whose protection domain RKey must
	// belong to.
	RemoteSRQN uint32

	// Atomic operations (wr.atomic): the value to compare with or to add, and the value to swap in.
	CompareAdd uint64
	Swap       uint64

	// Flush: the number of bytes from RemoteAddr on, the placement to wait for, and whether to
	// flush the whole region instead.
	FlushLength uint32
	FlushType   FlushType
	FlushLevel  FlushLevel

	// BindMW: the window and the memory that it will cover. PostSend copies this too.
	Bind *MWBind

	// InlineData, if not nil, is the data of a request with SendInline, instead of SGList. It need
	// not be registered. PostSend copies it.
	InlineData []byte

	length uint64 // total length of SGList or InlineData, set by PostSend
}

// RecvWR is a receive work request (ibv_recv_wr). PostRecv copies it.
type RecvWR struct {
	WRID   uint64
	SGList []SGE

	length   uint64
	injected WCStatus // by Injector.Recv
}
