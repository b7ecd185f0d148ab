package rdmacm

import (
	"errors"

	"github.com/softrnic/softrnic/verbs"
)

// CreateSRQ creates the ID's SRQ (rdma_create_srq, rdma_create_srq_ex), which CreateQP uses for the
// QP. The ID must be bound to a device. If attr has an XRCD, or the ID's QPType is XRC_RECV, it is
// an XRC SRQ. The application sends its number to the peer.
//
// A nil pd, and for an XRC SRQ a nil XRCD, mean the device's default ones, which all IDs share. For
// a nil CQ of an XRC SRQ, CreateSRQ creates one with a completion channel. It is as large as the
// SRQ, and is closed with it.
func (id *ID) CreateSRQ(pd *verbs.PD, attr *verbs.SRQInitAttr) error {
	const op = "create SRQ"
	if attr == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "no attributes")
	}
	if err := id.lock(op, bound, addrResolved, routeResolved, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	switch {
	case id.dev == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is not bound to a device yet")
	case id.srq() != nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has an SRQ already")
	case pd != nil && pd.Device() != id.dev:
		return verbs.Errorf(verbs.ErrInvalid, op, "the PD is on %s, the ID on %s", pd.Device().Name(), id.dev.Name())
	}
	r := &resources{}
	if err := id.makeSRQ(r, pd, *attr); err != nil {
		return errors.Join(err, r.close())
	}
	id.makeExtra().srq = r
	return nil
}

func (id *ID) makeSRQ(r *resources, pd *verbs.PD, init verbs.SRQInitAttr) (err error) {
	if pd == nil {
		if pd, err = id.dev.DefaultPD(); err != nil {
			return err
		}
	}
	if init.XRCD != nil || id.serviceType() == verbs.XRCRecv {
		if init.XRCD == nil {
			if init.XRCD, err = r.useXRCD(id.dev); err != nil {
				return err
			}
		}
		if init.CQ == nil {
			if init.CQ, err = r.makeCQ(id.dev, init.Attr.MaxWR); err != nil {
				return err
			}
		}
	}
	r.srq, err = pd.CreateSRQ(&init)
	return err
}

// SRQ returns the SRQ of CreateSRQ, or nil.
func (id *ID) SRQ() *verbs.SRQ {
	return get(id, func() *verbs.SRQ {
		r := id.srq()
		if r == nil {
			return nil
		}
		return r.srq
	})
}

// CloseSRQ closes the SRQ, and the objects that CreateSRQ created with it (rdma_destroy_srq), as
// Close of the ID does too. It waits for acknowledgements as CloseQP does. The error is ErrBusy
// while a QP uses the SRQ, ErrInvalid without an SRQ, or that of closing an object.
func (id *ID) CloseSRQ() error {
	const op = "close SRQ"
	if err := id.lock(op); err != nil {
		return err
	}
	r := id.srq()
	if r == nil {
		id.mu.Unlock()
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID has no SRQ")
	}
	if err := r.srq.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
		id.mu.Unlock()
		return err
	}
	id.extra.srq = nil
	id.mu.Unlock()
	return r.close()
}
