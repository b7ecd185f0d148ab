package verbs

import "sync"

// PD is a protection domain (ibv_pd): QPs reach only the memory regions of their own PD.
type PD struct {
	dev *Device

	// guarded by dev.mu
	mrs, mws, nqps, srqs, ahs int
	parents                   int // parent domains
	dead                      bool

	qpsMu sync.Mutex // taken before QP locks
	qps   map[*QP]struct{}

	keysMu sync.RWMutex // taken after QP locks
	keys   map[uint32]*MR
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allocPD()
}

// DefaultPD is the PD of QPs that package rdmacm makes without one. It is there from the first call on until the device
// is closed.
func (d *Device) DefaultPD() (*PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.defaultPD == nil {
		pd, err := d.allocPD()
		if err != nil {
			return nil, err
		}
		d.defaultPD = pd
	}
	return d.defaultPD, nil
}

func (d *Device) allocPD() (*PD, error) {
	if err := d.reserve("allocate PD", &d.pds, d.attr.MaxPD, "MaxPD"); err != nil {
		return nil, err
	}
	pd := &PD{dev: d, qps: make(map[*QP]struct{}), keys: make(map[uint32]*MR)}
	d.domains[pd] = struct{}{}
	return pd, nil
}

// Device is the device that the PD is on.
func (pd *PD) Device() *Device { return pd.dev }

// Dealloc gives the PD up. ErrBusy while it has any object.
func (pd *PD) Dealloc() error {
	const op = "deallocate PD"
	pd.dev.mu.Lock()
	defer pd.dev.mu.Unlock()
	if pd == pd.dev.defaultPD {
		return Errorf(ErrBusy, op, "the default PD goes with the device")
	}
	return pd.dealloc(op)
}

// dealloc is Dealloc of any PD. dev.mu is held.
func (pd *PD) dealloc(op string) error {
	if pd.dead {
		return Errorf(ErrDestroyed, op, "the PD is gone already")
	}
	if pd.parents > 0 {
		return Errorf(ErrBusy, op, "%d parent domains are left", pd.parents)
	}
	if pd.mrs+pd.mws+pd.nqps+pd.srqs+pd.ahs > 0 {
		return Errorf(ErrBusy, op, "%d MRs, %d MWs, %d QPs, %d SRQs and %d AHs are left", pd.mrs, pd.mws, pd.nqps, pd.srqs,
			pd.ahs)
	}
	pd.dead = true
	pd.dev.pds--
	delete(pd.dev.domains, pd)
	return nil
}

// lookup finds a region of the PD by its lkey.
func (pd *PD) lookup(lkey uint32) *MR {
	pd.keysMu.RLock()
	defer pd.keysMu.RUnlock()
	return pd.keys[lkey]
}
