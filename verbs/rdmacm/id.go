package rdmacm

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
)

// ID is a communication identifier: one end of a connection, before and after it is established, or
// a listener (rdma_cm_id). Its methods return immediately, and their outcome arrives as an event in
// its channel; those of SyncID wait for it. Any number of goroutines may use an ID. A method that
// is not allowed in the ID's state returns ErrInvalid and changes nothing. After Close it returns
// ErrClosed.
type ID struct {
	signals signals

	// Lock order: deviceIDs.notifying, a listener's ID, another ID, locks of verbs and of the
	// provider, ports, devices, owners, the acceptor's, EventChannel, signals.
	mu      sync.Mutex
	ch      *EventChannel
	context any
	opts    options

	dev     *verbs.Device      // once known
	watched *verbs.Device      // the device whose events the ID handles; others are in extra
	bound   *binding           // nil for the ID of a ConnectRequest
	route   Route              // its addresses are those of LocalAddr and PeerAddr
	cancel  context.CancelFunc // ends the resolution of the address
	extra   *extra             // nil while it would be empty

	conn        ProviderConn
	connectAttr *ConnectAttr // the arguments of Connect, until its outcome is known
	request     *ConnParam   // the peer's request, on the passive side, until it is accepted
	acceptor    *acceptor    // of the listener that created the ID
	qp          *resources   // nil without CreateQP

	addrChangeQueued atomic.Bool // the channel has an AddrChange of the ID
	delivered        atomic.Bool // GetEvent has returned its ConnectRequest

	space                 PortSpace
	localPort, remotePort uint16
	state                 state
	// The QP type that the request asks for; 0 if the port space determines it.
	qpType         verbs.QPType
	connectRetries uint8 // see retryConnect
	addrLost       bool  // dev no longer has the local address
	established    bool  // Established was reported
	autoDisconnect bool  // Disconnect is called when the peer disconnects
	disconnected   bool  // Disconnect was called, with success
	exempt         bool  // see exemptFromFaults
}

// extra has fields that few IDs need.
type extra struct {
	watched   []*verbs.Device
	listeners []deviceListener
	groups    map[netip.Addr]*membership
	srq       *resources // nil without CreateSRQ
}

// makeExtra returns extra, and allocates it if necessary.
func (id *ID) makeExtra() *extra {
	if id.extra == nil {
		id.extra = &extra{}
	}
	return id.extra
}

// listeners, groups and srq return the fields of extra.
func (id *ID) listeners() []deviceListener {
	if id.extra == nil {
		return nil
	}
	return id.extra.listeners
}

func (id *ID) groups() map[netip.Addr]*membership {
	if id.extra == nil {
		return nil
	}
	return id.extra.groups
}

func (id *ID) srq() *resources {
	if id.extra == nil {
		return nil
	}
	return id.extra.srq
}

// deviceListener is the provider's listener on one device.
type deviceListener struct {
	dev *verbs.Device
	io.Closer
}

type options struct {
	transports      []verbs.Transport
	reuse, afOnly   bool
	afOnlySet       bool // afOnly is the application's
	tos, ackTimeout uint8
}

// state is the state of an ID. From connecting on, the ProviderConn has a state of its own.
type state uint8

const (
	idle state = iota
	bound
	resolvingAddr
	addrResolved
	routeResolved
	listening
	connecting // by Connect
	requested  // by the peer, not yet answered
	accepted   // by Accept
	rejected   // by Reject
	deviceRemoved
	closed
)

var stateNames = [...]string{"idle", "bound", "resolving an address", "address resolved", "route resolved", "listening",
	"connecting or connected", "requested by the peer", "accepted", "rejected", "on a device that was removed", "closed"}

func (s state) String() string { return stateNames[s] }

// CreateID creates an ID (rdma_create_id). context is for the application: see ID.Context.
func (c *EventChannel) CreateID(space PortSpace, context any) (*ID, error) {
	const op = "create ID"
	switch space {
	case TCP, UDP, IB, IPoIB:
	default:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "%v is not TCP, UDP, IB or IPoIB", space)
	}
	if err := c.fault(op, c.devs...); err != nil {
		return nil, err
	}
	if err := c.addID(op); err != nil {
		return nil, err
	}
	id := newID(c, space, context)
	id.opts.transports = []verbs.Transport{verbs.RoCEv2}
	return id, nil
}

func newID(c *EventChannel, space PortSpace, context any) *ID {
	return &ID{space: space, ch: c, context: context}
}

// lock locks the ID if it is in one of the allowed states. Without allowed states, any state except
// closed will do.
func (id *ID) lock(op string, allowed ...state) error {
	id.mu.Lock()
	if err := id.fault(op); err != nil {
		id.mu.Unlock()
		return err
	}
	id.mu.Unlock()
	return id.lockOwn(op, allowed...)
}

// lockOwn is lock for a call that this package makes itself, which no fault hits.
func (id *ID) lockOwn(op string, allowed ...state) error {
	id.mu.Lock()
	switch {
	case id.state == closed:
		id.mu.Unlock()
		return verbs.Errorf(verbs.ErrClosed, op, "the ID is closed")
	case id.state == deviceRemoved && len(allowed) > 0:
		id.mu.Unlock()
		return errDeviceGone(op)
	case len(allowed) > 0 && !slices.Contains(allowed, id.state):
		defer id.mu.Unlock()
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is %v", id.state)
	}
	return nil
}

// Close closes the ID, its QP and SRQ, and the objects that CreateQP and CreateSRQ created with
// them (rdma_destroy_id, rdma_destroy_ep). It ends a connection or rejects a request. Events that
// GetEvent has not returned are dropped, and requests among them are rejected. Close waits until
// the other events are acknowledged. The IDs of requests that GetEvent has returned are not
// affected. If UseQP gave an iWARP QP to a connected ID, Close moves the QP to ERR. Close does not
// change other QPs that the application owns.
//
// The error is ErrClosed after the first Close. It is ErrBusy if a QP or a CQ that the ID created
// is still used, for example by a QP of the application; the ID is closed nevertheless.
func (id *ID) Close() error {
	if err := id.faultUnlocked("close ID"); err != nil {
		return err
	}
	return id.close()
}

// close is Close for this package's own use.
func (id *ID) close() error {
	if err := id.lockOwn("close ID"); err != nil {
		return err
	}
	id.state = closed
	var closers []io.Closer
	for _, l := range id.listeners() {
		closers = append(closers, l.Closer)
	}
	for _, m := range id.groups() {
		closers = append(closers, m.Closer)
	}
	id.detachGroups()
	ch, conn := id.ch, id.conn
	if id.cancel != nil {
		id.cancel()
	}
	if conn != nil {
		conn.Close()
		// Otherwise the QP may have another connection.
		connected := id.established && !id.disconnected && !id.signals.hasEnded()
		if qp := id.qp; connected && qp != nil && qp.appOwned && qp.qp.Transport() == verbs.IWARP {
			id.failQP() // as kernels do, because its stream has ended; a RoCE QP can continue without its ID
		}
	}
	if id.acceptor != nil {
		id.acceptor.remove(id.conn)
	}
	qp, srq := id.qp, id.srq()
	qp.releaseQP(id)
	id.signals.end()
	id.unwatch()
	id.qp, id.extra = nil, nil
	id.mu.Unlock()

	err := errors.Join(qp.close(), srq.close())
	for _, c := range closers {
		err = errors.Join(err, c.Close())
	}
	ports.release(id.bound)
	for _, e := range ch.removeID(id) {
		if e.ListenID == id {
			err = errors.Join(err, e.ID.close())
		}
	}
	_ = id.signals.waitAcked(context.Background(), ch.clock())
	return err
}

// Migrate moves the ID to another channel on the same devices (rdma_migrate_id), with the events
// that GetEvent has not returned. Then it waits until the other events are acknowledged, or ctx
// ends.
func (id *ID) Migrate(ctx context.Context, to *EventChannel) error {
	if err := id.faultUnlocked("migrate ID"); err != nil {
		return err
	}
	return id.migrateTo(ctx, to)
}

// migrateTo is Migrate for this package's own use.
func (id *ID) migrateTo(ctx context.Context, to *EventChannel) error {
	const op = "migrate ID"
	if to == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "the event channel is nil; use MigrateToSync to make a SyncID of the ID")
	}
	if err := id.lockOwn(op); err != nil {
		return err
	}
	if err := id.migrate(op, to); err != nil {
		id.mu.Unlock()
		return err
	}
	id.mu.Unlock()
	if err := id.signals.waitAcked(ctx, to.clock()); err != nil {
		return &verbs.Error{Op: op, Detail: "wait for acknowledgements: " + err.Error(), Err: err}
	}
	return nil
}

// migrate moves an ID, which is locked, and the IDs of the requests among its events. It locks
// these too, so that their own events follow their ConnectRequest.
func (id *ID) migrate(op string, to *EventChannel) error {
	if !sameDevices(id.ch.devs, to.devs) {
		return verbs.Errorf(verbs.ErrInvalid, op, "the event channel is on other devices")
	}
	if err := to.addID(op); err != nil {
		return err
	}
	events := id.ch.removeID(id)
	id.ch = to
	for _, e := range events {
		if e.ListenID != id {
			continue
		}
		child := e.ID
		child.mu.Lock()
		defer child.mu.Unlock()
		if err := to.addID(op); err == nil { // cannot fail: the channel has this ID already
			defer to.add(child.ch.removeID(child)...)
			child.ch = to
		}
	}
	to.add(events...)
	return nil
}

func sameDevices(a, b []*verbs.Device) bool {
	return !slices.ContainsFunc(a, func(d *verbs.Device) bool { return !slices.Contains(b, d) })
}

// Done returns a channel that is closed when the connection is disconnected, rejected or has
// failed, or when the ID is closed.
func (id *ID) Done() <-chan struct{} { return id.signals.ended() }

// PortSpace returns the port space that the ID was created with.
func (id *ID) PortSpace() PortSpace { return id.space }

// Context returns the context of CreateID, or of the last SetContext. The ID of a ConnectRequest
// has that of its listener.
func (id *ID) Context() any { return get(id, func() any { return id.context }) }

// SetContext sets Context.
func (id *ID) SetContext(context any) {
	id.mu.Lock()
	id.context = context
	id.mu.Unlock()
}

// Channel returns the event channel.
func (id *ID) Channel() *EventChannel { return get(id, func() *EventChannel { return id.ch }) }

// Device returns the device that the ID is bound to; nil while it is not bound to one.
func (id *ID) Device() *verbs.Device { return get(id, func() *verbs.Device { return id.dev }) }

// PortNum returns the port of the device, 0 while the ID has none.
func (id *ID) PortNum() uint8 { return get(id, func() uint8 { return id.route.PortNum }) }

// Route returns the route to the peer, which is valid after RouteResolved.
func (id *ID) Route() Route { return get(id, func() Route { return id.route }) }

// Transport returns the wire protocol of a connection or request, otherwise the first of
// SetTransports.
func (id *ID) Transport() verbs.Transport { return get(id, id.transport) }

func (id *ID) transport() verbs.Transport {
	if id.route.Dst.IsValid() || len(id.opts.transports) == 0 {
		return id.route.Transport
	}
	return id.opts.transports[0]
}

// QPType returns the type of the connection's QP (rdma_cm_id.qp_type). The port space determines
// it, or for XRC_RECV the peer's request. In port space IB, CreateQP may choose another type.
func (id *ID) QPType() verbs.QPType { return get(id, id.serviceType) }

func (id *ID) serviceType() verbs.QPType {
	switch qp := id.ownQP(); {
	case qp != nil:
		return qp.Type()
	case id.qpType != 0:
		return id.qpType
	case id.space == UDP || id.space == IPoIB:
		return verbs.UD
	}
	return verbs.RC
}

// LocalAddr returns the local address and port (rdma_get_local_addr, rdma_get_src_port); not valid
// before Bind or AddrResolved.
func (id *ID) LocalAddr() netip.AddrPort { return get(id, id.local) }

func (id *ID) local() netip.AddrPort {
	switch {
	case id.route.Src.IsValid():
		return netip.AddrPortFrom(id.route.Src, id.localPort)
	case id.bound != nil: // to all addresses
		return id.bound.addr
	}
	return netip.AddrPort{}
}

// PeerAddr returns the peer's address and port (rdma_get_peer_addr, rdma_get_dst_port); not valid
// before AddrResolved.
func (id *ID) PeerAddr() netip.AddrPort { return get(id, id.remote) }

func (id *ID) remote() netip.AddrPort {
	if !id.route.Dst.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(id.route.Dst, id.remotePort)
}

// get returns the result of f, called with the ID locked.
func get[T any](id *ID, f func() T) T {
	id.mu.Lock()
	defer id.mu.Unlock()
	return f()
}

// SetTOS sets the IP type of service of packets (RDMA_OPTION_ID_TOS), before Connect. The IDs of a
// listener's requests inherit it.
func (id *ID) SetTOS(tos uint8) error {
	return id.setOption("set TOS", func() { id.opts.tos, id.route.TOS = tos, tos },
		idle, bound, resolvingAddr, addrResolved, routeResolved, listening, requested)
}

// SetReuseAddr lets IDs share an address and port while none of them listens
// (RDMA_OPTION_ID_REUSEADDR). It is called before Bind or ResolveAddr. As in Linux, true is also
// allowed after them, until Listen or Connect.
func (id *ID) SetReuseAddr(reuse bool) error {
	allowed := []state{idle}
	if reuse {
		allowed = append(allowed, bound, resolvingAddr, addrResolved, routeResolved)
	}
	return id.setOption("set reuse address", func() {
		id.opts.reuse = reuse
		if id.bound != nil {
			ports.share(id.bound)
		}
	}, allowed...)
}

// SetAFOnly restricts an unspecified address to its own address family (RDMA_OPTION_ID_AFONLY),
// before Bind. By default 0.0.0.0 is restricted, and :: means all IPv4 and IPv6 addresses, as in
// Linux.
func (id *ID) SetAFOnly(only bool) error {
	return id.setOption("set AF only", func() { id.opts.afOnly, id.opts.afOnlySet = only, true }, idle)
}

// SetAckTimeout sets the QP's local ACK timeout to 4.096 µs × 2^n, 0 ≤ n ≤ 31
// (RDMA_OPTION_ID_ACK_TIMEOUT), before Connect or Accept. With 0 the provider chooses it.
func (id *ID) SetAckTimeout(n uint8) error {
	const op = "set ACK timeout"
	if n > 31 {
		return verbs.Errorf(verbs.ErrInvalid, op, "%d is not in 0–31", n)
	}
	return id.setOption(op, func() { id.opts.ackTimeout = n },
		idle, bound, resolvingAddr, addrResolved, routeResolved, listening, requested)
}

// SetTransports sets the wire protocols, before ResolveAddr or Listen. A listener serves all of
// them. An active ID uses the first that has a route to the peer. The default is RoCEv2 only.
func (id *ID) SetTransports(t ...verbs.Transport) error {
	const op = "set transports"
	if len(t) == 0 {
		return verbs.Errorf(verbs.ErrInvalid, op, "no transport is given")
	}
	return id.setOption(op, func() { id.opts.transports = slices.Clone(t) }, idle, bound)
}

// watch makes the ID handle the events of a device. The ID is locked.
func (id *ID) watch(op string, d *verbs.Device) error {
	if id.watched == d || id.extra != nil && slices.Contains(id.extra.watched, d) {
		return nil
	}
	if err := devices.watch(op, d, id); err != nil {
		return err
	}
	if id.watched == nil {
		id.watched = d
	} else {
		r := id.makeExtra()
		r.watched = append(r.watched, d)
	}
	return nil
}

// unwatch undoes watch for all devices.
func (id *ID) unwatch() {
	if id.watched != nil {
		devices.unwatch(id, id.watched)
		id.watched = nil
	}
	if id.extra != nil {
		for _, d := range id.extra.watched {
			devices.unwatch(id, d)
		}
		id.extra.watched = nil
	}
}

// setOption calls f with the ID locked, if it is in one of the allowed states.
func (id *ID) setOption(op string, f func(), allowed ...state) error {
	if err := id.lock(op, allowed...); err != nil {
		return err
	}
	f()
	id.mu.Unlock()
	return nil
}
