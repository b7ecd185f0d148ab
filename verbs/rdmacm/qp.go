package rdmacm

import (
	"errors"
	"io"
	"slices"

	"github.com/softrnic/softrnic/verbs"
)

// UDPQKey is the Q_Key of UD QPs that CreateQP creates (RDMA_UDP_QKEY).
const UDPQKey = 0x01234567

// resources is a QP or an SRQ of an ID, and the objects that were created for it.
type resources struct {
	qp       *verbs.QP
	appOwned bool // UseQP was called, and the application closes the QP
	failed   bool // the QP was moved to ERR
	srq      *verbs.SRQ
	// CQs, completion channels and the use of the default XRC domain, oldest first.
	created []io.Closer
}

// CreateQP creates the ID's QP and moves it to INIT, a UD QP to RTS (rdma_create_qp). The ID must
// be bound to a device.
//
// A nil pd means the device's default PD, which all IDs share. For a nil CQ in attr, CreateQP
// creates one with a completion channel. It is as large as its work queue or the SRQ, and is
// closed with the QP. A nil SRQ means the SRQ of CreateSRQ, if there is one. A zero Type or
// Transport means that of the ID, and another value must be equal to it. In port space IB, however,
// Type may be RC, UC or XRC_SEND.
//
// The ID then moves the QP: to RTS when a connection is established, to ERR when it ends.
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
	want := id.serviceType()
	if init.Type == 0 {
		init.Type = want
	}
	switch init.Transport = id.transport(); {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is not bound to a device yet")
	case id.qp != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP already")
	case pd != nil && pd.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the PD is on %s, the ID on %s", pd.Device().Name(), id.dev.Name())
	case attr.Transport != 0 && attr.Transport != init.Transport:
		return verbs.Errorf(verbs.ErrInvalid, op, "Transport is %v, but the ID's is %v; see SetTransports", attr.Transport, init.Transport)
	case init.Type == verbs.XRCRecv:
		return verbs.Errorf(verbs.ErrInvalid, op, "Type is XRC_RECV: create it with CreateXRCQP")
	case init.Type != want && id.space != IB:
		return verbs.Errorf(verbs.ErrInvalid, op, "Type %v: port space %v has %v QPs", init.Type, id.space, want)
	}
	return id.addQP(init.Type, func() error { return id.makeQP(pd, &init) })
}

// CreateXRCQP creates the ID's QP as an XRC_RECV QP of an XRC domain, and moves it to INIT
// (rdma_create_qp_ex with IBV_QPT_XRC_RECV). A nil domain means the device's default one, which all
// IDs share. The ID must be in port space IB. See CreateQP for the rest.
func (id *ID) CreateXRCQP(x *verbs.XRCD) error {
	const op = "create XRC QP"
	if err := id.lock(op, bound, addrResolved, routeResolved, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	switch {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is not bound to a device yet")
	case id.qp != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP already")
	case id.space != IB:
		return verbs.Errorf(verbs.ErrInvalid, op, "port space %v has %v QPs", id.space, id.serviceType())
	case x != nil && x.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the XRC domain is on %s, the ID on %s", x.Device().Name(), id.dev.Name())
	}
	return id.addQP(verbs.XRCRecv, func() (err error) {
		if x == nil {
			if x, err = id.qp.useXRCD(id.dev); err != nil {
				return err
			}
		}
		id.qp.qp, err = x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv, Transport: id.transport()})
		return err
	})
}

// UseQP makes a QP that the application has created the ID's QP. The ID moves it through its states
// like a QP from CreateQP. If it is in RESET, UseQP moves it to INIT, or to RTS if its type is UD.
// CloseQP, Close of the ID and UseQP(nil) only end its use, and the application then closes
// it. A QP that is then given to another ID belongs to that ID only. UseQP is for programs that
// create QPs before the ID is known, or keep a structure of their own for each QP.
func (id *ID) UseQP(qp *verbs.QP) error {
	const op = "use QP"
	if qp == nil {
		if err := id.lock(op); err != nil {
			return err
		}
		defer id.mu.Unlock()
		if id.qp != nil && !id.qp.appOwned {
			return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP from CreateQP; use CloseQP")
		}
		id.detachGroups()
		id.qp.releaseQP(id)
		id.qp = nil
		return nil
	}
	if err := id.lock(op, bound, addrResolved, routeResolved, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	switch want := id.serviceType(); {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is not bound to a device yet")
	case id.qp != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP already")
	case qp.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the QP is on %s, the ID on %s", qp.Device().Name(), id.dev.Name())
	case qp.Transport() != id.transport():
		return verbs.Errorf(verbs.ErrInvalid, op, "the QP's Transport is %v, but the ID's is %v; see SetTransports",
			qp.Transport(), id.transport())
	case qp.Type() != want && id.space != IB:
		return verbs.Errorf(verbs.ErrInvalid, op, "Type %v: port space %v has %v QPs", qp.Type(), id.space, want)
	}
	id.qp = &resources{qp: qp, appOwned: true}
	owners.acquire(qp, id)
	if qp.State() != verbs.StateReset {
		return nil
	}
	err := id.initQP(qp.Type())
	if err != nil {
		id.qp.releaseQP(id)
		id.qp = nil
	}
	return err
}

// releaseQP ends the use of the application's QP. r may be nil.
func (r *resources) releaseQP(id *ID) {
	if r != nil && r.appOwned {
		owners.release(r.qp, id)
	}
}

// addQP adds a QP to the ID and moves it to its first state. create stores the QP in id.qp.
func (id *ID) addQP(t verbs.QPType, create func() error) error {
	r := &resources{}
	id.qp = r
	err := create()
	if err == nil {
		err = id.initQP(t)
	}
	if err != nil {
		id.qp = nil
		return errors.Join(err, r.close())
	}
	return nil
}

// makeQP creates the QP and its CQs, and stores them in id.qp.
func (id *ID) makeQP(pd *verbs.PD, init *verbs.QPInitAttr) (err error) {
	r := id.qp
	if pd == nil {
		if pd, err = id.dev.DefaultPD(); err != nil {
			return err
		}
	}
	if srq := id.srq(); srq != nil && init.SRQ == nil && init.Type != verbs.XRCSend {
		init.SRQ = srq.srq
	}
	if init.SendCQ == nil {
		if init.SendCQ, err = r.makeCQ(id.dev, init.Cap.MaxSendWR); err != nil {
			return err
		}
	}
	if init.RecvCQ == nil && init.Type != verbs.XRCSend {
		receives := init.Cap.MaxRecvWR
		if init.SRQ != nil { // MaxRecvWR is ignored
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
	r.created = append(r.created, ch)
	cq, err := d.CreateCQ(max(cqe, 1), &verbs.CQInitAttr{Channel: ch})
	if err == nil {
		r.created = append(r.created, cq)
	}
	return cq, err
}

// initQP moves a new QP to the state that needs no peer: INIT, or RTS for UD.
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
	attr := verbs.QPAttr{QPState: verbs.StateInit, PortNum: id.route.PortNum}
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

// QPAttr returns the attributes for a transition of a QP that the application has created itself
// (rdma_init_qp_attr). The transition to INIT needs an ID that is bound to a device, those to RTR
// and RTS a ConnectRequest or ConnectResponse. The application sets ConnParam.QPNum to the QP's
// number. It moves the QP to RTS before Accept or Establish, and to ERR when the connection ends.
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
		return verbs.QPAttr{}, 0, verbs.Errorf(verbs.ErrInvalid, op, "the ID is %v, and has no attributes for %v", id.state, to)
	}
	return id.initAttr(id.serviceType())
}

// QP returns the QP of CreateQP, or nil.
func (id *ID) QP() *verbs.QP { return get(id, id.ownQP) }

func (id *ID) ownQP() *verbs.QP {
	if id.qp == nil {
		return nil
	}
	return id.qp.qp
}

// CloseQP closes the QP, and the objects that CreateQP created with it (rdma_destroy_qp). Close
// of the ID does so too; CloseQP is for an ID that continues, with another QP or without one. Like
// CQ.Close, it waits until the events of CQs that CreateQP created are acknowledged. The error is
// ErrInvalid without a QP, or that of closing an object.
func (id *ID) CloseQP() error {
	const op = "close QP"
	if err := id.lock(op); err != nil {
		return err
	}
	r := id.qp
	r.releaseQP(id)
	id.qp = nil
	id.detachGroups()
	id.mu.Unlock() // a goroutine may need the ID before it acknowledges an event of a CQ
	if r == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has no QP")
	}
	return r.close()
}

// close closes the objects in r, which may be nil.
func (r *resources) close() error {
	if r == nil {
		return nil
	}
	var errs []error
	if r.qp != nil && !r.appOwned {
		if err := r.qp.Close(); !errors.Is(err, verbs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if r.srq != nil {
		if err := r.srq.Close(); !errors.Is(err, verbs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, d := range slices.Backward(r.created) {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// connectQP moves the QP from INIT to RTS. adjust, if not nil, changes the provider's attributes.
func (id *ID) connectQP(adjust func(*verbs.QPAttr)) error {
	path := []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS}
	if id.qp.qp.Transport() == verbs.IWARP {
		path = []verbs.QPState{verbs.StateInit, verbs.StateRTS} // see iwarpTable in package verbs
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

// failQP moves the QP to ERR, which flushes all posted work requests. It does not change a QP of
// the application that now belongs to another ID, or that this ID has already moved to ERR. Such a
// QP may have another connection.
func (id *ID) failQP() {
	r := id.qp
	switch {
	case r == nil || r.qp == nil:
	case r.appOwned:
		owners.ifOwned(r.qp, id, func(*owner) {
			if !r.failed {
				r.fail()
			}
		})
	default:
		r.fail()
	}
}

func (r *resources) fail() {
	if r.qp.State() != verbs.StateReset {
		r.failed = true
		// This fails only if the application has closed the QP, and then there is nothing to
		// flush.
		_ = verbs.Move(r.qp, verbs.StateErr)
	}
}
