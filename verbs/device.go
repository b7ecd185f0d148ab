package verbs

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Device is an open RDMA device (ibv_context).
type Device struct {
	prov      Provider
	injection atomic.Pointer[Injection] // nil: no faults are injected
	attr      DeviceAttr                // as queried by Open, for the limits
	clock     Clock
	watchers  watchers
	events    asyncQueue
	opened    time.Time // the zero of RawClock
	// Bytes of regions, in the time of a simulation.
	addresses atomic.Uint64
	ended     atomic.Bool // Close has started to close the provider

	// mu protects the counts of objects here and in PD, CQ and CompChannel, and their dead flags.
	// The fast path does not take it.
	mu                           sync.Mutex
	pds, mrs, cqs, qps, channels int
	srqs, mws, ahs, mcastQPs     int
	compCntrs                    int
	mcast                        map[mcastGroup]int // attached QPs
	pdSet                        map[*PD]struct{}
	xrcds                        map[*XRCD]struct{}
	srqNum                       uint32 // the number of the last XRC SRQ
	defaultPD                    *PD    // nil before the first call of DefaultPD
	closed                       bool
	beforeMapped                 func() // of BeforeMappedAccess

	// latencyMu is taken before QP locks.
	latencyMu sync.Mutex
	latencies map[Transport]*Latency // of closed QPs; nil if latency is not measured
}

// Open opens a provider's device (ibv_open_device).
func Open(p Provider) (*Device, error) {
	if p == nil {
		return nil, Errorf(ErrInvalid, "open device", "no provider")
	}
	d := &Device{prov: p, attr: p.QueryDevice(), clock: machine{}, pdSet: make(map[*PD]struct{})}
	if c, ok := p.(Clocked); ok {
		d.clock = c.Clock()
	}
	d.opened = d.clock.Now()
	d.events.init(d.clock)
	p.Watch(d.handleEvent)
	return d, nil
}

// Name returns the device's name, such as "softrnic0".
func (d *Device) Name() string { return d.prov.Name() }

// Clock returns the device's clock, by which all its times and timeouts are. It is the machine's,
// unless the network is simulated.
func (d *Device) Clock() Clock { return d.clock }

// Provider returns the argument of Open. It is for packages such as rdmacm that need further
// methods of a provider.
func (d *Device) Provider() Provider { return d.prov }

// QueryDevice returns the device's attributes (ibv_query_device).
func (d *Device) QueryDevice() DeviceAttr { return d.prov.QueryDevice() }

// QueryPort returns a port's attributes (ibv_query_port). Ports count from 1. The error is
// ErrClosed when the device is closed, ErrInvalid if it does not have the port, or that of the
// provider.
func (d *Device) QueryPort(port uint8) (PortAttr, error) {
	if err := d.fault("query_port"); err != nil {
		return PortAttr{}, err
	}
	return d.queryPort(port)
}

// queryPort is QueryPort for this package's own use, which no fault hits.
func (d *Device) queryPort(port uint8) (PortAttr, error) {
	if err := d.checkPort("query port", port); err != nil {
		return PortAttr{}, err
	}
	return d.prov.QueryPort(port)
}

// GIDTable returns a snapshot of a port's GIDs (ibv_query_gid_table). Its errors are those of
// QueryPort.
func (d *Device) GIDTable(port uint8) ([]GIDEntry, error) {
	if err := d.fault("query_gid_table"); err != nil {
		return nil, err
	}
	return d.gidTable(port)
}

func (d *Device) gidTable(port uint8) ([]GIDEntry, error) {
	if err := d.checkPort("query GID table", port); err != nil {
		return nil, err
	}
	return d.prov.GIDTable(port)
}

// QueryGID returns the entry of a port's GID table that has the given index (ibv_query_gid_ex).
func (d *Device) QueryGID(port uint8, index int) (GIDEntry, error) {
	if err := d.fault("query_gid"); err != nil {
		return GIDEntry{}, err
	}
	table, err := d.gidTable(port)
	if err != nil {
		return GIDEntry{}, err
	}
	for _, e := range table {
		if e.Index == index {
			return e, nil
		}
	}
	return GIDEntry{}, Errorf(ErrInvalid, "query GID", "port %d has %d GIDs, but none with index %d", port, len(table), index)
}

// BeforeMappedAccess registers a function f that the device calls before it accesses memory that
// may fault: regions with MRInitAttr.Mapped or File. f applies to regions that are registered from
// now on.
//
// The Go runtime needs its handlers of SIGSEGV and SIGBUS to turn a fault into an error. In a
// program with C code that has replaced these handlers, f restores them. f is called with a QP
// locked, at least once per message, so it must be fast and must not call methods of this package.
func (d *Device) BeforeMappedAccess(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beforeMapped = f
}

// HWCounters returns a snapshot of the device's counters by name. Linux has them in the directories
// hw_counters of /sys/class/infiniband, and `rdma statistic show` prints them. The provider's
// documentation describes each counter; injected_faults counts what was made to fail on purpose
// (see Injector). Without counters the map is nil. The error is ErrClosed
// when the device is closed, or that of the provider.
func (d *Device) HWCounters() (map[string]uint64, error) {
	const op = "query counters"
	if err := d.checkOpen(op); err != nil {
		return nil, err
	}
	c, err := d.prov.HWCounters()
	if c != nil {
		c["injected_faults"] = d.injectedFaults()
	}
	return c, wrapNonNil(op, err)
}

// PortCounters returns a snapshot of a port's counters by name. Linux has them in the directories
// counters of /sys/class/infiniband. Without counters the map is nil. The errors are those of
// QueryPort.
func (d *Device) PortCounters(port uint8) (map[string]uint64, error) {
	const op = "query port counters"
	if err := d.checkPort(op, port); err != nil {
		return nil, err
	}
	c, err := d.prov.PortCounters(port)
	return c, wrapNonNil(op, err)
}

// checkPort returns an error if the device is closed or does not have the port.
func (d *Device) checkPort(op string, port uint8) error {
	if err := d.checkOpen(op); err != nil {
		return err
	}
	if port < 1 || port > d.attr.PhysPortCnt {
		return Errorf(ErrInvalid, op, "port %d is not in 1–%d", port, d.attr.PhysPortCnt)
	}
	return nil
}

func (d *Device) checkOpen(op string) error {
	if d.ended.Load() {
		return Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	return nil
}

// Progress receives packets that have arrived, and sends packets that were delayed to share a
// frame, on the calling goroutine. It does not wait, and handles at most one batch of each link. It
// returns false if there was nothing to do, or the device is closed. CQ.Poll calls it by itself
// (see [Wait]). It is for programs that read CQInitAttr.Ready instead of calling Poll while they
// wait.
//
// After Progress, the device expects further calls for a millisecond or two, and makes little
// progress by itself until then or until EndProgress. The caller must not hold a lock that a
// function of Watch or OnEvent takes.
func (d *Device) Progress() bool { return !d.ended.Load() && d.prov.Progress() }

// EndProgress announces that the program will not call Progress or Poll again soon: the device
// makes progress by itself from now on. [CompChannel.GetEvent] and TryGetEvent do the same if there
// is no event.
func (d *Device) EndProgress() {
	if !d.ended.Load() {
		d.prov.EndProgress()
	}
}

// Shutdown shuts the device down cleanly, so that peers need not wait for a timeout. It is for a
// program that is about to exit with open objects. Shutdown disconnects connections, rejects or
// cancels those not yet established, and closes listeners. Every QP goes to ERR, which flushes
// posted work requests, so work that must be done has to be complete before. IDs of rdma_cm get
// DeviceRemoval. The device gets EventDeviceFatal, after which it accepts no new connections.
//
// Shutdown then waits until every peer has acknowledged, a time that the provider chooses has
// passed, or ctx ends. In the last case it returns the error of ctx. The objects of the device must
// still be closed, and the device closed.
func (d *Device) Shutdown(ctx context.Context) error {
	const op = "shut down device"
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return Errorf(ErrClosed, op, "%s is already closed", d.Name())
	}
	return wrapNonNil(op, d.prov.Shutdown(ctx))
}

// Close closes the device (ibv_close_device). The error is ErrBusy while objects are left on it,
// other than the default PD; ErrClosed after the first Close; or that of the provider.
func (d *Device) Close() error {
	const op = "close device"
	if err := d.markClosed(op); err != nil {
		return err
	}
	d.ended.Store(true)
	d.notifyWatchers(EventDeviceFatal, 0)
	d.events.notifier.Close()
	return d.prov.Close()
}

// markClosed marks the device as closed, and deallocates its default PD.
func (d *Device) markClosed(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	pds := d.pds
	if d.defaultPD != nil {
		pds--
	}
	switch {
	case d.closed:
		return Errorf(ErrClosed, op, "%s is already closed", d.Name())
	case pds+d.cqs+d.channels+len(d.xrcds)+d.mrs+d.compCntrs > 0:
		return Errorf(ErrBusy, op, "%d PDs, %d CQs, %d completion channels, %d XRC domains, %d MRs and %d completion counters are left",
			pds, d.cqs, d.channels, len(d.xrcds), d.mrs, d.compCntrs)
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

// reserve counts a new object, if the device is open and below its limit. d.mu is held.
func (d *Device) reserve(op string, count *int, limit int, limitName string) error {
	if d.closed {
		return Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	if *count >= limit {
		return Errorf(ErrNoMemory, op, "the device has reached its %s of %d", limitName, limit)
	}
	*count++
	return nil
}

// checkRange returns an error if an integer argument is out of its bounds.
func checkRange(op, arg string, v, lo, hi int) error {
	if v < lo || v > hi {
		return Errorf(ErrInvalid, op, "%s %d is not in %d–%d", arg, v, lo, hi)
	}
	return nil
}

// wrap adds the operation to an error, which is not nil.
func wrap(op string, err error) error { return &Error{Op: op, Err: err} }

// wrapNonNil is like wrap for an error that may be nil.
func wrapNonNil(op string, err error) error {
	if err == nil {
		return nil
	}
	return wrap(op, err)
}

// mcastGroup is a multicast group on a device's port.
type mcastGroup struct {
	port  uint8
	group GID
}

// Latency is a histogram of times. Class i counts times t with Bound(i-1) ≤ t < Bound(i). The last
// class has no upper bound.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Classes [24]uint64
}
