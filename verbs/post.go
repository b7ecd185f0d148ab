package verbs

// PostSend queues send work requests, in order, and starts them. They are copied: the caller may reuse them and their
// lists at once. In state ERR they are flushed at once; before RTS they are refused.
//
// The first one that is refused ends the call with a *PostError: ErrQueueFull, ErrInvalid, ErrNotSupported for an
// opcode the QP cannot do, ErrDestroyed. The lkeys and ranges of a scatter/gather list are checked only when the
// request is carried out, except with SendInline, whose data is copied here.
func (qp *QP) PostSend(wrs ...*SendWR) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.destroyed || qp.state != StateRTS && qp.state != StateErr {
		return qp.refuse("post send to", "RTS", len(wrs))
	}
	var err error
	for i, wr := range wrs {
		if e := qp.queueSend(wr); e != nil {
			err = &PostError{i, e}
			wrs = wrs[:i]
			break
		}
	}
	switch {
	case len(wrs) == 0:
	case qp.state == StateErr:
		qp.flush()
	default:
		qp.prov.PostSend()
	}
	return err
}

// PostRecv queues receive work requests, in order; they are copied. In state ERR they are flushed at once; in RESET
// they are refused. Errors are as for PostSend.
func (qp *QP) PostRecv(wrs ...*RecvWR) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.destroyed || qp.state == StateReset {
		return qp.refuse("post receive to", "INIT", len(wrs))
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
	case len(wrs) == 0:
	case qp.state == StateErr:
		qp.flush()
	default:
		qp.prov.PostRecv()
	}
	return err
}

// refuse is the error of posting n requests in a state that takes none.
func (qp *QP) refuse(what, want string, n int) error {
	if err := qp.alive(what); err != nil {
		return &PostError{0, err}
	}
	if n == 0 {
		return nil
	}
	return &PostError{0, Errorf(ErrInvalid, qp.op(what), "it is in %v, not yet in %s", qp.state, want)}
}

func (qp *QP) queueSend(wr *SendWR) error {
	const what = "post send to"
	if wr == nil {
		return Errorf(ErrInvalid, qp.op(what), "the work request is nil")
	}
	q := &qp.sq
	if q.full() {
		return Errorf(ErrQueueFull, qp.op(what), "MaxSendWR of %d are posted", len(q.slots))
	}
	length, err := qp.checkSend(wr)
	if err != nil {
		return err
	}
	i := q.index(q.n)
	slot := &q.slots[i]
	if wr.Flags&SendInline != 0 {
		data := q.inlineRoom(i, length)
		if err := qp.gather(data, wr.SGList); err != nil {
			return err
		}
		slot.SGList, slot.inline = nil, data
	} else {
		slot.SGList, slot.inline = q.room(i, len(wr.SGList)), nil
		copy(slot.SGList, wr.SGList)
	}
	slot.ID, slot.Opcode, slot.Flags = wr.ID, wr.Opcode, wr.Flags
	slot.ImmData, slot.InvalidateRKey = wr.ImmData, wr.InvalidateRKey
	slot.RemoteAddr, slot.RKey = wr.RemoteAddr, wr.RKey
	slot.CompareAdd, slot.Swap = wr.CompareAdd, wr.Swap
	slot.length = length
	q.n++
	return nil
}

// checkSend checks all but the keys of a request, and returns its length.
func (qp *QP) checkSend(wr *SendWR) (length uint64, err error) {
	const what = "post send to"
	for i := range wr.SGList {
		length += uint64(wr.SGList[i].Length) // at most MaxSGE of 32 bits each
	}
	switch op, limits := wr.Opcode, &qp.init.Cap; {
	case int(op) >= len(wrOpcodes):
		return 0, Errorf(ErrInvalid, qp.op(what), "%v", op)
	case !qp.ops.has(op):
		return 0, Errorf(ErrNotSupported, qp.op(what), "Opcode %v is not for %v QPs of this device", op, qp.init.Type)
	case wr.Flags&^sendFlagsKnown != 0:
		return 0, Errorf(ErrInvalid, qp.op(what), "Flags %v has unknown bits", wr.Flags)
	case len(wr.SGList) > limits.MaxSendSGE:
		return 0, Errorf(ErrInvalid, qp.op(what), "SGList of %d is longer than MaxSendSGE of %d", len(wr.SGList),
			limits.MaxSendSGE)
	case op == RDMARead && len(wr.SGList) > qp.pd.dev.attr.MaxSGERd:
		return 0, Errorf(ErrInvalid, qp.op(what), "RDMA_READ SGList of %d is longer than MaxSGERd of %d", len(wr.SGList),
			qp.pd.dev.attr.MaxSGERd)
	case atomicOps.has(op) && (len(wr.SGList) != 1 || length != 8):
		return 0, Errorf(ErrInvalid, qp.op(what), "%v SGList has %d entries of %d bytes: it needs 1 of 8", op,
			len(wr.SGList), length)
	case length > qp.maxMsg:
		return 0, Errorf(ErrInvalid, qp.op(what), "length %d is more than the port's MaxMsgSz of %d", length, qp.maxMsg)
	case wr.Flags&SendInline == 0:
	case !inlineOps.has(op):
		return 0, Errorf(ErrInvalid, qp.op(what), "%v has no inline data", op)
	case length > uint64(limits.MaxInlineData):
		return 0, Errorf(ErrInvalid, qp.op(what), "inline length %d is more than MaxInlineData of %d", length,
			limits.MaxInlineData)
	}
	return length, nil
}

// gather copies inline data. The QP remembers the region it found last, until Dereg makes it forget, so that steady
// posting takes no lock that other QPs take.
func (qp *QP) gather(data []byte, list []SGE) error {
	for i := range list {
		e := &list[i]
		if e.Length == 0 {
			continue
		}
		mr := qp.inlineMR
		if mr == nil || mr.lkey != e.LKey {
			if mr = qp.pd.lookup(e.LKey); mr == nil {
				return Errorf(ErrInvalid, qp.op("post send to"), "inline SGE %d: the PD has no lkey %#x", i, e.LKey)
			}
			qp.inlineMR = mr
		}
		b, ok := mr.Bytes(e.Addr, uint64(e.Length))
		if !ok {
			return Errorf(ErrInvalid, qp.op("post send to"),
				"inline SGE %d: address %#x and length %d are not within the region at %#x of %d bytes", i, e.Addr,
				e.Length, mr.addr, len(mr.buf))
		}
		data = data[copy(data, b):]
	}
	return nil
}

func (qp *QP) queueRecv(wr *RecvWR) error {
	const what = "post receive to"
	if wr == nil {
		return Errorf(ErrInvalid, qp.op(what), "the work request is nil")
	}
	q := &qp.rq
	if q.full() {
		return Errorf(ErrQueueFull, qp.op(what), "MaxRecvWR of %d are posted", len(q.slots))
	}
	if n := len(wr.SGList); n > q.maxSGE {
		return Errorf(ErrInvalid, qp.op(what), "SGList of %d is longer than MaxRecvSGE of %d", n, q.maxSGE)
	}
	i := q.index(q.n)
	slot := &q.slots[i]
	slot.ID, slot.length = wr.ID, 0
	slot.SGList = q.room(i, len(wr.SGList))
	copy(slot.SGList, wr.SGList)
	for i := range slot.SGList {
		slot.length += uint64(slot.SGList[i].Length)
	}
	q.n++
	return nil
}
