package rdmacm

import (
	"errors"

	"github.com/softrnic/softrnic/verbs"
)

// UDPQKey is the Q_Key of UD QPs that CreateQP makes (RDMA_UDP_QKEY).
const UDPQKey = 0x01234567

// resources is a QP or an SRQ, and what was made for it.
type resources struct {
	qp         *verbs.QP
	srq        *verbs.SRQ
	cqs        []*verbs.CQ
	channels   []*verbs.CompChannel
	sharesXRCD *verbs.Device // whose default XRC domain is used, or nil
}

// CreateQP makes the ID's QP and takes it to INIT, a UD QP to RTS (rdma_create_qp). The ID must know its device.
//
// What is left out is made, and goes with the QP: a nil pd is the device's default one, which all IDs share and which
// stays; a nil CQ in attr is a new one, as large as its queue or the SRQ and with a completion channel; a nil SRQ is the
// ID's. Type and Transport are the ID's; if not zero they must be the same, but in port space IB, which has RC, UC and
// XRC_SEND.
//
// From then on the ID moves the QP: to RTS when a connection is made, to ERR when it ends.
func (id *ID) CreateQP(pd *verbs.PD, attr *verbs.QPInitAttr) error {
	const op = "create QP"
	if attr == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "no attributes")
	}
	if err := id.lock(op, bound, addrResolved, routeResolved, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	init := *attr
	want := id.kind()
	if init.Type == 0 {
		init.Type = want
	}
	switch init.Transport = id.transport(); {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is bound to no device yet")
	case id.qp != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP already")
	case pd != nil && pd.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the PD is on %s, the ID on %s", pd.Device().Name(), id.dev.Name())
	case attr.Transport != 0 && attr.Transport != init.Transport:
		return verbs.Errorf(verbs.ErrInvalid, op, "Transport %v: the ID's is %v, which SetTransports chooses", attr.Transport, init.Transport)
	case init.Type == verbs.XRCRecv:
		return verbs.Errorf(verbs.ErrInvalid, op, "XRC_RECV QPs are made by CreateXRCQP")
	case init.Type != want && id.space != IB:
		return verbs.Errorf(verbs.ErrInvalid, op, "Type %v: port space %v has %v QPs", init.Type, id.space, want)
	}
	return id.takeQP(init.Type, func() error { return id.makeQP(pd, &init) })
}

// CreateXRCQP makes the ID's QP an XRC_RECV one of a domain, and takes it to INIT (rdma_create_qp_ex with
// IBV_QPT_XRC_RECV). A nil domain is the device's default one, which all IDs share. The ID is one of port space IB; see
// CreateQP for the rest.
func (id *ID) CreateXRCQP(x *verbs.XRCD) error {
	const op = "create XRC QP"
	if err := id.lock(op, bound, addrResolved, routeResolved, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	switch {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is bound to no device yet")
	case id.qp != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP already")
	case id.space != IB:
		return verbs.Errorf(verbs.ErrInvalid, op, "port space %v has %v QPs", id.space, id.kind())
	case x != nil && x.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the XRC domain is on %s, the ID on %s", x.Device().Name(), id.dev.Name())
	}
	return id.takeQP(verbs.XRCRecv, func() (err error) {
		if x == nil {
			if x, err = id.qp.useXRCD(id.dev); err != nil {
				return err
			}
		}
		id.qp.qp, err = x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv, Transport: id.transport()})
		return err
	})
}

// takeQP gives the ID a QP that is made by a function, in id.qp.
func (id *ID) takeQP(t verbs.QPType, make func() error) error {
	r := &resources{}
	id.qp = r
	err := make()
	if err == nil {
		err = id.initQP(t)
	}
	if err != nil {
		id.qp = nil
		return errors.Join(err, r.destroy())
	}
	return nil
}

// makeQP fills in id.qp.
func (id *ID) makeQP(pd *verbs.PD, init *verbs.QPInitAttr) (err error) {
	r := id.qp
	if pd == nil {
		if pd, err = id.dev.DefaultPD(); err != nil {
			return err
		}
	}
	if id.srq != nil && init.SRQ == nil && init.Type != verbs.XRCSend {
		init.SRQ = id.srq.srq
	}
	if init.SendCQ == nil {
		if init.SendCQ, err = r.makeCQ(id.dev, init.Cap.MaxSendWR); err != nil {
			return err
		}
	}
	if init.RecvCQ == nil && init.Type != verbs.XRCSend {
		receives := init.Cap.MaxRecvWR
		if init.SRQ != nil { // then MaxRecvWR means nothing
			srq, err := init.SRQ.Query()
			if err != nil {
				return err
			}
			receives = srq.MaxWR
		}
		if init.RecvCQ, err = r.makeCQ(id.dev, receives); err != nil {
			return err
		}
	}
	r.qp, err = pd.CreateQP(init)
	return err
}

func (r *resources) makeCQ(d *verbs.Device, cqe int) (*verbs.CQ, error) {
	ch, err := d.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	r.channels = append(r.channels, ch)
	cq, err := d.CreateCQ(max(cqe, 1), &verbs.CQInitAttr{Channel: ch})
	if err == nil {
		r.cqs = append(r.cqs, cq)
	}
	return cq, err
}

// initQP takes a new QP as far as it goes without a peer.
func (id *ID) initQP(t verbs.QPType) error {
	attr, mask, err := id.initAttr(t)
	if err != nil {
		return err
	}
	if err := id.qp.qp.Modify(&attr, mask); err != nil || t != verbs.UD {
		return err
	}
	if err := id.qp.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState); err != nil {
		return err
	}
	return id.qp.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN)
}

func (id *ID) initAttr(t verbs.QPType) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr := verbs.QPAttr{QPState: verbs.StateInit, PortNum: id.route.Port}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort
	switch {
	case t == verbs.UD:
		attr.QKey = UDPQKey
		return attr, mask | verbs.QPAttrQKey, nil
	case id.conn != nil:
		return id.conn.QPAttr(verbs.StateInit)
	}
	return attr, mask | verbs.QPAttrAccessFlags, nil
}

// QPAttr is what a QP that the application made itself needs to get to the given state (rdma_init_qp_attr): INIT once
// the device is known, RTR and RTS when the peer has asked or answered. Such a QP's number goes into ConnParam.QPNum,
// and the application moves it: to RTS before Accept or Establish, to ERR when the connection ends.
func (id *ID) QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	const op = "get QP attributes"
	if err := id.lock(op); err != nil {
		return verbs.QPAttr{}, 0, err
	}
	defer id.mu.Unlock()
	switch {
	case id.conn != nil:
		return id.conn.QPAttr(to)
	case to != verbs.StateInit || id.dev == nil:
		return verbs.QPAttr{}, 0, verbs.Errorf(verbs.ErrInvalid, op, "the ID is %v: it knows none for %v", id.state, to)
	}
	return id.initAttr(id.kind())
}

// QP is what CreateQP made, or nil.
func (id *ID) QP() *verbs.QP { return get(id, id.ownQP) }

func (id *ID) ownQP() *verbs.QP {
	if id.qp == nil {
		return nil
	}
	return id.qp.qp
}

// DestroyQP destroys what CreateQP made (rdma_destroy_qp). Like CQ.Destroy it waits for unacknowledged events of CQs
// that CreateQP made.
func (id *ID) DestroyQP() error {
	const op = "destroy QP"
	if err := id.lock(op); err != nil {
		return err
	}
	r := id.qp
	id.qp = nil
	id.detach()
	id.mu.Unlock() // whoever has an event of a CQ may need the ID before acknowledging it
	if r == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has no QP")
	}
	return r.destroy()
}

// destroy destroys what is there of r, which may be nil.
func (r *resources) destroy() error {
	if r == nil {
		return nil
	}
	var errs []error
	if r.qp != nil {
		if err := r.qp.Destroy(); !errors.Is(err, verbs.ErrDestroyed) {
			errs = append(errs, err)
		}
	}
	if r.srq != nil {
		if err := r.srq.Destroy(); !errors.Is(err, verbs.ErrDestroyed) {
			errs = append(errs, err)
		}
	}
	for _, cq := range r.cqs {
		errs = append(errs, cq.Destroy())
	}
	for _, ch := range r.channels {
		errs = append(errs, ch.Destroy())
	}
	if r.sharesXRCD != nil {
		errs = append(errs, defaultXRCDs.put(r.sharesXRCD))
	}
	return errors.Join(errs...)
}

// connectQP takes the QP from INIT to RTS. adjust changes what the provider says.
func (id *ID) connectQP(adjust func(*verbs.QPAttr)) error {
	path := []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS}
	if id.qp.qp.Transport() == verbs.IWARP {
		path = []verbs.QPState{verbs.StateInit, verbs.StateRTS} // a stream has both directions
	}
	for _, to := range path {
		attr, mask, err := id.conn.QPAttr(to)
		if err != nil {
			return err
		}
		if adjust != nil {
			adjust(&attr)
		}
		if err := id.qp.qp.Modify(&attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// failQP takes the QP to ERR: all that is posted is flushed.
func (id *ID) failQP() {
	if qp := id.ownQP(); qp != nil && qp.State() != verbs.StateReset {
		// The only error is that the application destroyed the QP, and then there is nothing to flush.
		_ = qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
	}
}
