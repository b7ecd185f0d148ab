package verbs

// DeviceAttrEx has further attributes of a device (ibv_device_attr_ex). It has no fields for
// features that no provider supports: tag matching, RSS, TSO, device memory.
type DeviceAttrEx struct {
	DeviceAttr
	ODP                     ODPCaps
	CompletionTimestampMask uint64 // the valid bits of Poller.CompletionTS
	HCACoreClock            uint64 // kHz; the frequency of Device.RawClock
	CQModeration            CQModeration
	PhysPortCntEx           int
}

// ODPCaps describes on-demand paging (ibv_odp_caps). Memory is never pinned, so every operation of
// every QP type works on any region. Implicit means a region of the whole address space, which is
// not possible with Go's memory.
type ODPCaps struct{ Support, Implicit bool }

// QueryDeviceEx returns the device's attributes (ibv_query_device_ex).
func (d *Device) QueryDeviceEx() DeviceAttrEx {
	attr := d.QueryDevice()
	return DeviceAttrEx{
		DeviceAttr:              attr,
		ODP:                     ODPCaps{Support: true},
		CompletionTimestampMask: 1<<63 - 1,
		HCACoreClock:            1_000_000,
		CQModeration:            CQModeration{MaxCQCount, MaxCQPeriod},
		PhysPortCntEx:           int(attr.PhysPortCnt),
	}
}

// defaultPKey is the only partition key on Ethernet.
const defaultPKey = 0xffff

// QueryPKey returns an entry of a port's P_Key table (ibv_query_pkey).
func (d *Device) QueryPKey(port uint8, index int) (uint16, error) {
	a, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if err := checkRange("query P_Key", "index", index, 0, int(a.PKeyTblLen)-1); err != nil {
		return 0, err
	}
	return defaultPKey, nil
}

// PKeyIndex returns the index of a P_Key in a port's table (ibv_get_pkey_index).
func (d *Device) PKeyIndex(port uint8, pkey uint16) (int, error) {
	a, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if pkey != defaultPKey || a.PKeyTblLen == 0 {
		return 0, Errorf(ErrInvalid, "get P_Key index", "port %d does not have P_Key %#x, only %#x", port, pkey, defaultPKey)
	}
	return 0, nil
}

// ECE has the options of enhanced connection establishment (ibv_ece), which are specific to a
// vendor.
type ECE struct{ VendorID, Options, CompMask uint32 }

// QueryECE returns the QP's options (ibv_query_ece). There are none, because no provider has
// options.
func (qp *QP) QueryECE() (ECE, error) {
	qp.lock()
	defer qp.mu.Unlock()
	return ECE{}, qp.alive("query ECE of")
}

// SetECE accepts the peer's options (ibv_set_ece). It fails with ErrNotSupported if there are any.
func (qp *QP) SetECE(e ECE) error {
	qp.lock()
	defer qp.mu.Unlock()
	if err := qp.alive("set ECE of"); err != nil {
		return err
	}
	if e.Options != 0 {
		return Errorf(ErrNotSupported, qp.op("set ECE of"), "Options %#x of vendor %#x: the device supports none", e.Options, e.VendorID)
	}
	return nil
}

// TD is a thread domain (ibv_td): a promise that its objects are used by one goroutine at a time.
// It has no effect, because uncontended locks are cheap.
type TD struct {
	dev   *Device
	users int // parent domains; protected by dev.mu, as is dead
	dead  bool
}

// AllocTD allocates a thread domain.
func (d *Device) AllocTD() (*TD, error) {
	const op = "allocate TD"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	return &TD{dev: d}, nil
}

// Close deallocates the domain. It fails with ErrBusy while a parent domain uses it.
func (td *TD) Close() error {
	const op = "close TD"
	td.dev.mu.Lock()
	defer td.dev.mu.Unlock()
	switch {
	case td.dead:
		return Errorf(ErrClosed, op, "it is already closed")
	case td.users > 0:
		return Errorf(ErrBusy, op, "%d parent domains use it", td.users)
	}
	td.dead = true
	return nil
}

// ParentDomain combines a PD and a thread domain (ibv_alloc_parent_domain).
type ParentDomain struct {
	pd   *PD
	td   *TD
	dead bool // protected by dev.mu
}

// AllocParentDomain allocates a parent domain of the PD; td may be nil.
func (pd *PD) AllocParentDomain(td *TD) (*ParentDomain, error) {
	const op = "allocate parent domain"
	pd.dev.mu.Lock()
	defer pd.dev.mu.Unlock()
	switch {
	case pd.dead:
		return nil, Errorf(ErrClosed, op, "the PD is closed")
	case td != nil && td.dev != pd.dev:
		return nil, Errorf(ErrInvalid, op, "the TD is of another device")
	case td != nil && td.dead:
		return nil, Errorf(ErrClosed, op, "the TD is closed")
	case td != nil:
		td.users++
	}
	pd.parents++
	return &ParentDomain{pd: pd, td: td}, nil
}

// PD returns the PD in which its objects are created.
func (p *ParentDomain) PD() *PD { return p.pd }

// Close deallocates the domain. Objects that were created in its PD stay.
func (p *ParentDomain) Close() error {
	d := p.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.dead {
		return Errorf(ErrClosed, "close parent domain", "it is already closed")
	}
	p.dead = true
	p.pd.parents--
	if p.td != nil {
		p.td.users--
	}
	return nil
}
