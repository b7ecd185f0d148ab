package verbs

import (
	"sync"
	"sync/atomic"
)

// PD is a protection domain (ibv_pd): a QP gives access only to the memory regions of its own PD.
// The receive requests of an SRQ use regions of the SRQ's PD, which may differ from the PD of the
// QP.
type PD struct {
	dev *Device

	// protected by dev.mu
	mrs, mws, nqps, srqs, ahs int
	dead                      bool

	qpsOf [IWARP + 1]atomic.Int32 // the number of QPs of each Transport

	qpsMu      sync.Mutex // taken before QP locks
	qps        map[*QP]struct{}
	backed     bool             // its QPs have the flag backed
	foreignQPs map[*QP]struct{} // QPs of other PDs that use an SRQ of this PD; nil before the first

	keysMu sync.RWMutex // taken after QP locks
	keys   map[uint32]*MR
}

// AllocPD allocates a protection domain (ibv_alloc_pd).
func (d *Device) AllocPD() (*PD, error) {
	if err := d.fault("alloc_pd"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allocPD()
}

// DefaultPD returns the PD that package rdmacm uses for QPs created without one. The first call
// allocates it, and Close of the device deallocates it.
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
	d.pdSet[pd] = struct{}{}
	return pd, nil
}

// allPDs returns the PDs of the device, and those of its XRC domains. mu is held.
func (d *Device) allPDs() []*PD {
	pds := make([]*PD, 0, len(d.pdSet)+len(d.xrcds))
	for pd := range d.pdSet {
		pds = append(pds, pd)
	}
	for x := range d.xrcds {
		pds = append(pds, x.pd)
	}
	return pds
}

// Device returns the PD's device.
func (pd *PD) Device() *Device { return pd.dev }

// Close deallocates the PD (ibv_dealloc_pd). The error is ErrBusy while the PD has objects other
// than null MRs, or if it is the default PD, and ErrClosed after the first Close.
func (pd *PD) Close() error {
	if err := pd.dev.fault("dealloc_pd"); err != nil {
		return err
	}
	const op = "close PD"
	pd.dev.mu.Lock()
	defer pd.dev.mu.Unlock()
	if pd == pd.dev.defaultPD {
		return Errorf(ErrBusy, op, "the default PD is closed by Close of the device")
	}
	return pd.dealloc(op)
}

// dealloc is Close of any PD, including the default one. dev.mu is held.
func (pd *PD) dealloc(op string) error {
	if pd.dead {
		return Errorf(ErrClosed, op, "the PD is already closed")
	}
	if pd.mrs+pd.mws+pd.nqps+pd.srqs+pd.ahs > 0 {
		return Errorf(ErrBusy, op, "%d MRs, %d MWs, %d QPs, %d SRQs and %d AHs are left", pd.mrs, pd.mws, pd.nqps, pd.srqs,
			pd.ahs)
	}
	pd.dead = true
	pd.dev.pds--
	delete(pd.dev.pdSet, pd)
	return nil
}

// addForeignQP records a QP of another PD that uses an SRQ of this PD.
func (pd *PD) addForeignQP(qp *QP) {
	pd.qpsMu.Lock()
	defer pd.qpsMu.Unlock()
	if pd.foreignQPs == nil {
		pd.foreignQPs = make(map[*QP]struct{})
	}
	pd.foreignQPs[qp] = struct{}{}
}

func (pd *PD) removeForeignQP(qp *QP) {
	pd.qpsMu.Lock()
	defer pd.qpsMu.Unlock()
	delete(pd.foreignQPs, qp)
}

// lookup returns the region of the PD that has an lkey, or nil.
func (pd *PD) lookup(lkey uint32) *MR {
	pd.keysMu.RLock()
	defer pd.keysMu.RUnlock()
	return pd.keys[lkey]
}
