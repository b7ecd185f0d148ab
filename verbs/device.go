package verbs

import (
	"fmt"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Device is an open RDMA device (ibv_context).
type Device struct {
	prov     Provider
	attr     DeviceAttr // as it was when the device was opened: the limits
	watchers watchers
	events   asyncQueue
	opened   time.Time // its clock's zero

	// mu guards what exists: these counts, those in PD, CQ and CompChannel, and their dead flags. Nothing that moves
	// data takes it.
	mu                       sync.Mutex
	pds, mrs, cqs, qps, chns int
	srqs, mws, ahs, mcastQPs int
	mcast                    map[mcastGroup]int // QPs attached
	domains                  map[*PD]struct{}
	xrcds                    map[*XRCD]struct{}
	srqNum                   uint32 // of the last XRC SRQ
	defaultPD                *PD    // nil: nobody has asked for it
	closed                   bool
}

// Open opens a provider's device.
func Open(p Provider) (*Device, error) {
	if p == nil {
		return nil, Errorf(ErrInvalid, "open device", "no provider")
	}
	d := &Device{prov: p, attr: p.QueryDevice(), opened: time.Now(), domains: make(map[*PD]struct{})}
	d.events.bell = wakeup.New()
	p.Watch(d.happened)
	return d, nil
}

// Name is the device's name, such as "softrnic0".
func (d *Device) Name() string { return d.prov.Name() }

// Provider is what Open was given: for packages that need more of a provider than this one does, as rdmacm.
func (d *Device) Provider() Provider { return d.prov }

// QueryDevice describes the device.
func (d *Device) QueryDevice() DeviceAttr { return d.prov.QueryDevice() }

// QueryPort describes a port; they count from 1.
func (d *Device) QueryPort(port uint8) (PortAttr, error) {
	if err := d.checkPort("query port", port); err != nil {
		return PortAttr{}, err
	}
	return d.prov.QueryPort(port)
}

// GIDTable is a snapshot of a port's GIDs.
func (d *Device) GIDTable(port uint8) ([]GIDEntry, error) {
	if err := d.checkPort("query GID table", port); err != nil {
		return nil, err
	}
	return d.prov.GIDTable(port)
}

// QueryGID is one entry of a port's GID table.
func (d *Device) QueryGID(port uint8, index int) (GIDEntry, error) {
	table, err := d.GIDTable(port)
	if err != nil {
		return GIDEntry{}, err
	}
	for _, e := range table {
		if e.Index == index {
			return e, nil
		}
	}
	return GIDEntry{}, Errorf(ErrInvalid, "query GID", "port %d has no GID index %d, it has %d entries", port, index,
		len(table))
}

func (d *Device) checkPort(op string, port uint8) error {
	if port < 1 || port > d.attr.PhysPortCnt {
		return Errorf(ErrInvalid, op, "port %d is not in 1–%d", port, d.attr.PhysPortCnt)
	}
	return nil
}

// Close closes the device. ErrBusy while any object on it is left.
func (d *Device) Close() error {
	const op = "close device"
	if err := d.shut(op); err != nil {
		return err
	}
	d.tell(EventDeviceFatal, 0)
	d.events.bell.Close()
	return d.prov.Close()
}

// shut marks the device as closed, and ends its default PD.
func (d *Device) shut(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	pds := d.pds
	if d.defaultPD != nil {
		pds--
	}
	switch {
	case d.closed:
		return Errorf(ErrDestroyed, op, "%s is closed already", d.Name())
	case pds+d.cqs+d.chns+len(d.xrcds) > 0:
		return Errorf(ErrBusy, op, "%d PDs, %d CQs, %d completion channels and %d XRC domains are left", pds, d.cqs, d.chns, len(d.xrcds))
	}
	if d.defaultPD != nil {
		if err := d.defaultPD.dealloc(op); err != nil {
			return err
		}
		d.defaultPD = nil
	}
	d.closed = true
	return nil
}

// reserve counts a new object of a kind, if the device is open and has room. d.mu is held.
func (d *Device) reserve(op string, count *int, limit int, limitName string) error {
	if d.closed {
		return Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	if *count >= limit {
		return Errorf(ErrNoMemory, op, "the device has its %s of %d already", limitName, limit)
	}
	*count++
	return nil
}

// checkRange is the one-line error for an integer argument out of its bounds.
func checkRange(op, arg string, v, lo, hi int) error {
	if v < lo || v > hi {
		return Errorf(ErrInvalid, op, "%s %d is not in %d–%d", arg, v, lo, hi)
	}
	return nil
}

// wrap makes a provider's error say what was tried.
func wrap(op string, err error) error { return &Error{Op: op, Detail: fmt.Sprint(err), Err: err} }
