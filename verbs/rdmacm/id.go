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

// ID is one end of a connection to be, a connection, or a listener (rdma_cm_id). Its calls return at once, and what
// came of them arrives as events in its channel; SyncID has calls that wait. Any goroutine may call anything at any
// time: a call that does not fit the ID's state gives ErrInvalid and changes nothing, after Destroy ErrDestroyed.
type ID struct {
	space PortSpace
	taken tally
	ended chan struct{} // closed when no connection is or will be there

	// Locks in the order they are taken: deviceIDs.telling, a listener's ID, another ID, those of verbs and of the provider,
	// ports, devices, the acceptor's, EventChannel, tally.
	mu      sync.Mutex
	state   state
	ch      *EventChannel
	context any
	opts    options

	dev    *verbs.Device // once known
	bound  *binding      // nil for what a listener made
	route  Route
	local  netip.AddrPort
	remote netip.AddrPort
	cancel context.CancelFunc // stops what resolves the address

	on        []*verbs.Device // whose events reach the ID
	addrLost  bool            // local is no address of dev any more, and
	changing  atomic.Bool     // an AddrChange that says so is in the channel
	listeners []deviceListener
	groups    map[netip.Addr]*membership

	conn    ProviderConn
	asked   *ConnectAttr // by Connect, until something comes of it
	draws   int          // of ports since
	request ConnParam    // of the peer, on the passive side, and
	qpType  verbs.QPType // what QP it asks for: 0 if the port space says that
	forget  func()       // of the listener that made this ID
	seen    atomic.Bool  // its ConnectRequest was taken from the channel
	qp      *resources   // nil if CreateQP was not called
	srq     *resources   // nil if CreateSRQ was not called
	over    bool         // ended is closed
	up      bool         // Established is reported
	answers bool         // the peer's Disconnected is answered at once
}

// deviceListener is what listens on one of an ID's devices.
type deviceListener struct {
	dev *verbs.Device
	io.Closer
}

type options struct {
	transports      []verbs.Transport
	reuse, afOnly   bool
	tos, ackTimeout uint8
}

// state is how far an ID is. From connecting on, the ProviderConn knows better.
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
	refused    // by Reject
	removed    // with its device
	destroyed
)

var stateNames = [...]string{"idle", "bound", "resolving an address", "address resolved", "route resolved", "listening",
	"connecting or connected", "requested by the peer", "accepted", "rejected", "on a device that is gone", "destroyed"}

func (s state) String() string { return stateNames[s] }

// CreateID makes an ID (rdma_create_id). context is for the application.
func (c *EventChannel) CreateID(space PortSpace, context any) (*ID, error) {
	const op = "create ID"
	switch space {
	case TCP, UDP, IB, IPoIB:
	default:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "%v: give TCP, UDP, IB or IPoIB", space)
	}
	if err := c.attach(op); err != nil {
		return nil, err
	}
	id := newID(c, space, context)
	id.opts.transports = []verbs.Transport{verbs.RoCEv2}
	return id, nil
}

func newID(c *EventChannel, space PortSpace, context any) *ID {
	return &ID{space: space, ch: c, context: context, ended: make(chan struct{})}
}

// lock locks the ID if its state is one of those that fit, any if none is given.
func (id *ID) lock(op string, fit ...state) error {
	id.mu.Lock()
	switch {
	case id.state == destroyed:
		id.mu.Unlock()
		return verbs.Errorf(verbs.ErrDestroyed, op, "the ID is destroyed")
	case id.state == removed && len(fit) > 0:
		id.mu.Unlock()
		return goneError(op)
	case len(fit) > 0 && !slices.Contains(fit, id.state):
		defer id.mu.Unlock()
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is %v", id.state)
	}
	return nil
}

// Destroy ends the ID, its QP and SRQ and what CreateQP and CreateSRQ made with them (rdma_destroy_id, rdma_destroy_ep); a peer is told what
// fits. Events not yet taken vanish, with the requests in them; Destroy waits until those taken are acknowledged. The
// IDs that a listener handed out live on.
func (id *ID) Destroy() error {
	const op = "destroy ID"
	if err := id.lock(op); err != nil {
		return err
	}
	id.state = destroyed
	var closers []io.Closer
	for _, l := range id.listeners {
		closers = append(closers, l.Closer)
	}
	for _, m := range id.groups {
		closers = append(closers, m.Closer)
	}
	id.detach()
	ch, conn := id.ch, id.conn
	if id.cancel != nil {
		id.cancel()
	}
	if conn != nil {
		conn.Close()
	}
	if id.forget != nil {
		id.forget()
	}
	qp, srq := id.qp, id.srq
	id.qp, id.srq = nil, nil
	id.end()
	devices.leave(id, id.on)
	id.mu.Unlock()

	err := errors.Join(qp.destroy(), srq.destroy())
	for _, c := range closers {
		err = errors.Join(err, c.Close())
	}
	ports.release(id.bound)
	for _, e := range ch.withdraw(id) {
		if e.ListenID == id {
			err = errors.Join(err, e.ID.Destroy())
		}
	}
	_ = id.taken.wait(context.Background())
	return err
}

// Migrate moves the ID, with its events not yet taken, to another channel on the same devices (rdma_migrate_id). Then
// it waits until those taken from the old one are acknowledged, or ctx ends.
func (id *ID) Migrate(ctx context.Context, to *EventChannel) error {
	const op = "migrate ID"
	if to == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "no event channel: Synchronous makes a SyncID")
	}
	if err := id.lock(op); err != nil {
		return err
	}
	if err := id.migrate(op, to); err != nil {
		id.mu.Unlock()
		return err
	}
	id.mu.Unlock()
	if err := id.taken.wait(ctx); err != nil {
		return &verbs.Error{Op: op, Detail: "wait for acknowledgement: " + err.Error(), Err: err}
	}
	return nil
}

// migrate moves an ID that is locked. Requests in its events are locked too while they move: their own events stay
// behind theirs.
func (id *ID) migrate(op string, to *EventChannel) error {
	if !sameDevices(id.ch.devs, to.devs) {
		return verbs.Errorf(verbs.ErrInvalid, op, "the event channel is on other devices")
	}
	if err := to.attach(op); err != nil {
		return err
	}
	events := id.ch.withdraw(id)
	id.ch = to
	for _, e := range events {
		if e.ListenID != id {
			continue
		}
		child := e.ID
		child.mu.Lock()
		defer child.mu.Unlock()
		if err := to.attach(op); err == nil { // it cannot be dead: this ID holds it
			defer to.add(child.ch.withdraw(child)...)
			child.ch = to
		}
	}
	to.add(events...)
	return nil
}

func sameDevices(a, b []*verbs.Device) bool {
	return !slices.ContainsFunc(a, func(d *verbs.Device) bool { return !slices.Contains(b, d) })
}

// end tells that no connection is there any more. The ID is locked.
func (id *ID) end() {
	if !id.over {
		id.over = true
		close(id.ended)
	}
}

// Ended is closed when the connection is over: disconnected, refused or failed, or the ID destroyed.
func (id *ID) Ended() <-chan struct{} { return id.ended }

// PortSpace is what CreateID was given.
func (id *ID) PortSpace() PortSpace { return id.space }

// Context is what CreateID was given, for an ID that a listener made that of the listener; or what SetContext set.
func (id *ID) Context() any { return get(id, func() any { return id.context }) }

// SetContext sets Context.
func (id *ID) SetContext(context any) {
	id.mu.Lock()
	id.context = context
	id.mu.Unlock()
}

// Channel is the event channel.
func (id *ID) Channel() *EventChannel { return get(id, func() *EventChannel { return id.ch }) }

// Device is the device that the ID is bound to; nil as long as that may be any.
func (id *ID) Device() *verbs.Device { return get(id, func() *verbs.Device { return id.dev }) }

// DevicePort is the port of the device, 0 as long as there is none.
func (id *ID) DevicePort() uint8 { return get(id, func() uint8 { return id.route.Port }) }

// Route is the way to the peer, once it is resolved.
func (id *ID) Route() Route { return get(id, func() Route { return id.route }) }

// Transport is the wire protocol: of a connection or a request the one in use, else the first of SetTransports.
func (id *ID) Transport() verbs.Transport { return get(id, id.transport) }

func (id *ID) transport() verbs.Transport {
	if id.remote.IsValid() || len(id.opts.transports) == 0 {
		return id.route.Transport
	}
	return id.opts.transports[0]
}

// QPType is the type of QP that the connection is of (rdma_cm_id.qp_type): that of the port space, XRC_RECV if a peer's
// XRC_SEND QP asks. The application chooses it in port space IB, by CreateQP.
func (id *ID) QPType() verbs.QPType { return get(id, id.kind) }

func (id *ID) kind() verbs.QPType {
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

// LocalAddr is the local address and port (rdma_get_local_addr, rdma_get_src_port); not valid before Bind or
// AddrResolved.
func (id *ID) LocalAddr() netip.AddrPort { return get(id, func() netip.AddrPort { return id.local }) }

// PeerAddr is the peer's address and port (rdma_get_peer_addr, rdma_get_dst_port); not valid before AddrResolved.
func (id *ID) PeerAddr() netip.AddrPort { return get(id, func() netip.AddrPort { return id.remote }) }

func get[T any](id *ID, f func() T) T {
	id.mu.Lock()
	defer id.mu.Unlock()
	return f()
}

// SetTOS sets the type of service of packets: before Connect. A listener hands it to what it makes.
func (id *ID) SetTOS(tos uint8) error {
	return id.set("set TOS", func() { id.opts.tos, id.route.TOS = tos, tos },
		idle, bound, resolvingAddr, addrResolved, routeResolved, listening, requested)
}

// SetReuseAddr lets IDs share an address and port as long as none of them listens: before Bind.
func (id *ID) SetReuseAddr(reuse bool) error {
	return id.set("set reuse address", func() { id.opts.reuse = reuse }, idle)
}

// SetAFOnly restricts a wildcard address to its own family: before Bind. Otherwise it means IPv4 and IPv6.
func (id *ID) SetAFOnly(only bool) error {
	return id.set("set AF only", func() { id.opts.afOnly = only }, idle)
}

// SetAckTimeout sets the QP's local ACK timeout, 4.096 µs × 2^n, 0 ≤ n ≤ 31: before Connect or Accept. 0 leaves it to
// the provider.
func (id *ID) SetAckTimeout(n uint8) error {
	const op = "set ACK timeout"
	if n > 31 {
		return verbs.Errorf(verbs.ErrInvalid, op, "%d is not in 0–31", n)
	}
	return id.set(op, func() { id.opts.ackTimeout = n },
		idle, bound, resolvingAddr, addrResolved, routeResolved, listening, requested)
}

// SetTransports chooses the wire protocols: a listener serves them all, an active ID takes the first that has a way to
// the peer. Without it they are RoCEv2 alone. Before ResolveAddr and Listen.
func (id *ID) SetTransports(t ...verbs.Transport) error {
	const op = "set transports"
	if len(t) == 0 {
		return verbs.Errorf(verbs.ErrInvalid, op, "none is given")
	}
	return id.set(op, func() { id.opts.transports = slices.Clone(t) }, idle, bound)
}

// enter puts the ID on a device: from then on it hears what happens to that. The ID is locked.
func (id *ID) enter(op string, d *verbs.Device) error {
	if slices.Contains(id.on, d) {
		return nil
	}
	if err := devices.enter(op, d, id); err != nil {
		return err
	}
	id.on = append(id.on, d)
	return nil
}

func (id *ID) set(op string, f func(), fit ...state) error {
	if err := id.lock(op, fit...); err != nil {
		return err
	}
	f()
	id.mu.Unlock()
	return nil
}
