package verbs

// PostSend appends work requests to the send queue, in order, and starts them (ibv_post_send). It
// copies the requests and their scatter/gather lists, which the caller may reuse immediately. In
// SQD the requests wait for RTS; in ERR and SQE they are flushed; before RTS they are rejected.
//
// The first request that is rejected ends the call with a *PostError. It wraps ErrQueueFull,
// ErrInvalid, ErrNotSupported (no QP of this transport supports the opcode) or ErrClosed. The
// lkeys and ranges of a scatter/gather list are checked when the request is executed, or by
// PostSend for SendInline, which copies the data. As on hardware, two further errors occur only
// when a request is executed. WCLocQPOpErr is the error of an opcode that RC supports but UC or UD
// does not, and of an AH of another PD. WCLocLenErr is the error of an atomic whose list does not
// have 8 bytes, and of a datagram longer than the port's active MTU.
func (qp *QP) PostSend(wrs ...*SendWR) error {
	if !qp.mu.TryLock() { // like qp.lock, which is not inlined
		qp.lockSlow()
	}
	defer qp.unlock()
	if qp.closed || !qp.acceptsSends() {
		return qp.rejectPost("post send to", "RTS", len(wrs))
	}
	var err error
	for i, wr := range wrs {
		if err = qp.queuePosted(wr); err != nil {
			err = &PostError{i, err}
			wrs = wrs[:i]
			break
		}
	}
	if len(wrs) > 0 {
		qp.ringDoorbell(len(wrs))
	}
	return err
}

// PostSendAll posts the requests that next returns, up to the first nil, or none of them if one is
// rejected (ibv_wr_start to ibv_wr_complete). Each request is copied before next is called again,
// so next may return the same structure. The QP is locked meanwhile: next must not call its
// methods. Errors are as for PostSend.
func (qp *QP) PostSendAll(next func() *SendWR) error {
	qp.lock()
	defer qp.unlock()
	if qp.closed || !qp.acceptsSends() {
		return qp.rejectPost("post send to", "RTS", 1)
	}
	n, complete := 0, false
	defer func() {
		if !complete { // including a panic of next
			qp.unpost(n)
		}
	}()
	for wr := next(); wr != nil; wr = next() {
		if err := qp.queuePosted(wr); err != nil {
			return &PostError{n, err}
		}
		n++
	}
	complete = true
	if n > 0 {
		qp.ringDoorbell(n)
	}
	return nil
}

// unpost removes the last n requests, which are not started yet.
func (qp *QP) unpost(n int) {
	for q := &qp.sq; n > 0; n-- {
		if qp.hidden() > 0 {
			qp.removeHidden(1)
		} else {
			q.n--
		}
		if bind := q.at(qp.posted()).Bind; bind != nil {
			bind.MW.rkey.Store(bind.prevRKey)
		}
	}
}

// post appends one request to the send queue and starts it.
func (qp *QP) post(wr *SendWR) error {
	if qp.closed || !qp.acceptsSends() {
		return qp.rejectPost("post send to", "RTS", 1)
	}
	err := qp.queueSend(wr)
	if err != nil {
		return &PostError{0, err}
	}
	qp.ringDoorbell(1)
	return nil
}

// acceptsSends reports whether send requests may be posted in the QP's state, even if they are then
// flushed.
func (qp *QP) acceptsSends() bool {
	return qp.state >= StateRTS
}

// ringDoorbell starts the n new requests of the send queue, or flushes them in a state that sends
// nothing.
func (qp *QP) ringDoorbell(n int) {
	if qp.observed&faulted != 0 {
		qp.injectSends(n)
	}
	if qp.state != StateRTS && qp.state != StateSQD {
		qp.flushSends()
	} else {
		qp.prov.PostSend()
	}
}

// posted returns the number of requests in the send queue, including hidden ones.
func (qp *QP) posted() int { return qp.sq.len() + int(qp.hidden()) }

// PostRecv appends copies of work requests to the receive queue, in order (ibv_post_recv). In state
// ERR they are flushed; in RESET, or if the QP has an SRQ, they are rejected. Errors are as for
// PostSend.
func (qp *QP) PostRecv(wrs ...*RecvWR) error {
	if !qp.mu.TryLock() {
		qp.lockSlow()
	}
	defer qp.unlock()
	if qp.ring() != nil {
		return qp.postBesideRing(wrs)
	}
	return qp.postRecvs(wrs)
}

// postRecvs is PostRecv for a locked QP.
func (qp *QP) postRecvs(wrs []*RecvWR) error {
	if qp.closed || qp.state == StateReset {
		return qp.rejectPost("post receive to", "INIT", len(wrs))
	}
	if t := qp.init.Type; qp.init.SRQ != nil || t == XRCSend || t == XRCRecv {
		return &PostError{0, Errorf(ErrInvalid, qp.op("post receive to"), "it has no receive queue: post to an SRQ")}
	}
	if qp.observed&faulted != 0 {
		if err := qp.faultCall("post_recv"); err != nil {
			return &PostError{0, err}
		}
	}
	var err error
	for i, wr := range wrs {
		if e := qp.queueRecv(wr); e != nil {
			err = &PostError{i, e}
			wrs = wrs[:i]
			break
		}
	}
	switch {
	case qp.state == StateErr:
		qp.flush()
	case len(wrs) == 0:
	default:
		qp.prov.PostRecv()
	}
	return err
}

// rejectPost returns the error of posting n requests to a QP that is closed, or not yet in the
// state want.
func (qp *QP) rejectPost(what, want string, n int) error {
	if err := qp.alive(what); err != nil {
		return &PostError{0, err}
	}
	if n == 0 {
		return nil
	}
	return &PostError{0, Errorf(ErrInvalid, qp.op(what), "it is in %v and must be in %s first", qp.state, want)}
}

// queuePosted is queueSend for requests of PostSend and PostSendAll. It rejects binds of windows of
// type 1, for which the application must use QP.BindMW.
func (qp *QP) queuePosted(wr *SendWR) error {
	if wr != nil && wr.bindsType1() {
		return Errorf(ErrInvalid, qp.op("post send to"), "the MW is of type 1: use BindMW")
	}
	return qp.queueSend(wr)
}

// bindsType1 reports whether a request binds a window of type 1.
func (wr *SendWR) bindsType1() bool {
	return wr.Opcode == BindMW && wr.Bind != nil && wr.Bind.MW != nil && wr.Bind.MW.typ == MWType1
}

// queueSend checks a request and copies it to the end of the send queue.
func (qp *QP) queueSend(wr *SendWR) error {
	const what = "post send to"
	if wr == nil {
		return Errorf(ErrInvalid, qp.op(what), "the work request is nil")
	}
	q, posted := &qp.sq, qp.sq.len()
	held := 0
	if qp.observed != 0 {
		posted, held = qp.posted(), qp.heldSends()
	}
	if posted+held >= len(q.slots) {
		return Errorf(ErrQueueFull, qp.op(what), "its MaxSendWR of %d requests are already posted", len(q.slots))
	}
	length, err := qp.checkSend(wr)
	if err != nil {
		return err
	}
	var bind *MWBind
	if wr.Opcode == BindMW {
		if bind, err = qp.checkBind(wr); err != nil {
			return err
		}
	}
	slot := q.at(posted)
	if wr.Flags&SendInline != 0 {
		data := slot.InlineData[:length]
		if wr.InlineData != nil {
			copy(data, wr.InlineData)
		} else if err := qp.gather(data, wr.SGList); err != nil {
			return err
		}
		slot.SGList, slot.InlineData = slot.SGList[:0], data
	} else {
		slot.SGList = slot.SGList[:len(wr.SGList)]
		copy(slot.SGList, wr.SGList)
	}
	slot.WRID, slot.Opcode, slot.Flags = wr.WRID, wr.Opcode, wr.Flags
	slot.ImmData, slot.InvalidateRKey = wr.ImmData, wr.InvalidateRKey
	slot.RemoteAddr, slot.RKey = wr.RemoteAddr, wr.RKey
	slot.CompareAdd, slot.Swap = wr.CompareAdd, wr.Swap
	slot.FlushLength, slot.FlushType, slot.FlushLevel = wr.FlushLength, wr.FlushType, wr.FlushLevel
	slot.RemoteSRQN = wr.RemoteSRQN
	slot.AH, slot.RemoteQPN, slot.RemoteQKey = wr.AH, wr.RemoteQPN, wr.RemoteQKey
	slot.Bind = bind
	slot.length = length
	slot.fault = qp.fault(wr, length)
	if qp.observed == 0 {
		q.n++
	} else if err := qp.postObserved(slot); err != nil {
		return err
	}
	if bind != nil {
		bind.MW.rkey.Store(bind.RKey)
	}
	return nil
}

// postObserved adds a request to the send queue, or hides it.
func (qp *QP) postObserved(slot *SendWR) error {
	if qp.observed&faulted != 0 && !slot.bindsType1() { // BindMW is a call of its own
		if err := qp.faultCall("post_send"); err != nil {
			return err
		}
	}
	if qp.observed&measured != 0 {
		qp.extra.latency.post(qp.pd.dev.clock, qp.posted())
	}
	if qp.observed&sendsHidden != 0 || qp.observed&backed != 0 && qp.hides(slot) {
		qp.hide()
	} else {
		qp.sq.n++
	}
	return nil
}

// injectSends is called when the last n requests of the send queue are about to start.
func (qp *QP) injectSends(n int) {
	x := qp.pd.dev.injection.Load()
	for i := qp.posted() - n; i < qp.posted(); i++ {
		slot := qp.sq.at(i)
		fails := slot.fault != WCSuccess || qp.state != StateRTS && qp.state != StateSQD
		slot.injected = x.injector.Send(qp, slot, fails)
		if fails {
			slot.injected = WCSuccess
		} else if slot.injected != WCSuccess {
			slot.fault = slot.injected
		}
	}
}

// checkSend checks everything but the keys of a request, and returns its length.
func (qp *QP) checkSend(wr *SendWR) (length uint64, err error) {
	const what = "post send to"
	for i := range wr.SGList {
		length += uint64(wr.SGList[i].Length) // cannot overflow: at most MaxSGE values of 32 bits
	}
	if wr.InlineData != nil {
		length = uint64(len(wr.InlineData))
	}
	limits := &qp.init.Cap
	switch op := wr.Opcode; {
	case int(op) >= len(wrOpcodes):
		return 0, Errorf(ErrInvalid, qp.op(what), "%v", op)
	case !qp.ops.has(op) && !lateErrorOps(qp.init.Type).has(op):
		return 0, Errorf(ErrNotSupported, qp.op(what), "Opcode %v is not for %v QPs of this device", op, qp.init.Type)
	case wr.Flags&^sendFlagsKnown != 0:
		return 0, Errorf(ErrInvalid, qp.op(what), "Flags %v has unknown bits", wr.Flags)
	case len(wr.SGList) > int(limits.MaxSendSGE):
		return 0, Errorf(ErrInvalid, qp.op(what), "SGList of %d is longer than MaxSendSGE of %d", len(wr.SGList),
			limits.MaxSendSGE)
	case op == RDMARead && len(wr.SGList) > qp.pd.dev.attr.MaxSGERd:
		return 0, Errorf(ErrInvalid, qp.op(what), "RDMA_READ SGList of %d is longer than MaxSGERd of %d", len(wr.SGList),
			qp.pd.dev.attr.MaxSGERd)
	case qp.init.Type == XRCSend && wr.RemoteSRQN >= 1<<24:
		return 0, Errorf(ErrInvalid, qp.op(what), "RemoteSRQN %#x has more than 24 bits", wr.RemoteSRQN)
	case qp.init.Type == UD:
		if err := qp.checkDatagram(wr); err != nil {
			return 0, err
		}
	case length > uint64(qp.maxMsg):
		return 0, Errorf(ErrInvalid, qp.op(what), "length %d is more than the port's MaxMsgSz of %d", length, qp.maxMsg)
	}
	switch {
	case wr.Opcode == Flush:
		if err := qp.checkFlush(wr); err != nil {
			return 0, err
		}
	case wr.Opcode == AtomicWrite && length != 8:
		return 0, Errorf(ErrInvalid, qp.op(what), "ATOMIC_WRITE of %d bytes: it needs 8", length)
	}
	switch {
	case wr.InlineData != nil && (wr.Flags&SendInline == 0 || len(wr.SGList) > 0):
		return 0, Errorf(ErrInvalid, qp.op(what), "InlineData has %d bytes, Flags is %v and SGList has %d entries: "+
			"InlineData needs SendInline and an empty SGList", len(wr.InlineData), wr.Flags, len(wr.SGList))
	case localOps.has(wr.Opcode) && len(wr.SGList) > 0:
		return 0, Errorf(ErrInvalid, qp.op(what), "%v has no SGList", wr.Opcode)
	case wr.Flags&SendInline == 0:
	case !inlineOps.has(wr.Opcode):
		return 0, Errorf(ErrInvalid, qp.op(what), "%v has no inline data", wr.Opcode)
	case length > uint64(limits.MaxInlineData):
		return 0, Errorf(ErrInvalid, qp.op(what), "inline length %d is more than MaxInlineData of %d", length,
			limits.MaxInlineData)
	}
	return length, nil
}

// checkDatagram checks the fields that only a UD QP's request uses.
func (qp *QP) checkDatagram(wr *SendWR) error {
	const what = "post send to"
	switch {
	case wr.AH == nil:
		return Errorf(ErrInvalid, qp.op(what), "AH is nil: a UD QP's request needs an address handle")
	case wr.AH.dead.Load():
		return Errorf(ErrClosed, qp.op(what), "the AH is closed")
	case wr.AH.pd.dev != qp.pd.dev:
		return Errorf(ErrInvalid, qp.op(what), "the AH is of another device")
	case wr.AH.attr.PortNum != qp.attr.PortNum:
		return Errorf(ErrInvalid, qp.op(what), "the AH is of port %d, but the QP is on port %d", wr.AH.attr.PortNum, qp.attr.PortNum)
	case wr.RemoteQPN >= 1<<24:
		return Errorf(ErrInvalid, qp.op(what), "RemoteQPN %#x has more than 24 bits", wr.RemoteQPN)
	}
	return nil
}

// fault returns the status with which a request fails when it is executed. Devices detect these
// errors only then, after they have executed the earlier requests.
func (qp *QP) fault(wr *SendWR, length uint64) WCStatus {
	switch {
	case !qp.ops.has(wr.Opcode):
		return WCLocQPOpErr
	case atomicOps.has(wr.Opcode) && length != 8:
		return WCLocLenErr
	case qp.init.Type != UD:
	case wr.AH.pd != qp.pd: // IBTA C10-10
		return WCLocQPOpErr
	case length > uint64(qp.maxMsg):
		return WCLocLenErr
	}
	return WCSuccess
}

// gather copies the data of a scatter/gather list, for SendInline. The QP caches the region of the
// last lookup until it is deregistered, so that repeated posting takes no shared lock.
func (qp *QP) gather(data []byte, list []SGE) error {
	for i := range list {
		e := &list[i]
		if e.Length == 0 {
			continue
		}
		mr := qp.inlineMR
		if mr == nil || mr.LKey() != e.LKey {
			if mr = qp.pd.lookup(e.LKey); mr == nil {
				return Errorf(ErrInvalid, qp.op("post send to"), "inline SGE %d: the PD has no lkey %#x", i, e.LKey)
			}
			qp.inlineMR = mr
		}
		if mr.kind == mrNull {
			clear(data[:e.Length])
			data = data[e.Length:]
			continue
		}
		if mr.kind == mrBackend {
			return Errorf(ErrInvalid, qp.op("post send to"), "inline SGE %d: the region has a Backend, which SendInline cannot read", i)
		}
		b, ok := mr.Bytes(e.Addr, uint64(e.Length))
		if !ok {
			return Errorf(ErrInvalid, qp.op("post send to"),
				"inline SGE %d: address %#x and length %d are not within the region of %d bytes at %#x", i, e.Addr,
				e.Length, mr.Length(), mr.Addr())
		}
		to := data[:len(b)]
		if !(*RegisteredMR)(mr).BeginAccess() {
			copy(to, b)
		} else if !copyGuarded(to, b) {
			return Errorf(ErrInvalid, qp.op("post send to"), "inline SGE %d: the memory at %#x faults", i, e.Addr)
		}
		data = data[len(b):]
	}
	return nil
}

// copyGuarded returns false if reading src faults.
func copyGuarded(dst, src []byte) (ok bool) {
	defer EndGuard(BeginGuard(), &ok, src)
	copy(dst, src)
	return true
}

func (qp *QP) queueRecv(wr *RecvWR) error {
	if qp.observed&faulted != 0 {
		return qp.queueRecvFaulted(wr)
	}
	return qp.copyRecv(wr)
}

// copyRecv copies a request to the end of the receive queue.
func (qp *QP) copyRecv(wr *RecvWR) error {
	if detail, kind := postRecv(&qp.rq, wr); kind != nil {
		return Errorf(kind, qp.op("post receive to"), "%s", detail)
	}
	return nil
}

// queueRecvFaulted is queueRecv for a QP of a device with an Injector.
func (qp *QP) queueRecvFaulted(wr *RecvWR) error {
	if err := qp.copyRecv(wr); err != nil {
		return err
	}
	qp.injectRecv(qp.rq.at(qp.rq.len() - 1))
	return nil
}

// BindMW posts a work request that binds a window of type 1 (ibv_bind_mw), with the given WRID and
// flags. It completes to the send CQ. MW.RKey returns the new key immediately. A bind of Length 0
// unbinds the window.
func (qp *QP) BindMW(mw *MW, wrID uint64, flags SendFlags, info MWBindInfo) error {
	if err := qp.faultCall("bind_mw"); err != nil {
		return err
	}
	const what = "bind MW with"
	if mw == nil || mw.typ != MWType1 {
		return Errorf(ErrInvalid, qp.op(what), "the MW is nil or not of type 1: post a BindMW work request for type 2")
	}
	qp.lock()
	defer qp.unlock()
	wr := SendWR{WRID: wrID, Opcode: BindMW, Flags: flags, Bind: &MWBind{MW: mw, RKey: IncRKey(mw.RKey()), MWBindInfo: info}}
	return qp.post(&wr)
}

// checkFlush checks the fields that only a Flush request uses.
func (qp *QP) checkFlush(wr *SendWR) error {
	const what = "post send to"
	switch {
	case len(wr.SGList) > 0:
		return Errorf(ErrInvalid, qp.op(what), "FLUSH has no SGList")
	case wr.FlushType == 0 || wr.FlushType&^(FlushGlobal|FlushPersistent) != 0:
		return Errorf(ErrInvalid, qp.op(what), "FlushType %v is not GLOBAL, PERSISTENT or both", wr.FlushType)
	case wr.FlushLevel > FlushMR:
		return Errorf(ErrInvalid, qp.op(what), "FlushLevel %v", wr.FlushLevel)
	}
	return nil
}
