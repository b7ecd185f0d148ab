package verbs

import "sync/atomic"

// AH is an address handle (ibv_ah): the way from a port to another host or to a multicast group, for UD QPs of its PD.
type AH struct {
	pd   *PD
	attr AHAttr
	prov ProviderAH
	dead atomic.Bool
}

// CreateAH makes an address handle. The neighbour's address is looked for from then on, but not waited for.
func (pd *PD) CreateAH(attr *AHAttr) (*AH, error) {
	const op = "create AH"
	d := pd.dev
	if attr == nil {
		return nil, Errorf(ErrInvalid, op, "no attributes")
	}
	env, err := d.portEnv(op, attr.PortNum, QPAttrPort|QPAttrAV)
	if err != nil {
		return nil, err
	}
	if err := env.checkAV(op, attr); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if pd.dead {
		d.mu.Unlock()
		return nil, Errorf(ErrDestroyed, op, "the PD is gone")
	}
	if err := d.reserve(op, &d.ahs, d.attr.MaxAH, "MaxAH"); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	pd.ahs++
	d.mu.Unlock()

	ah := &AH{pd: pd, attr: *attr}
	if ah.prov, err = d.prov.CreateAH(&ah.attr); err != nil {
		ah.release()
		return nil, wrap(op, err)
	}
	return ah, nil
}

// CreateAHFromWC makes the address handle that answers a datagram: InitAHFromWC and CreateAH.
func (pd *PD) CreateAHFromWC(port uint8, wc *WC, grh []byte) (*AH, error) {
	attr, err := pd.dev.InitAHFromWC(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(&attr)
}

// Query returns what the handle was made with.
func (ah *AH) Query() (AHAttr, error) {
	if ah.dead.Load() {
		return AHAttr{}, Errorf(ErrDestroyed, "query AH", "it is destroyed")
	}
	return ah.attr, nil
}

// PD is the protection domain.
func (ah *AH) PD() *PD { return ah.pd }

// Provider is the provider's half.
func (ah *AH) Provider() ProviderAH { return ah.prov }

// Destroy ends the handle. Work requests that still wait in a send queue with it are lost on the way, as datagrams may
// be; new ones are refused.
func (ah *AH) Destroy() error {
	if ah.dead.Swap(true) {
		return Errorf(ErrDestroyed, "destroy AH", "it is destroyed already")
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
