package verbs

// Builder posts send work requests one call at a time (ibv_wr_start … ibv_wr_complete):
//
//	b := qp.Start()
//	b.ID, b.Flags = 1, verbs.SendSignaled
//	b.RDMAWrite(rkey, addr)
//	b.SetSGE(mr.SGE(0, 100))
//	err := b.Complete()
//
// ID and Flags apply to the requests that begin after they are set, a Set call to the request that was begun last. Start
// locks the QP until Complete or Abort, one of which the same goroutine must call. In between it must call no method of
// the QP.
type Builder struct {
	ID    uint64
	Flags SendFlags

	qp   *QP
	wr   SendWR
	open bool  // wr is begun and not yet queued
	n    int   // requests queued
	err  error // the first error, which Complete returns
}

// Start begins a list of requests. Complete returns the error of the first that is invalid.
func (qp *QP) Start() Builder {
	qp.lock()
	b := Builder{qp: qp}
	if qp.destroyed || !qp.acceptsSends() {
		b.err = qp.refusePost("post send to", "RTS", 1)
	}
	return b
}

// Complete posts the whole list, or nothing if one of its requests is rejected. Errors are as for PostSend.
func (b *Builder) Complete() error {
	b.queue()
	if b.err != nil {
		b.Abort()
		return b.err
	}
	if b.n > 0 {
		b.qp.ringDoorbell()
	}
	b.qp.unlock()
	return nil
}

// Abort drops the list and unlocks the QP.
func (b *Builder) Abort() {
	q := &b.qp.sq
	for ; b.n > 0; b.n-- {
		q.n--
		if bind := q.at(q.len()).Bind; bind != nil {
			bind.MW.rkey.Store(bind.prevRKey)
		}
	}
	b.qp.unlock()
}

// queue puts the request that was begun last into the send queue.
func (b *Builder) queue() {
	if !b.open || b.err != nil {
		return
	}
	b.open = false
	if err := b.qp.queuePosted(&b.wr); err != nil {
		b.err = &PostError{b.n, err}
		return
	}
	b.n++
}

func (b *Builder) begin(op WROpcode) *SendWR {
	b.queue()
	b.open = true
	b.wr = SendWR{ID: b.ID, Flags: b.Flags, Opcode: op}
	return &b.wr
}

func (b *Builder) remote(op WROpcode, rkey uint32, addr uint64) *SendWR {
	wr := b.begin(op)
	wr.RKey, wr.RemoteAddr = rkey, addr
	return wr
}

// Send begins a SEND.
func (b *Builder) Send() { b.begin(Send) }

// SendImm begins a SEND with immediate data.
func (b *Builder) SendImm(imm uint32) { b.begin(SendWithImm).ImmData = imm }

// SendInv begins a SEND with Invalidate of an rkey of the peer.
func (b *Builder) SendInv(rkey uint32) { b.begin(SendWithInv).InvalidateRKey = rkey }

// RDMAWrite begins a WRITE.
func (b *Builder) RDMAWrite(rkey uint32, addr uint64) { b.remote(RDMAWrite, rkey, addr) }

// RDMAWriteImm begins a WRITE with immediate data.
func (b *Builder) RDMAWriteImm(rkey uint32, addr uint64, imm uint32) {
	b.remote(RDMAWriteWithImm, rkey, addr).ImmData = imm
}

// RDMARead begins a READ.
func (b *Builder) RDMARead(rkey uint32, addr uint64) { b.remote(RDMARead, rkey, addr) }

// AtomicCmpSwp begins an atomic compare and swap.
func (b *Builder) AtomicCmpSwp(rkey uint32, addr, compare, swap uint64) {
	wr := b.remote(AtomicCmpAndSwp, rkey, addr)
	wr.CompareAdd, wr.Swap = compare, swap
}

// AtomicFetchAdd begins an atomic fetch and add.
func (b *Builder) AtomicFetchAdd(rkey uint32, addr, add uint64) {
	b.remote(AtomicFetchAndAdd, rkey, addr).CompareAdd = add
}

// AtomicWrite begins an ATOMIC WRITE, of 8 bytes.
func (b *Builder) AtomicWrite(rkey uint32, addr uint64) { b.remote(AtomicWrite, rkey, addr) }

// Flush begins a FLUSH.
func (b *Builder) Flush(rkey uint32, addr uint64, length uint32, t FlushType, l FlushLevel) {
	wr := b.remote(Flush, rkey, addr)
	wr.FlushLength, wr.FlushType, wr.FlushLevel = length, t, l
}

// LocalInv begins the invalidation of a window.
func (b *Builder) LocalInv(rkey uint32) { b.begin(LocalInv).InvalidateRKey = rkey }

// BindMW begins the binding of a window of type 2.
func (b *Builder) BindMW(mw *MW, rkey uint32, info MWBindInfo) {
	b.begin(BindMW).Bind = &MWBind{MW: mw, RKey: rkey, MWBindInfo: info}
}

// SetSGE sets the scatter/gather list. The list itself must not be changed before the next call.
func (b *Builder) SetSGE(list ...SGE) { b.wr.SGList = list }

// SetInline sets inline data, which need not be registered. The next call copies it.
func (b *Builder) SetInline(data []byte) {
	b.wr.SGList, b.wr.InlineData = nil, data
	b.wr.Flags |= SendInline
}

// SetXRCSRQN sets the number of the peer's SRQ that an XRC_SEND QP's request is for.
func (b *Builder) SetXRCSRQN(srqn uint32) { b.wr.RemoteSRQN = srqn }

// SetUDAddr sets the destination of a UD QP's datagram.
func (b *Builder) SetUDAddr(ah *AH, qpn, qkey uint32) {
	b.wr.AH, b.wr.RemoteQPN, b.wr.RemoteQKey = ah, qpn, qkey
}
