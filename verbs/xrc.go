package verbs

import (
	"os"
	"sync"
	"syscall"
)

// XRCD is an XRC domain (ibv_xrcd). An XRC_RECV QP delivers the messages of one XRC_SEND QP to the
// SRQs of its domain; each message has the number of its SRQ. Keys in a message are checked against
// that SRQ's protection domain (IBTA annex A14).
type XRCD struct {
	dev  *Device
	file os.FileInfo // the file that identifies a shared domain, or nil
	pd   *PD         // internal PD of the domain's QPs, without regions

	// protected by dev.mu
	openCount, nsrqs int

	mu   sync.Mutex // after QP locks
	srqs map[uint32]*SRQ
}

// OpenXRCD opens the XRC domain of a file (ibv_open_xrcd). All calls of the process with the same
// file return the same domain. If the domain does not exist yet, flag must have os.O_CREATE;
// otherwise the error is EAGAIN, as in Linux. If it exists and flag has os.O_EXCL, the error is
// ErrInvalid. Without a file, OpenXRCD creates a new domain that is not shared.
func (d *Device) OpenXRCD(f *os.File, flag int) (*XRCD, error) {
	if err := d.fault("open_xrcd"); err != nil {
		return nil, err
	}
	const op = "open XRCD"
	if d.attr.DeviceCapFlags&DeviceXRC == 0 {
		return nil, Errorf(ErrNotSupported, op, "the device does not report XRC")
	}
	x := &XRCD{dev: d, openCount: 1, srqs: make(map[uint32]*SRQ)}
	if f != nil {
		var err error
		if x.file, err = f.Stat(); err != nil {
			return nil, wrap(op, err)
		}
	}
	x.pd = &PD{dev: d, qps: make(map[*QP]struct{}), keys: make(map[uint32]*MR)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	for y := range d.xrcds {
		if f != nil && y.file != nil && os.SameFile(y.file, x.file) {
			if flag&os.O_EXCL != 0 {
				return nil, Errorf(ErrInvalid, op, "O_EXCL: %s has a domain", f.Name())
			}
			y.openCount++
			return y, nil
		}
	}
	if f != nil && flag&os.O_CREATE == 0 {
		return nil, Errorf(syscall.EAGAIN, op, "%s has no domain, and O_CREATE is not given", f.Name())
	}
	if d.xrcds == nil {
		d.xrcds = make(map[*XRCD]struct{})
	}
	d.xrcds[x] = struct{}{}
	return x, nil
}

// Device returns the domain's device.
func (x *XRCD) Device() *Device { return x.dev }

// Close undoes one OpenXRCD (ibv_close_xrcd). The error of the last Close is ErrBusy while the
// domain has QPs or SRQs. Afterwards it is ErrClosed.
func (x *XRCD) Close() error {
	if err := x.dev.fault("close_xrcd"); err != nil {
		return err
	}
	const op = "close XRCD"
	d := x.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case x.openCount == 0:
		return Errorf(ErrClosed, op, "it is already closed")
	case x.openCount == 1 && x.pd.nqps+x.nsrqs > 0:
		return Errorf(ErrBusy, op, "%d QPs and %d SRQs are left", x.pd.nqps, x.nsrqs)
	}
	if x.openCount--; x.openCount == 0 {
		delete(d.xrcds, x)
		x.pd.dead = true
	}
	return nil
}

// CreateQP creates an XRC_RECV QP in state RESET. It has no queues, CQs or PD of its own.
func (x *XRCD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create QP"
	switch {
	case attr == nil:
		return nil, Errorf(ErrInvalid, op, "no attributes")
	case attr.Type != XRCRecv || attr.Transport != RoCEv2:
		return nil, Errorf(ErrInvalid, op, "Type is %v over %v: an XRC domain has XRC_RECV QPs over %v only",
			attr.Type, attr.Transport, RoCEv2)
	case attr.SendCQ != nil || attr.RecvCQ != nil || attr.SRQ != nil || attr.Cap != QPCap{}:
		return nil, Errorf(ErrInvalid, op, "an XRC_RECV QP has no CQs, no SRQ and no Cap")
	}
	return x.pd.createQP(op, attr, x)
}

// OpenQP returns the domain's XRC_RECV QP with the given number (ibv_open_qp). The QP is closed
// when QP.Close has been called for CreateQP and for each OpenQP.
func (x *XRCD) OpenQP(num uint32) (*QP, error) {
	if err := x.dev.fault("open_qp"); err != nil {
		return nil, err
	}
	x.pd.qpsMu.Lock()
	defer x.pd.qpsMu.Unlock()
	for qp := range x.pd.qps {
		if qp.addHandle(num) {
			return qp, nil
		}
	}
	return nil, Errorf(ErrInvalid, "open QP", "the XRC domain has no QP %#x", num)
}

// addHandle counts one more handle of the QP, if it has the given number. It returns false for a QP
// that is being created, which has no number yet, and for one that is being closed.
func (qp *QP) addHandle(num uint32) bool {
	qp.lock()
	defer qp.mu.Unlock()
	if qp.prov == nil || qp.num != num {
		return false
	}
	for n := qp.handleCount.Load(); n > 0; n = qp.handleCount.Load() {
		if qp.handleCount.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// add adds an SRQ to the domain and gives it a number. dev.mu is held.
func (x *XRCD) add(s *SRQ) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s.num == 0 || x.srqs[s.num] != nil {
		x.dev.srqNum++
		s.num = x.dev.srqNum & (1<<24 - 1)
	}
	x.srqs[s.num] = s
	x.nsrqs++
}

// remove removes an SRQ from the domain, and from the QPs that use it for their current message.
func (x *XRCD) remove(s *SRQ) {
	x.mu.Lock()
	delete(x.srqs, s.num)
	x.mu.Unlock()
	x.pd.qpsMu.Lock()
	defer x.pd.qpsMu.Unlock()
	for qp := range x.pd.qps {
		qp.lock()
		if qp.srq == s {
			qp.srq = nil
			qp.rq.reset()
		}
		qp.dropHeldOf(s)
		qp.unlock()
	}
}

// selectSRQ implements QPHandle.SelectSRQ.
func (qp *QP) selectSRQ(num uint32) *PD {
	if s := qp.srq; s != nil && s.num == num {
		return s.pd
	}
	x := qp.xrcd
	x.mu.Lock()
	s := x.srqs[num]
	x.mu.Unlock()
	if s == nil || qp.rq.len() > 0 {
		return nil
	}
	if qp.srq = s; cap(qp.rq.slots[0].SGList) < s.maxSGE {
		qp.rq = newRecvQueue(1, s.maxSGE)
	}
	return s.pd
}

// checkXRC checks the attributes of XRC_SEND QPs, and that other QPs have no XRC SRQ.
func (pd *PD) checkXRC(op string, attr *QPInitAttr) error {
	switch {
	case attr.SRQ != nil && attr.SRQ.xrcd != nil:
		return Errorf(ErrInvalid, op, "SRQ is an XRC SRQ, which only XRC_RECV QPs can use")
	case attr.Type != XRCSend:
	case pd.dev.attr.DeviceCapFlags&DeviceXRC == 0:
		return Errorf(ErrNotSupported, op, "the device does not report XRC")
	case attr.SRQ != nil || attr.RecvCQ != nil || attr.Cap.MaxRecvWR|attr.Cap.MaxRecvSGE != 0:
		return Errorf(ErrInvalid, op, "an XRC_SEND QP has no RecvCQ, SRQ or receive queue")
	}
	return nil
}
