package fault

import (
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// actLater applies a rule whose time has come, and notes why it could not be applied. qp is the
// QP of the request that nth counted, or 0.
func (f *Device) actLater(a *active, qp uint32) {
	n, err := f.act(a, qp)
	f.mu.Lock()
	defer f.mu.Unlock()
	a.done = true
	a.injected += n
	if err != nil {
		a.failed = err.Error()
	}
}

// act applies a rule once, and returns the number of objects that it hit.
func (f *Device) act(a *active, qp uint32) (n uint64, err error) {
	port := max(a.sel.port, 1)
	n = 1
	switch a.kind {
	case onEvent:
		n, err = f.raise(a, qp, port)
	case onCQ:
		n, err = f.each(a, qp, func(qp *verbs.QP) error { return f.stall(qp, a.time) })
	case onCM:
		if n = uint64(rdmacm.InjectAddrChange(f.dev)); n == 0 {
			err = errors.New("no ID of rdma_cm is bound to the device")
		}
		for range n {
			f.inj.Counted()
		}
	case onPort:
		f.setDown(int(port)-1, a.down, a.sel.lasts)
		f.inj.Counted()
	case onAddr:
		if a.remove {
			err = f.cfg.Addresses[port-1].RemoveAddr(a.prefix.Addr())
		} else {
			err = f.cfg.Addresses[port-1].AddAddr(a.prefix.String())
		}
		f.inj.Counted()
	case onMTU:
		err = f.cfg.Ports[port-1].SetMTU(a.mtu)
		f.inj.Counted()
	case onDevice:
		if f.gone.Swap(true) {
			return 0, errors.New("the device is already gone")
		}
		err = f.inj.Raise(verbs.EventDeviceFatal, 0)
	case onMR:
		n, err = f.revoke(a.sel.lkey)
	}
	if err != nil {
		return 0, err
	}
	f.report(a.text, f.findQP(qp))
	return n, nil
}

// setDown changes a port's link, for a time or, with 0, until the next change.
func (f *Device) setDown(port int, down bool, lasts time.Duration) {
	f.cables.Lock()
	defer f.cables.Unlock()
	if t := f.up[port]; t != nil {
		t.Stop()
		delete(f.up, port)
	}
	f.cfg.Ports[port].SetDown(down)
	if lasts == 0 {
		return
	}
	var t verbs.Timer
	t = f.dev.Clock().AfterFunc(lasts, func() {
		f.cables.Lock()
		defer f.cables.Unlock()
		if f.up[port] == t { // otherwise a later change has stopped it too late
			delete(f.up, port)
			f.cfg.Ports[port].SetDown(false)
		}
	})
	f.up[port] = t
}

// each calls do with the QPs of a rule: the one of the request that nth counted, the one that the
// rule names, or all. It returns the number of QPs for which do returned no error.
func (f *Device) each(a *active, qp uint32, do func(*verbs.QP) error) (n uint64, err error) {
	if qp == 0 {
		qp = a.sel.qp
	}
	return hit(f.inj.QPs(), "QP", qp, (*verbs.QP).Num, do)
}

// hit calls do with the object that has a number, or with all for 0. It returns the number of
// objects for which do returned no error; if there are none, the first error.
func hit[T any](all []T, what string, number uint32, numberOf func(T) uint32, do func(T) error) (n uint64, err error) {
	for _, o := range all {
		if number != 0 && numberOf(o) != number {
			continue
		}
		if failed := do(o); failed == nil {
			n++
		} else if err == nil {
			err = failed
		}
	}
	switch {
	case n > 0:
		return n, nil
	case err != nil:
		return 0, err
	case number != 0:
		return 0, fmt.Errorf("the device has no %s %#x", what, number)
	}
	return 0, fmt.Errorf("the device has no %s", what)
}

// stall stops the CQs of a QP for a time.
func (f *Device) stall(qp *verbs.QP, d time.Duration) error {
	var errs []error
	for i, cq := range []*verbs.CQ{qp.SendCQ(), qp.RecvCQ()} {
		if cq != nil && (i == 0 || cq != qp.SendCQ()) {
			errs = append(errs, f.inj.StallCQ(cq, d))
		}
	}
	return errors.Join(errs...)
}

// raise raises an asynchronous event.
func (f *Device) raise(a *active, qp uint32, port uint8) (uint64, error) {
	switch a.event {
	case verbs.EventGIDChange, verbs.EventClientReregister:
		return 1, f.inj.Raise(a.event, port)
	case verbs.EventCommEst:
		return f.each(a, qp, f.inj.RaiseCommEst)
	case verbs.EventCQErr:
		return f.each(a, qp, func(q *verbs.QP) error { return f.inj.FailCQ(q.SendCQ()) })
	case verbs.EventSRQLimitReached:
		return f.each(a, qp, func(q *verbs.QP) error {
			if q.SRQ() == nil {
				return fmt.Errorf("QP %#x has no SRQ", q.Num())
			}
			return f.inj.ReachSRQLimit(q.SRQ())
		})
	}
	return f.each(a, qp, func(q *verbs.QP) error {
		if a.sel.late > 0 {
			if err := f.stall(q, a.sel.late); err != nil {
				return err
			}
		}
		return f.inj.FailQP(q, a.event)
	})
}

// revoke revokes the region with an lkey, or with 0 all regions.
func (f *Device) revoke(lkey uint32) (n uint64, err error) {
	return hit(f.inj.MRs(), "region", lkey, (*verbs.MR).LKey, f.inj.RevokeMR)
}
