package verbs

// DeviceAttrEx is what DeviceAttr has no room for (ibv_device_attr_ex). What a device cannot do is not in it: on-demand
// paging of a whole address space, tag matching, RSS, TSO, device memory.
type DeviceAttrEx struct {
	DeviceAttr
	ODP                     ODPCaps
	CompletionTimestampMask uint64 // the bits of Poller.CompletionTS that count
	HCACoreClock            uint64 // kHz, of Device.RawClock
	CQModeration            CQModeration
	PhysPortCntEx           int
}

// ODPCaps says what on-demand paging can do (ibv_odp_caps). Nothing is pinned, so that every operation of every QP type
// can use any region; Implicit, a region of the whole address space, Go's memory does not allow.
type ODPCaps struct{ Support, Implicit bool }

// QueryDeviceEx describes the device (ibv_query_device_ex).
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

// defaultPKey is the one partition key that Ethernet has.
const defaultPKey = 0xffff

// QueryPKey is one entry of a port's P_Key table.
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

// PKeyIndex is where a port's table has a P_Key.
func (d *Device) PKeyIndex(port uint8, pkey uint16) (int, error) {
	a, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if pkey != defaultPKey || a.PKeyTblLen == 0 {
		return 0, Errorf(ErrInvalid, "get P_Key index", "port %d has no P_Key %#x, only %#x", port, pkey, defaultPKey)
	}
	return 0, nil
}

// ECE is enhanced connection establishment's offer (ibv_ece): options of one vendor's devices.
type ECE struct{ VendorID, Options, CompMask uint32 }

// QueryECE is the QP's offer: none, as of any device that has no options.
func (qp *QP) QueryECE() (ECE, error) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	return ECE{}, qp.alive("query ECE of")
}

// SetECE takes the peer's offer; ErrNotSupported if it has options.
func (qp *QP) SetECE(e ECE) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if err := qp.alive("set ECE of"); err != nil {
		return err
	}
	if e.Options != 0 {
		return Errorf(ErrNotSupported, qp.op("set ECE of"), "Options %#x of vendor %#x: this device has none", e.Options, e.VendorID)
	}
	return nil
}

// TD is a thread domain (ibv_td): a promise that its objects are used by one goroutine at a time. Locks that nobody
// else takes cost next to nothing here, so it changes nothing.
type TD struct {
	dev   *Device
	users int // parent domains; guarded by dev.mu
	dead  bool
}

// AllocTD makes a thread domain.
func (d *Device) AllocTD() (*TD, error) {
	const op = "allocate TD"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	return &TD{dev: d}, nil
}

// Dealloc ends the domain. ErrBusy while a parent domain has it.
func (td *TD) Dealloc() error {
	const op = "deallocate TD"
	td.dev.mu.Lock()
	defer td.dev.mu.Unlock()
	switch {
	case td.dead:
		return Errorf(ErrDestroyed, op, "it is gone already")
	case td.users > 0:
		return Errorf(ErrBusy, op, "%d parent domains have it", td.users)
	}
	td.dead = true
	return nil
}

// ParentDomain joins a PD and a thread domain (ibv_alloc_parent_domain): what is made in its PD is the thread domain's.
type ParentDomain struct {
	pd   *PD
	td   *TD
	dead bool // guarded by dev.mu
}

// AllocParentDomain makes a parent domain of the PD; td may be nil.
func (pd *PD) AllocParentDomain(td *TD) (*ParentDomain, error) {
	const op = "allocate parent domain"
	pd.dev.mu.Lock()
	defer pd.dev.mu.Unlock()
	switch {
	case pd.dead:
		return nil, Errorf(ErrDestroyed, op, "the PD is gone")
	case td != nil && td.dev != pd.dev:
		return nil, Errorf(ErrInvalid, op, "the TD is of another device")
	case td != nil && td.dead:
		return nil, Errorf(ErrDestroyed, op, "the TD is gone")
	case td != nil:
		td.users++
	}
	pd.parents++
	return &ParentDomain{pd: pd, td: td}, nil
}

// PD is where its objects are made.
func (p *ParentDomain) PD() *PD { return p.pd }

// Dealloc ends the domain; what was made in it stays the PD's.
func (p *ParentDomain) Dealloc() error {
	d := p.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.dead {
		return Errorf(ErrDestroyed, "deallocate parent domain", "it is gone already")
	}
	p.dead = true
	p.pd.parents--
	if p.td != nil {
		p.td.users--
	}
	return nil
}
