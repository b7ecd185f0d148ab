package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// QP is a queue pair (ibv_qp). Any number of goroutines may use it; work requests keep the order in which they took
// its lock.
type QP struct {
	// What a peer in the same process touches for each message shares a cache line: mu to the beginning of rq.
	mu        sync.Mutex
	state     QPState
	destroyed bool
	draining  bool // in SQD, with send requests under way
	lost      bool // a completion found its CQ full; see settle
	num       uint32
	rq        queue[RecvWR]
	sq        queue[SendWR]
	order     uint64 // in which two QPs' locks are taken
	pd        *PD
	xrcd      *XRCD        // of an XRC_RECV QP
	opens     atomic.Int32 // of the same: handles to it
	ops       opcodeSet
	srq       *SRQ // where receive requests come from; of an XRC_RECV QP, those of the present message
	prov      ProviderQP
	maxMsg    uint64 // bytes, of the port
	inlineMR  *MR    // where inline data came from last
	attr      QPAttr
	init      qpInit

	modifying sync.Mutex    // one Modify, AttachMcast, DetachMcast or Destroy at a time; taken before mu
	groups    map[GID]uint8 // attached to, and on which port; guarded by modifying
	flows     int           // of it; guarded by modifying
}

// qpInit is QPInitAttr in less memory: there may be very many idle QPs.
type qpInit struct {
	Context          any
	SendCQ           *CQ
	RecvCQ           *CQ
	SRQ              *SRQ
	Cap              qpCap
	Type             QPType
	Transport        Transport
	SQSigAll         bool
	BlockSelfMcastLB bool
}

type qpCap struct{ MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32 }

func (a *QPInitAttr) pack() qpInit {
	c := &a.Cap
	return qpInit{a.Context, a.SendCQ, a.RecvCQ, a.SRQ,
		qpCap{uint32(c.MaxSendWR), uint32(c.MaxRecvWR), uint32(c.MaxSendSGE), uint32(c.MaxRecvSGE), uint32(c.MaxInlineData)},
		a.Type, a.Transport, a.SQSigAll, a.BlockSelfMcastLB}
}

func (i *qpInit) unpack() QPInitAttr {
	c := &i.Cap
	return QPInitAttr{Context: i.Context, Type: i.Type, Transport: i.Transport, SendCQ: i.SendCQ, RecvCQ: i.RecvCQ, SRQ: i.SRQ,
		Cap:      QPCap{int(c.MaxSendWR), int(c.MaxRecvWR), int(c.MaxSendSGE), int(c.MaxRecvSGE), int(c.MaxInlineData)},
		SQSigAll: i.SQSigAll, BlockSelfMcastLB: i.BlockSelfMcastLB}
}

// created counts the QPs of this process.
var created atomic.Uint64

// CreateQP makes a QP in state RESET. Its queues have exactly the sizes asked for.
func (pd *PD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create QP"
	if attr != nil && attr.Type == XRCRecv {
		return nil, Errorf(ErrInvalid, op, "XRC_RECV QPs are made by XRCD.CreateQP")
	}
	if err := pd.checkInit(op, attr); err != nil {
		return nil, err
	}
	return pd.createQP(op, attr, nil)
}

func (pd *PD) createQP(op string, attr *QPInitAttr, x *XRCD) (*QP, error) {
	if err := pd.acquireQP(op, attr); err != nil {
		return nil, err
	}
	c := attr.Cap
	qp := &QP{pd: pd, xrcd: x, srq: attr.SRQ, order: created.Add(1), init: attr.pack(), ops: sendOps(attr.Type, attr.Transport, &pd.dev.attr),
		sq: newSendQueue(&c), rq: newRecvQueue(c.MaxRecvWR, c.MaxRecvSGE)}
	if s := attr.SRQ; s != nil {
		qp.init.Cap.MaxRecvWR, qp.init.Cap.MaxRecvSGE = 0, 0
		qp.rq = newRecvQueue(1, s.maxSGE) // for the one that is being filled
	}
	qp.opens.Store(1)
	if x != nil {
		qp.rq = newRecvQueue(1, 0)
	}
	// In the set before the provider can use it, so that no deregistration overlooks it.
	pd.qpsMu.Lock()
	pd.qps[qp] = struct{}{}
	pd.qpsMu.Unlock()
	init := qp.init.unpack()
	prov, num, err := pd.dev.prov.CreateQP(QPHandle{qp}, &init)
	if err != nil {
		qp.release()
		return nil, wrap(op, err)
	}
	qp.mu.Lock()
	qp.prov, qp.num = prov, num
	qp.mu.Unlock()
	return qp, nil
}

func (pd *PD) checkInit(op string, attr *QPInitAttr) error {
	d := pd.dev
	if attr == nil {
		return Errorf(ErrInvalid, op, "no attributes")
	}
	if _, ok := stateTable[attr.Type]; !ok || attr.Transport == IWARP && attr.Type != RC {
		return Errorf(ErrNotSupported, op, "Type %v is not supported over %v", attr.Type, attr.Transport)
	}
	if attr.BlockSelfMcastLB && attr.Type != UD {
		return Errorf(ErrInvalid, op, "BlockSelfMcastLB is for UD QPs, Type is %v", attr.Type)
	}
	if err := pd.checkXRC(op, attr); err != nil {
		return err
	}
	if attr.SendCQ == nil || attr.RecvCQ == nil && attr.Type != XRCSend {
		return Errorf(ErrInvalid, op, "SendCQ and RecvCQ must be set")
	}
	if attr.SendCQ.dev != d || attr.RecvCQ != nil && attr.RecvCQ.dev != d {
		return Errorf(ErrInvalid, op, "a CQ is of another device than the PD")
	}
	if attr.SRQ != nil && attr.SRQ.pd != pd {
		return Errorf(ErrInvalid, op, "the SRQ is of another PD")
	}
	for _, c := range []struct {
		arg    string
		v, max int
	}{
		{"Cap.MaxSendWR", attr.Cap.MaxSendWR, d.attr.MaxQPWR},
		{"Cap.MaxRecvWR", attr.Cap.MaxRecvWR, d.attr.MaxQPWR},
		{"Cap.MaxSendSGE", attr.Cap.MaxSendSGE, d.attr.MaxSGE},
		{"Cap.MaxRecvSGE", attr.Cap.MaxRecvSGE, d.attr.MaxSGE},
		{"Cap.MaxInlineData", attr.Cap.MaxInlineData, d.attr.MaxInlineData},
	} {
		if err := checkRange(op, c.arg, c.v, 0, c.max); err != nil {
			return err
		}
	}
	return nil
}

// acquireQP counts a new QP where it belongs, if all that it needs is alive.
func (pd *PD) acquireQP(op string, attr *QPInitAttr) error {
	d := pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if pd.dead {
		return Errorf(ErrDestroyed, op, "the PD is gone")
	}
	if attr.SendCQ != nil && attr.SendCQ.dead || attr.RecvCQ != nil && attr.RecvCQ.dead {
		return Errorf(ErrDestroyed, op, "a CQ is destroyed")
	}
	if attr.SRQ != nil && attr.SRQ.dead {
		return Errorf(ErrDestroyed, op, "the SRQ is destroyed")
	}
	if err := d.reserve(op, &d.qps, d.attr.MaxQP, "MaxQP"); err != nil {
		return err
	}
	if attr.SRQ != nil {
		attr.SRQ.users++
	}
	pd.nqps++
	for _, cq := range [...]*CQ{attr.SendCQ, attr.RecvCQ} {
		if cq != nil {
			cq.users++
		}
	}
	return nil
}

// release undoes acquireQP and leaves the PD's set.
func (qp *QP) release() {
	pd := qp.pd
	pd.qpsMu.Lock()
	delete(pd.qps, qp)
	pd.qpsMu.Unlock()
	d := pd.dev
	d.mu.Lock()
	d.qps--
	pd.nqps--
	if qp.init.SRQ != nil {
		qp.init.SRQ.users--
	}
	for _, cq := range [...]*CQ{qp.init.SendCQ, qp.init.RecvCQ} {
		if cq != nil {
			cq.users--
		}
	}
	d.mu.Unlock()
}

// Num is the QP number, 24 bits.
func (qp *QP) Num() uint32 { return qp.num }

// PD is the protection domain; nil of XRC_RECV QPs.
func (qp *QP) PD() *PD {
	if qp.xrcd != nil {
		return nil
	}
	return qp.pd
}

// Context is what CreateQP was given.
func (qp *QP) Context() any { return qp.init.Context }

// Type is the transport service.
func (qp *QP) Type() QPType { return qp.init.Type }

// Transport is the wire protocol.
func (qp *QP) Transport() Transport { return qp.init.Transport }

// SendCQ is where send work requests complete.
func (qp *QP) SendCQ() *CQ { return qp.init.SendCQ }

// RecvCQ is where receive work requests complete.
func (qp *QP) RecvCQ() *CQ { return qp.init.RecvCQ }

// SRQ is where receive work requests come from, or nil.
func (qp *QP) SRQ() *SRQ { return qp.init.SRQ }

// State is the present state.
func (qp *QP) State() QPState {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	return qp.state
}

// Query returns the QP's attributes and what it was created with. mask says which are wanted; all are filled in.
func (qp *QP) Query(QPAttrMask) (QPAttr, QPInitAttr, error) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if err := qp.alive("query"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	attr := qp.attr
	qp.prov.Query(&attr)
	init := qp.init.unpack()
	attr.QPState, attr.CurQPState, attr.Cap = qp.state, qp.state, init.Cap
	attr.SQDraining = qp.draining && qp.state == StateSQD // an error may have ended it
	return attr, init, nil
}

// Destroy ends the QP. Work requests still posted vanish without completion; completions already in a CQ stay. ErrBusy
// while it is attached to a multicast group or has a flow.
func (qp *QP) Destroy() error {
	if qp.xrcd != nil && qp.opens.Add(-1) > 0 {
		return nil
	}
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	if n := len(qp.groups); n > 0 {
		return Errorf(ErrBusy, qp.op("destroy"), "it is attached to %d multicast groups", n)
	}
	if qp.flows > 0 {
		return Errorf(ErrBusy, qp.op("destroy"), "it has %d flows", qp.flows)
	}
	qp.mu.Lock()
	if err := qp.alive("destroy"); err != nil {
		qp.mu.Unlock()
		return err
	}
	qp.prov.Destroy()
	qp.destroyed = true
	qp.inlineMR = nil
	qp.mu.Unlock()
	qp.pd.dev.events.forget(func(e *AsyncEvent) bool { return e.QP == qp })
	qp.release()
	return nil
}

// op names the QP in an error.
func (qp *QP) op(what string) string { return fmt.Sprintf("%s QP %#x", what, qp.num) }

func (qp *QP) alive(what string) error {
	if qp.destroyed {
		return Errorf(ErrDestroyed, qp.op(what), "it is destroyed")
	}
	return nil
}
