package verbs

import (
	"fmt"
	"sync"
)

// QP is a queue pair (ibv_qp). Any number of goroutines may use it; work requests keep the order in which they took
// its lock.
type QP struct {
	mu        sync.Mutex
	state     QPState
	destroyed bool
	num       uint32
	pd        *PD
	prov      ProviderQP
	sq        queue[SendWR]
	rq        queue[RecvWR]
	ops       opcodeSet
	maxMsg    uint64 // bytes, of the port
	inlineMR  *MR    // where inline data came from last
	attr      QPAttr
	init      QPInitAttr

	modifying sync.Mutex // one Modify at a time; taken before mu
}

// CreateQP makes a QP in state RESET. Its queues have exactly the sizes asked for.
func (pd *PD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create QP"
	if err := pd.checkInit(op, attr); err != nil {
		return nil, err
	}
	if err := pd.acquireQP(op, attr); err != nil {
		return nil, err
	}
	c := attr.Cap
	qp := &QP{pd: pd, init: *attr, ops: sendOps(attr.Type, attr.Transport, &pd.dev.attr),
		sq: newQueue[SendWR](c.MaxSendWR, c.MaxSendSGE, c.MaxInlineData),
		rq: newQueue[RecvWR](c.MaxRecvWR, c.MaxRecvSGE, 0)}
	// In the set before the provider can use it, so that no deregistration overlooks it.
	pd.qpsMu.Lock()
	pd.qps[qp] = struct{}{}
	pd.qpsMu.Unlock()
	prov, num, err := pd.dev.prov.CreateQP(QPHandle{qp}, &qp.init)
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
	if _, ok := stateTable[attr.Type]; !ok {
		return Errorf(ErrNotSupported, op, "Type %v is not supported", attr.Type)
	}
	if attr.SendCQ == nil || attr.RecvCQ == nil {
		return Errorf(ErrInvalid, op, "SendCQ and RecvCQ must be set")
	}
	if attr.SendCQ.dev != d || attr.RecvCQ.dev != d {
		return Errorf(ErrInvalid, op, "a CQ is of another device than the PD")
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
	if attr.SendCQ.dead || attr.RecvCQ.dead {
		return Errorf(ErrDestroyed, op, "a CQ is destroyed")
	}
	if err := d.reserve(op, &d.qps, d.attr.MaxQP, "MaxQP"); err != nil {
		return err
	}
	pd.nqps++
	attr.SendCQ.users++
	attr.RecvCQ.users++
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
	qp.init.SendCQ.users--
	qp.init.RecvCQ.users--
	d.mu.Unlock()
}

// Num is the QP number, 24 bits.
func (qp *QP) Num() uint32 { return qp.num }

// PD is the protection domain.
func (qp *QP) PD() *PD { return qp.pd }

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
	attr.QPState, attr.CurQPState, attr.Cap = qp.state, qp.state, qp.init.Cap
	return attr, qp.init, nil
}

// Destroy ends the QP. Work requests still posted vanish without completion; completions already in a CQ stay.
func (qp *QP) Destroy() error {
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
