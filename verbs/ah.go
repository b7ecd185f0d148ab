package verbs

import "sync/atomic"

// AH is an address handle (ibv_ah): the path from a port to another host or to a multicast group,
// for UD QPs of its PD.
type AH struct {
	pd   *PD
	attr AHAttr
	prov ProviderAH
	dead atomic.Bool
}

// CreateAH creates an address handle. It starts the resolution of the neighbour's MAC address
// without waiting for it.
func (pd *PD) CreateAH(attr *AHAttr) (*AH, error) {
	if err := pd.dev.fault("create_ah"); err != nil {
		return nil, err
	}
	const op = "create AH"
	d := pd.dev
	if attr == nil {
		return nil, Errorf(ErrInvalid, op, "no attributes")
	}
	limits, err := d.portLimits(op, attr.PortNum, QPAttrPort|QPAttrAV)
	if err != nil {
		return nil, err
	}
	if err := limits.checkAV(op, attr); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if pd.dead {
		d.mu.Unlock()
		return nil, Errorf(ErrClosed, op, "the PD is closed")
	}
	if err := d.reserve(op, &d.ahs, d.attr.MaxAH, "MaxAH"); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	pd.ahs++
	d.mu.Unlock()

	ah := &AH{pd: pd, attr: *attr}
	ah.attr.GRH.FlowLabel &= maxFlowLabel
	if ah.prov, err = d.prov.CreateAH(&ah.attr); err != nil {
		ah.release()
		return nil, wrap(op, err)
	}
	return ah, nil
}

// CreateAHFromWC creates the address handle for replying to a datagram: it calls InitAHFromWC and
// CreateAH (ibv_create_ah_from_wc).
func (pd *PD) CreateAHFromWC(port uint8, wc *WC, grh []byte) (*AH, error) {
	attr, err := pd.dev.InitAHFromWC(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(&attr)
}

// Query returns the attributes that the handle was created with.
func (ah *AH) Query() (AHAttr, error) {
	if ah.dead.Load() {
		return AHAttr{}, Errorf(ErrClosed, "query AH", "it is closed")
	}
	return ah.attr, nil
}

// Close destroys the handle (ibv_destroy_ah). Datagrams of work requests that are still in a send
// queue with it may be lost; new work requests with it are rejected. The error is ErrClosed after
// the first Close.
func (ah *AH) Close() error {
	if err := ah.pd.dev.fault("destroy_ah"); err != nil {
		return err
	}
	if ah.dead.Swap(true) {
		return Errorf(ErrClosed, "close AH", "it is already closed")
	}
	ah.prov.Destroy()
	ah.release()
	return nil
}

func (ah *AH) release() {
	d := ah.pd.dev
	d.mu.Lock()
	d.ahs--
	ah.pd.ahs--
	d.mu.Unlock()
}
