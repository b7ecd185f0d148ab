package verbs

import (
	"os"
	"sync"
)

// XRCD is an XRC domain (ibv_xrcd). An XRC_RECV QP takes the messages of one XRC_SEND QP to any SRQ of its domain, each
// message naming the SRQ by its number. The protection domain that counts for a message is that SRQ's (IBTA annex A14).
type XRCD struct {
	dev  *Device
	file os.FileInfo // what it is shared by; nil: by nothing
	home *PD         // of the domain's QPs; no region is in it

	// guarded by dev.mu
	opens, nsrqs int

	mu   sync.Mutex // after QP locks
	srqs map[uint32]*SRQ
}

// OpenXRCD opens the domain that belongs to a file, which all of the process that opens it with the same file share; nil
// makes a new one.
func (d *Device) OpenXRCD(f *os.File) (*XRCD, error) {
	const op = "open XRCD"
	if d.attr.DeviceCapFlags&DeviceXRC == 0 {
		return nil, Errorf(ErrNotSupported, op, "the device does not report XRC")
	}
	x := &XRCD{dev: d, opens: 1, srqs: make(map[uint32]*SRQ)}
	if f != nil {
		var err error
		if x.file, err = f.Stat(); err != nil {
			return nil, wrap(op, err)
		}
	}
	x.home = &PD{dev: d, qps: make(map[*QP]struct{}), keys: make(map[uint32]*MR)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	for y := range d.xrcds {
		if f != nil && y.file != nil && os.SameFile(y.file, x.file) {
			y.opens++
			return y, nil
		}
	}
	if d.xrcds == nil {
		d.xrcds = make(map[*XRCD]struct{})
	}
	d.xrcds[x] = struct{}{}
	return x, nil
}

// Device is the device that the domain is of.
func (x *XRCD) Device() *Device { return x.dev }

// Close undoes OpenXRCD. ErrBusy if it is the last that has it open, and a QP or an SRQ is left.
func (x *XRCD) Close() error {
	const op = "close XRCD"
	d := x.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case x.opens == 0:
		return Errorf(ErrDestroyed, op, "it is closed already")
	case x.opens == 1 && x.home.nqps+x.nsrqs > 0:
		return Errorf(ErrBusy, op, "%d QPs and %d SRQs are left", x.home.nqps, x.nsrqs)
	}
	if x.opens--; x.opens == 0 {
		delete(d.xrcds, x)
		x.home.dead = true
	}
	return nil
}

// CreateQP makes an XRC_RECV QP in state RESET. It has no queues, CQs and PD of its own.
func (x *XRCD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create QP"
	switch {
	case attr == nil:
		return nil, Errorf(ErrInvalid, op, "no attributes")
	case attr.Type != XRCRecv || attr.Transport != RoCEv2:
		return nil, Errorf(ErrInvalid, op, "Type is %v over %v: an XRC domain has XRC_RECV over %v", attr.Type, attr.Transport, RoCEv2)
	case attr.SendCQ != nil || attr.RecvCQ != nil || attr.SRQ != nil || attr.Cap != QPCap{}:
		return nil, Errorf(ErrInvalid, op, "an XRC_RECV QP has no CQs, no SRQ and no Cap of its own")
	}
	return x.home.createQP(op, attr, x)
}

// OpenQP finds an XRC_RECV QP of the domain by its number (ibv_open_qp). It goes when it was destroyed as often as it was
// created and opened.
func (x *XRCD) OpenQP(num uint32) (*QP, error) {
	x.home.qpsMu.Lock()
	defer x.home.qpsMu.Unlock()
	for qp := range x.home.qps {
		if qp.open(num) {
			return qp, nil
		}
	}
	return nil, Errorf(ErrInvalid, "open QP", "the XRC domain has no QP %#x", num)
}

// open counts one more handle to the QP, if it has the number: one that is being made has none yet. It fails for a QP
// that is being destroyed.
func (qp *QP) open(num uint32) bool {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.prov == nil || qp.num != num {
		return false
	}
	for n := qp.opens.Load(); n > 0; n = qp.opens.Load() {
		if qp.opens.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// add gives an SRQ its number. d.mu is held.
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

// remove makes sure that no QP has anything of an SRQ any more.
func (x *XRCD) remove(s *SRQ) {
	x.mu.Lock()
	delete(x.srqs, s.num)
	x.mu.Unlock()
	x.home.qpsMu.Lock()
	defer x.home.qpsMu.Unlock()
	for qp := range x.home.qps {
		qp.mu.Lock()
		if qp.srq == s {
			qp.srq = nil
			qp.rq.reset()
		}
		qp.unlock()
	}
}

// selectSRQ is QPHandle.SelectSRQ.
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

// checkXRC checks what is special about the QPs that send to an XRC domain.
func (pd *PD) checkXRC(op string, attr *QPInitAttr) error {
	switch {
	case attr.SRQ != nil && attr.SRQ.xrcd != nil:
		return Errorf(ErrInvalid, op, "the SRQ is of an XRC domain, whose QPs find it by its number")
	case attr.Type != XRCSend:
	case pd.dev.attr.DeviceCapFlags&DeviceXRC == 0:
		return Errorf(ErrNotSupported, op, "the device does not report XRC")
	case attr.SRQ != nil || attr.RecvCQ != nil || attr.Cap.MaxRecvWR != 0 || attr.Cap.MaxRecvSGE != 0:
		return Errorf(ErrInvalid, op, "an XRC_SEND QP has no RecvCQ, SRQ or receive queue")
	}
	return nil
}
