package verbs

import (
	"slices"
	"time"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Inject gives a device an Injector, for good. The error is ErrBusy if it has one.
func Inject(d *Device, i Injector) (*Injection, error) {
	x := &Injection{dev: d, injector: i}
	x.revoked.L = &x.revoking
	if !d.injection.CompareAndSwap(nil, x) {
		return nil, Errorf(ErrBusy, "inject faults", "%s has an injector", d.Name())
	}
	d.mu.Lock()
	pds := d.allPDs()
	d.mu.Unlock()
	for _, pd := range pds {
		pd.qpsMu.Lock()
		for qp := range pd.qps {
			qp.lock()
			qp.observed |= faulted
			qp.openRing()
			qp.mu.Unlock()
		}
		pd.qpsMu.Unlock()
	}
	return x, nil
}

// QPs returns the QPs of the device, in the order of their numbers.
func (x *Injection) QPs() []*QP { return x.dev.QPs() }

// FailQP moves a QP to ERR and raises an event, as a device does that finds an error without a
// completion to report it. The event is in the queue before the completions of the flush. The error
// is ErrInvalid in the states RESET and ERR, or before RTR for events other than EventQPFatal.
func (x *Injection) FailQP(qp *QP, t AsyncEventType) error {
	qp.lock()
	defer qp.unlock()
	if err := qp.alive("fail"); err != nil {
		return err
	}
	if qp.state == StateReset || qp.state == StateErr || t != EventQPFatal && qp.state < StateRTR {
		return Errorf(ErrInvalid, qp.op("fail"), "it is in %v, in which no device reports %v", qp.state, t)
	}
	x.count.Add(1)
	qp.failWith(t)
	return nil
}

// RaiseCommEst raises EventCommEst of a QP in RTR, as a device does when a message arrives before
// the last one of the handshake.
func (x *Injection) RaiseCommEst(qp *QP) error {
	qp.lock()
	defer qp.unlock()
	if err := qp.alive("raise event of"); err != nil {
		return err
	}
	if qp.state != StateRTR {
		return Errorf(ErrInvalid, qp.op("raise event of"), "it is in %v, and COMM_EST is for RTR", qp.state)
	}
	x.count.Add(1)
	qp.event(EventCommEst)
	return nil
}

// FailCQ makes a CQ fail as by an overrun: later completions are lost, their QPs fail, and Poll of
// the empty CQ returns an error.
func (x *Injection) FailCQ(cq *CQ) error {
	if cq.channel != nil {
		defer cq.channel.report() // when mu is unlocked
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed || cq.overrun {
		return Errorf(ErrInvalid, "fail CQ", "it is closed or has failed")
	}
	x.count.Add(1)
	cq.fail()
	return nil
}

// StallCQ keeps completions that are added from now on invisible for a time.
func (x *Injection) StallCQ(cq *CQ, d time.Duration) error {
	if !cq.stall(d) {
		return Errorf(ErrClosed, "stall CQ", "it is closed")
	}
	x.count.Add(1)
	return nil
}

// ReachSRQLimit raises EventSRQLimitReached and disarms it. The error is ErrInvalid if the SRQ's
// limit is not armed: no device raises the event then.
func (x *Injection) ReachSRQLimit(s *SRQ) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.limit == 0 {
		return Errorf(ErrInvalid, "reach SRQ limit", "the SRQ is closed or its limit is not armed")
	}
	x.count.Add(1)
	s.limit = 0
	x.dev.events.add(AsyncEvent{Type: EventSRQLimitReached, SRQ: s})
	return nil
}

// MRs returns the regions of the device that have keys, in the order of their lkeys.
func (x *Injection) MRs() (all []*MR) {
	x.dev.mu.Lock()
	pds := x.dev.allPDs()
	x.dev.mu.Unlock()
	for _, pd := range pds {
		pd.keysMu.RLock()
		for _, mr := range pd.keys {
			all = append(all, mr)
		}
		pd.keysMu.RUnlock()
	}
	slices.SortFunc(all, func(a, b *MR) int { return int(int64(a.LKey()) - int64(b.LKey())) })
	return all
}

// RevokeMR makes the keys of a region invalid, as the kernel does with the region of a dma-buf
// whose exporter takes the memory back (mlx5's revocable regions). The region must still be
// closed. The error is ErrBusy while memory windows are bound to it.
func (x *Injection) RevokeMR(mr *MR) error {
	const op = "revoke MR"
	if mr.kind == mrNull {
		return Errorf(ErrInvalid, op, "it is a null MR, which has no memory")
	}
	if err := mr.excludeWindows(op, mrRevoking); err != nil {
		return err
	}
	defer func() {
		x.revoking.Lock()
		defer x.revoking.Unlock()
		mr.boundMWs.Store(0)
		x.revoked.Broadcast()
	}()
	if mr.revoked {
		return Errorf(ErrInvalid, op, "lkey %#x is already revoked", mr.LKey())
	}
	x.count.Add(1)
	mr.revokeKeys()
	mr.revoked = true
	return nil
}

// awaitRevoked waits while RevokeMR runs for a region. The program does not know of it.
func (x *Injection) awaitRevoked(mr *MR) {
	x.revoking.Lock()
	defer x.revoking.Unlock()
	wakeup.Await(x.dev.clock, &x.revoked, func() bool { return mr.boundMWs.Load() != mrRevoking })
}

// Raise raises an event of a port, or of the device with port 0. With EventDeviceFatal, all QPs are
// flushed.
func (x *Injection) Raise(t AsyncEventType, port uint8) error {
	if port > x.dev.attr.PhysPortCnt {
		return Errorf(ErrInvalid, "raise event", "port %d is not in 1–%d", port, x.dev.attr.PhysPortCnt)
	}
	x.count.Add(1)
	x.dev.handleEvent(t, port)
	return nil
}

// Counted adds a fault that another package has injected to the device's counter injected_faults.
func (x *Injection) Counted() { x.count.Add(1) }
