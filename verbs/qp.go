package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// QP is a queue pair (ibv_qp). Any number of goroutines may use it concurrently.
type QP struct {
	// The fields from mu to the start of rq share a cache line: a peer in the same process uses
	// them for each message.
	mu          sync.Mutex
	state       QPState
	closed      bool
	draining    bool // in SQD, with send requests in flight
	cqOverrun   bool // a completion did not fit into its CQ: see failOverrun
	reportFlags reportFlags
	observed    observed
	ops         opcodeSet
	num         uint32
	waiting     atomic.Int32 // goroutines that wait for mu
	rq          queue[RecvWR]
	sq          queue[SendWR]
	lockOrder   uint64 // the order in which the locks of two QPs are taken
	pd          *PD
	xrcd        *XRCD        // of an XRC_RECV QP, else nil
	handleCount atomic.Int32 // handles that CreateQP and OpenQP have returned
	maxMsg      uint32       // maximum message length in bytes
	// The source of receive requests; of an XRC_RECV QP, that of the current message.
	srq      *SRQ
	prov     ProviderQP
	inlineMR *MR      // caches the region of the last inline data
	extra    *qpExtra // nil while it would be empty
	attr     QPAttr
	init     qpInit

	// Held by Modify, AttachMcast, DetachMcast, CreateFlow and Close; taken before mu.
	modifying sync.Mutex
	groups    map[GID]uint8 // the ports of the attached multicast groups; protected by modifying
	flows     int32         // protected by modifying

	events eventCounts // asynchronous events
}

// reportFlags control the calls of OnEvent functions in unlock.
type reportFlags uint8

const (
	reportsPending  reportFlags = 1 << iota // extra.unreported has channels
	reportsDeferred                         // the caller holds locks that an OnEvent function may take
)

// observed says why requests are not just posted and completed. It is 0 for most QPs, so that the
// fast path has one comparison for all reasons.
type observed uint8

const (
	measured    observed = 1 << iota // extra.latency is set
	counted                          // extra.compCntrs has counters
	faulted                          // the device has an Injector
	backed                           // the PD has, or had, a region with a Backend
	placingData                      // completions wait for data in a Backend: see placing.go
	sendsHidden                      // send requests wait for data of a Backend: see staging.go
)

// qpExtra has fields that few QPs need.
type qpExtra struct {
	unreported []*CompChannel // channels whose functions unlock calls
	latency    *latency
	compCntrs  [numCompCntrOps]*CompCntr // by operation
	countedOps CompCntrOps               // those that have counters
	attached   []*CompCntr               // one for each call of AttachCompCntr
	placing    *placing
	staging    *sendStaging
	ring       *recvRing // or nil
	sink       sink
}

// qpInit is a smaller QPInitAttr, because a program may have a great many QPs.
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

// qpsCreated counts the QPs that this process has created.
var qpsCreated atomic.Uint64

// CreateQP creates a QP in state RESET (ibv_create_qp). Its queues have exactly the sizes of
// attr.Cap, except that MaxInlineData may be larger: Query returns it.
func (pd *PD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create QP"
	if attr != nil && attr.Type == XRCRecv {
		return nil, Errorf(ErrInvalid, op, "Type is XRC_RECV: create it with XRCD.CreateQP")
	}
	if err := pd.checkInit(op, attr); err != nil {
		return nil, err
	}
	return pd.createQP(op, attr, nil)
}

func (pd *PD) createQP(op string, attr *QPInitAttr, x *XRCD) (*QP, error) {
	if err := pd.dev.fault("create_qp"); err != nil {
		return nil, err
	}
	if err := pd.acquireQP(op, attr); err != nil {
		return nil, err
	}
	c := attr.Cap
	c.MaxInlineData = max(c.MaxInlineData, min(c.MaxSendSGE*sgeLen, pd.dev.attr.MaxInlineData))
	qp := &QP{pd: pd, xrcd: x, srq: attr.SRQ, lockOrder: qpsCreated.Add(1), init: attr.pack(),
		ops: sendOps(attr.Type, attr.Transport, &pd.dev.attr),
		sq:  newSendQueue(&c), rq: newRecvQueue(c.MaxRecvWR, c.MaxRecvSGE)}
	qp.init.Cap.MaxInlineData = uint32(c.MaxInlineData)
	if s := attr.SRQ; s != nil {
		qp.init.Cap.MaxRecvWR, qp.init.Cap.MaxRecvSGE = 0, 0
		qp.rq = newRecvQueue(1, s.maxSGE) // for the request of the current message
	}
	qp.handleCount.Store(1)
	qp.measureLatency()
	if x != nil {
		qp.rq = newRecvQueue(1, 0)
	}
	// The QP is in the set before the provider can use it, so that quiesce does not miss it.
	pd.qpsMu.Lock()
	pd.qps[qp] = struct{}{}
	if pd.dev.injection.Load() != nil { // otherwise Inject finds the QP
		qp.observed |= faulted
	}
	if pd.backed { // otherwise useBackends finds the QP
		qp.observed |= backed
	}
	pd.qpsMu.Unlock()
	if s := attr.SRQ; s != nil && s.pd != pd {
		s.pd.addForeignQP(qp)
	}
	init := qp.init.unpack()
	prov, num, err := pd.dev.prov.CreateQP(QPHandle{qp}, &init)
	if err != nil {
		qp.release()
		return nil, wrap(op, err)
	}
	qp.lock()
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
	if attr.SRQ != nil && attr.SRQ.pd.dev != d {
		return Errorf(ErrInvalid, op, "the SRQ is of another device than the PD")
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

// acquireQP counts a new QP as a user of its PD, CQs and SRQ. It fails if one of them is closed.
func (pd *PD) acquireQP(op string, attr *QPInitAttr) error {
	d := pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if pd.dead {
		return Errorf(ErrClosed, op, "the PD is closed")
	}
	for _, cq := range [...]*CQ{attr.SendCQ, attr.RecvCQ} {
		if cq != nil && cq.dead {
			return Errorf(ErrClosed, op, "a CQ is closed")
		}
	}
	if attr.SRQ != nil && attr.SRQ.dead {
		return Errorf(ErrClosed, op, "the SRQ is closed")
	}
	if err := d.reserve(op, &d.qps, d.attr.MaxQP, "MaxQP"); err != nil {
		return err
	}
	if attr.SRQ != nil {
		attr.SRQ.users++
	}
	pd.nqps++
	pd.qpsOf[attr.Transport].Add(1)
	for _, cq := range [...]*CQ{attr.SendCQ, attr.RecvCQ} {
		if cq != nil {
			cq.users++
		}
	}
	return nil
}

// release undoes acquireQP and removes the QP from the PD's set.
func (qp *QP) release() {
	pd := qp.pd
	d := pd.dev
	d.latencyMu.Lock()
	pd.qpsMu.Lock()
	delete(pd.qps, qp)
	pd.qpsMu.Unlock()
	d.keepLatency(qp)
	d.latencyMu.Unlock()
	if s := qp.init.SRQ; s != nil && s.pd != pd {
		s.pd.removeForeignQP(qp)
	}
	d.mu.Lock()
	d.qps--
	pd.nqps--
	pd.qpsOf[qp.init.Transport].Add(-1)
	if qp.init.SRQ != nil {
		qp.init.SRQ.users--
	}
	for _, cq := range [...]*CQ{qp.init.SendCQ, qp.init.RecvCQ} {
		if cq != nil {
			cq.users--
		}
	}
	qp.detachCompCntrs()
	d.mu.Unlock()
}

// Num returns the QP number, 24 bits.
func (qp *QP) Num() uint32 { return qp.num }

// PD returns the protection domain; nil for an XRC_RECV QP.
func (qp *QP) PD() *PD {
	if qp.xrcd != nil {
		return nil
	}
	return qp.pd
}

// Device returns the QP's device.
func (qp *QP) Device() *Device {
	if qp.xrcd != nil {
		return qp.xrcd.dev
	}
	return qp.pd.dev
}

// Context returns the Context that the QP was created with.
func (qp *QP) Context() any { return qp.init.Context }

// Type returns the transport service.
func (qp *QP) Type() QPType { return qp.init.Type }

// Transport returns the wire protocol.
func (qp *QP) Transport() Transport { return qp.init.Transport }

// SendCQ returns the CQ of send work requests.
func (qp *QP) SendCQ() *CQ { return qp.init.SendCQ }

// RecvCQ returns the CQ of receive work requests.
func (qp *QP) RecvCQ() *CQ { return qp.init.RecvCQ }

// SRQ returns the SRQ that the QP was created with, or nil.
func (qp *QP) SRQ() *SRQ { return qp.init.SRQ }

// lock locks the QP. A goroutine that has to wait is counted in waiting.
func (qp *QP) lock() {
	if !qp.mu.TryLock() {
		qp.lockSlow()
	}
}

func (qp *QP) lockSlow() {
	qp.waiting.Add(1)
	qp.mu.Lock()
	qp.waiting.Add(-1)
}

// State returns the current state.
func (qp *QP) State() QPState {
	qp.lock()
	defer qp.mu.Unlock()
	return qp.state
}

// Query returns the QP's attributes, and those that it was created with (ibv_query_qp, with all
// bits of its mask).
func (qp *QP) Query() (QPAttr, QPInitAttr, error) {
	if err := qp.faultCall("query_qp"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	return qp.query()
}

func (qp *QP) query() (QPAttr, QPInitAttr, error) {
	qp.lock()
	defer qp.mu.Unlock()
	if err := qp.alive("query"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	attr := qp.attr
	qp.prov.Query(&attr)
	init := qp.init.unpack()
	attr.QPState, attr.CurQPState, attr.Cap = qp.state, qp.state, init.Cap
	attr.SQDraining = qp.draining && qp.state == StateSQD // the QP may have failed meanwhile
	return attr, init, nil
}

// Close destroys the QP (ibv_destroy_qp). Posted work requests are dropped without completion;
// completions in a CQ stay. Queued asynchronous events of the QP are dropped. Close waits until
// those that TryGetAsyncEvent returned are acknowledged, and until a copy of a Backend has ended
// that runs for the QP. The error is ErrBusy while the QP is attached to a multicast group or has a
// flow, and ErrClosed after the first Close.
func (qp *QP) Close() error {
	if err := qp.faultCall("destroy_qp"); err != nil {
		return err
	}
	if qp.xrcd != nil && qp.handleCount.Add(-1) > 0 {
		return nil
	}
	if err := qp.destroy(); err != nil {
		return err
	}
	qp.awaitEnd()
	qp.pd.dev.events.discard(&qp.events)
	qp.release()
	return nil
}

// destroy is the part of Close that holds the QP's locks.
func (qp *QP) destroy() error {
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	if n := len(qp.groups); n > 0 {
		return Errorf(ErrBusy, qp.op("close"), "it is attached to %d multicast groups", n)
	}
	if qp.flows > 0 {
		return Errorf(ErrBusy, qp.op("close"), "it has %d flows", qp.flows)
	}
	qp.lock()
	if err := qp.alive("close"); err != nil {
		qp.mu.Unlock()
		return err
	}
	qp.prov.Destroy() // before the end of data that it has not acknowledged yet
	qp.endPlacing()
	qp.endStaging()
	qp.closed = true
	qp.endRing()
	qp.inlineMR = nil
	qp.unlock()
	return nil
}

// op returns an operation and the QP's number, for an error.
func (qp *QP) op(what string) string { return fmt.Sprintf("%s QP %#x", what, qp.num) }

// alive returns an error if the QP is closed.
func (qp *QP) alive(what string) error {
	if qp.closed {
		return Errorf(ErrClosed, qp.op(what), "it is closed")
	}
	return nil
}

// unlock unlocks the QP after work that may have completed requests.
func (qp *QP) unlock() {
	if qp.cqOverrun {
		qp.failOverrun()
	}
	if qp.reportFlags&reportsPending != 0 {
		qp.unlockAndReport()
		return
	}
	qp.mu.Unlock()
}
