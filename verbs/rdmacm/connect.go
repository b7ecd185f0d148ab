package rdmacm

import (
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// Listen makes the ID a listener for the address that it is bound to (rdma_listen). Each connection
// request arrives as a ConnectRequest with a new ID. An ID that is not bound listens on an
// ephemeral port of all addresses. At most backlog requests wait to be accepted; a value below 1
// means 1024.
func (id *ID) Listen(backlog int) error { return id.listen(backlog, false) }

// listen implements Listen. mayChangePort means that the application does not know the ID's
// ephemeral port yet. listen may then choose another port if this one is in use.
func (id *ID) listen(backlog int, mayChangePort bool) error {
	const op = "listen"
	if err := id.lock(op, idle, bound); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if id.state == idle {
		if err := id.bind(op, netip.AddrPort{}, true); err != nil {
			return err
		}
		mayChangePort = true
	}
	if backlog < 1 {
		backlog = 1024
	}
	err := id.listenAt(op, backlog)
	for i := 1; i < maxPortRetries && mayChangePort && err != nil; i++ {
		var b *binding
		if b, err = ports.replace(op, id.bound, err); err != nil {
			break
		}
		id.bound, id.localPort = b, b.addr.Port()
		err = id.listenAt(op, backlog)
	}
	return err
}

// listenAt listens on the bound address. The ID is locked.
func (id *ID) listenAt(op string, backlog int) error {
	if err := ports.listen(op, id.bound); err != nil {
		return err
	}
	a := &acceptor{listener: id, children: make(map[ProviderConn]*ID)}
	for _, t := range id.opts.transports {
		for _, d := range id.bound.devs {
			if err := a.listen(op, d, t, backlog); err != nil {
				id.unlisten()
				return err
			}
		}
	}
	id.state = listening
	return nil
}

// unlisten undoes a Listen that failed on one of several devices. The ID is locked.
func (id *ID) unlisten() {
	for _, l := range id.listeners() {
		_ = l.Close()
	}
	if id.extra != nil {
		id.extra.listeners = nil
	}
	if id.dev == nil {
		id.unwatch()
	}
	ports.unlisten(id.bound)
}

// listen starts to listen on one device. The listener's ID is locked.
func (a *acceptor) listen(op string, d *verbs.Device, t verbs.Transport, backlog int) error {
	id := a.listener
	if err := id.watch(op, d); err != nil {
		return err
	}
	attr := &ListenAttr{Transport: t, PortSpace: id.space, Addr: id.bound.at(), AFOnly: id.bound.afOnly, Backlog: backlog, TOS: id.opts.tos}
	l, err := provider(d).Listen(attr, func(e *ConnEvent) { a.handle(d, e) })
	if err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	r := id.makeExtra()
	r.listeners = append(r.listeners, deviceListener{d, l})
	return nil
}

// acceptor handles the connection events of a listener's devices. It exists until the listener and
// all connections that it accepted are closed.
type acceptor struct {
	listener *ID

	mu       sync.Mutex
	children map[ProviderConn]*ID
}

// handle handles an event: a request creates an ID, and other events go to the ID of their
// connection.
func (a *acceptor) handle(d *verbs.Device, e *ConnEvent) {
	if e.Type == ConnectRequest {
		a.request(d, e)
		return
	}
	a.mu.Lock()
	child := a.children[e.Conn]
	a.mu.Unlock()
	if child != nil && !(endsConnection(e.Type) && a.discardUndelivered(child)) {
		child.handle(e)
	}
}

// endsConnection reports whether an event is the end of a connection.
func endsConnection(t EventType) bool {
	return t == Rejected || t == Unreachable || t == ConnectError || t == Disconnected
}

// discardUndelivered closes an ID whose ConnectRequest GetEvent has not returned yet, and removes
// the request from the channel. It returns false if the request has been delivered. Without
// discardUndelivered, peers that connect and disconnect repeatedly would fill the channel of a slow
// application.
//
// An undelivered request is in the channel, or the listener's Close has taken it and closes the ID
// too. Migrate cannot have taken it, because the listener is locked. The removed request counts as
// unacknowledged until the ID is closed. Close of the listener, and then Close of the channel,
// therefore wait for it.
func (a *acceptor) discardUndelivered(child *ID) bool {
	var request *Event
	a.listener.mu.Lock()
	child.mu.Lock()
	undelivered := child.state == requested && !child.delivered.Load()
	if undelivered {
		request = child.ch.takeRequest(child)
		undelivered = !child.delivered.Load() // GetEvent may have taken it before takeRequest
	}
	child.mu.Unlock()
	a.listener.mu.Unlock()
	if request != nil {
		_ = child.close()
		_ = request.Ack()
	}
	return undelivered
}

// request creates the ID of a connection request, and adds a ConnectRequest to the channel.
func (a *acceptor) request(d *verbs.Device, e *ConnEvent) {
	l := a.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.local().Addr()
	switch {
	case l.state != listening:
		e.Conn.Close()
		return
	case own.IsUnspecified() && l.bound.afOnly && own.Is4() != e.Src.Is4():
		_ = e.Conn.Reject(nil)
		e.Conn.Close()
		return
	}
	id := newID(l.ch, l.space, l.context)
	id.mu.Lock() // DeviceRemoval may arrive before its fields are set
	defer id.mu.Unlock()
	id.state, id.dev, id.route, id.conn = requested, d, e.Route, e.Conn
	id.opts = l.opts
	id.route.TOS = l.opts.tos
	id.localPort, id.remotePort = e.LocalPort, e.PeerPort
	param := clampDepths(d, e.Param)
	id.request, id.qpType, id.acceptor = &param, e.QPType, a
	if err := id.watch("accept", d); err != nil {
		e.Conn.Close()
		return
	}
	if err := l.ch.addID("accept"); err != nil { // cannot happen: the channel still has the listener
		id.unwatch()
		e.Conn.Close()
		return
	}
	a.mu.Lock()
	a.children[e.Conn] = id
	a.mu.Unlock()
	l.ch.add(&Event{Type: ConnectRequest, ID: id, ListenID: l, Status: e.Status, Param: param, UD: cloneUD(e.UD)})
}

// remove removes the ID of a connection.
func (a *acceptor) remove(c ProviderConn) {
	a.mu.Lock()
	delete(a.children, c)
	a.mu.Unlock()
}

// clampDepths limits the depths that a peer requests to those of the device, so that they can be
// passed to Accept.
func clampDepths(d *verbs.Device, p ConnParam) ConnParam {
	p = cloneParam(p)
	attr := d.QueryDevice()
	p.ResponderResources = uint8(min(int(p.ResponderResources), attr.MaxQPRDAtom))
	p.InitiatorDepth = uint8(min(int(p.InitiatorDepth), attr.MaxQPInitRDAtom))
	return p
}

// Connect sends a connection request to the peer, or in port space UDP a request for its QP
// (rdma_connect). A nil param means DefaultConnParam. With a QP from CreateQP, param.QPNum is
// ignored, and the QP is in RTS when Established arrives. Without one, ConnectResponse arrives
// first, and the application calls Establish or Reject.
//
// The outcome is Established, Rejected, Unreachable or ConnectError. The ID cannot connect again.
func (id *ID) Connect(param *ConnParam) error {
	const op = "connect"
	if err := id.lock(op, routeResolved); err != nil {
		return err
	}
	defer id.mu.Unlock()
	p, err := id.param(op, param, &ConnParam{ResponderResources: MaxDepth, InitiatorDepth: MaxDepth})
	if err != nil {
		return err
	}
	id.route.TOS = id.opts.tos
	attr := &ConnectAttr{Route: id.route, PortSpace: id.space, LocalPort: id.localPort, PeerPort: id.remotePort,
		QPType: verbs.RC, AckTimeout: id.opts.ackTimeout, Param: cloneParam(p)}
	if qp := id.ownQP(); qp != nil {
		attr.QPType = qp.Type()
	} else if id.space == UDP || id.space == IPoIB {
		attr.QPType = verbs.UD
	}
	if o := id.outcomeLocked("rdma_connect"); o != nil {
		id.conn, id.state = o.Conn, connecting
		id.ch.clock().Go(func() { id.handle(o) })
		return nil
	}
	conn, err := provider(id.dev).Connect(attr, id.handle)
	if err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	id.conn, id.state, id.connectAttr = conn, connecting, attr
	return nil
}

// retryConnect repeats a failed Connect from another local port, if the port was ephemeral and
// status says that it is in use. It reports whether it did so.
func (id *ID) retryConnect(status int) bool {
	if id.connectAttr == nil || id.connectRetries >= maxPortRetries || status >= 0 {
		return false
	}
	b, err := ports.replace("connect", id.bound, syscall.Errno(-status))
	if err != nil {
		return false
	}
	id.connectRetries++
	id.bound, id.localPort = b, b.addr.Port()
	attr := *id.connectAttr
	attr.LocalPort = b.addr.Port()
	conn, err := provider(id.dev).Connect(&attr, id.handle)
	if err != nil {
		return false
	}
	id.conn.Close() // after its last event
	id.conn, id.connectAttr = conn, &attr
	return true
}

// param returns the application's parameters, checked and completed. offered has the depths that
// replace MaxDepth.
func (id *ID) param(op string, given, offered *ConnParam) (ConnParam, error) {
	if given == nil {
		given = DefaultConnParam()
	}
	p := *given
	attr := id.dev.QueryDevice()
	depth := func(name string, v *uint8, offered uint8, most int) error {
		if *v == MaxDepth {
			*v = uint8(min(int(offered), most, MaxDepth-1))
		} else if int(*v) > most {
			return verbs.Errorf(verbs.ErrInvalid, op, "%s %d is more than the device's maximum of %d", name, *v, most)
		}
		return nil
	}
	if err := depth("ResponderResources", &p.ResponderResources, offered.ResponderResources, attr.MaxQPRDAtom); err != nil {
		return p, err
	}
	if err := depth("InitiatorDepth", &p.InitiatorDepth, offered.InitiatorDepth, attr.MaxQPInitRDAtom); err != nil {
		return p, err
	}
	if p.RetryCount > 7 || p.RNRRetryCount > 7 {
		return p, verbs.Errorf(verbs.ErrInvalid, op, "RetryCount %d or RNRRetryCount %d is not in 0–7", p.RetryCount, p.RNRRetryCount)
	}
	if qp := id.ownQP(); qp != nil {
		p.QPNum = qp.Num()
	}
	return p, nil
}

// Accept accepts a ConnectRequest (rdma_accept). A nil param means DefaultConnParam. A depth of
// MaxDepth means the depth that the peer requested, limited to that of the device. A QP from
// CreateQP is in RTS when Accept returns. Established follows when the peer has confirmed, except
// in port space UDP.
func (id *ID) Accept(param *ConnParam) error {
	const op = "accept"
	if err := id.lock(op, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	p, err := id.param(op, param, id.request)
	if err != nil {
		return err
	}
	if id.qp != nil && id.qp.qp.Type() != verbs.UD {
		err := id.connectQP(func(a *verbs.QPAttr) {
			a.MaxDestRDAtomic, a.MaxRDAtomic = p.ResponderResources, p.InitiatorDepth
			if id.opts.ackTimeout != 0 {
				a.Timeout = id.opts.ackTimeout
			}
		})
		if err != nil {
			id.failQP()
			return err
		}
	}
	if err := id.conn.Accept(&p, UDPQKey); err != nil {
		id.failQP()
		return &verbs.Error{Op: op, Err: err}
	}
	id.state, id.request = accepted, nil
	return nil
}

// Reject rejects a ConnectRequest or a ConnectResponse (rdma_reject). The peer gets Rejected with
// the private data.
func (id *ID) Reject(privateData []byte) error {
	const op = "reject"
	return id.withConn(op, func(c ProviderConn) error {
		if err := c.Reject(privateData); err != nil {
			return err
		}
		id.state = rejected
		id.failQP()
		id.signals.end()
		return nil
	}, requested, connecting)
}

// Establish completes a connection after ConnectResponse (rdma_establish). The application's own QP
// must be in RTS.
func (id *ID) Establish() error {
	const op = "establish"
	return id.withConn(op, func(c ProviderConn) error {
		if id.qp != nil {
			return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP from CreateQP, for which Establish is not needed")
		}
		err := c.Establish()
		id.established = id.established || err == nil
		return err
	}, connecting)
}

// Disconnect ends a connection and moves the QP to ERR (rdma_disconnect). Both sides get
// Disconnected. The side whose peer has disconnected then calls Disconnect or Close too: as in
// Linux, a RoCEv2 QP remains in its state until then. If the connection has ended, or is accepted
// and not established yet, Disconnect only moves the QP to ERR. It does nothing if this side is
// already ending the connection.
func (id *ID) Disconnect() error {
	return id.withConn("disconnect", func(c ProviderConn) error {
		if id.disconnected {
			return nil
		}
		if err := c.Disconnect(); err != nil {
			if id.state == accepted && !id.established {
				id.failQP()
				return nil
			}
			if id.signals.hasEnded() {
				id.failQP()
				return nil
			}
			return err
		}
		id.disconnected = true
		id.failQP()
		return nil
	}, connecting, accepted)
}

// Notify reports that the QP has received a message, after EventCommEst of the device
// (rdma_notify). If the last message of the peer's handshake was lost, Established follows. If the
// connection is already established, the error is EISCONN, which may be ignored.
func (id *ID) Notify() error {
	return id.withConn("notify", ProviderConn.Notify, connecting, accepted)
}

// withConn calls f with the ID's connection, if the ID is in one of the allowed states.
func (id *ID) withConn(op string, f func(ProviderConn) error, allowed ...state) error {
	if err := id.lock(op, allowed...); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := f(id.conn); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	return nil
}

// handle handles an event of the connection.
func (id *ID) handle(ce *ConnEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == closed || id.state == deviceRemoved {
		return
	}
	if ce.Type == ConnectError && id.retryConnect(ce.Status) {
		return
	}
	id.connectAttr = nil
	e := &Event{Type: ce.Type, ID: id, Status: ce.Status, Param: cloneParam(ce.Param), UD: cloneUD(ce.UD)}
	switch ce.Type {
	case ConnectResponse:
		if id.state != connecting {
			return
		}
		if id.qp != nil {
			id.establish(e)
		}
	case Established:
		if id.established { // reported with the peer's response
			return
		}
		id.established = true
	case Disconnected: // its QP stays as it is until this side disconnects, as in Linux
		if id.autoDisconnect {
			_ = id.conn.Disconnect() // fails if this side disconnected first
			id.failQP()
		}
		id.signals.end()
	case Rejected, Unreachable, ConnectError: // with Disconnected, as in endsConnection
		id.failQP()
		id.signals.end()
	case TimewaitExit:
	default:
		return
	}
	if id.state == requested { // no event, as in Linux: Accept fails
		return
	}
	id.addInTime(e)
}

// establish moves the QP to RTS after a ConnectResponse, and changes that event to Established, or
// to ConnectError.
func (id *ID) establish(e *Event) {
	err := id.connectQP(nil)
	if err == nil {
		err = id.conn.Establish()
	}
	if err != nil {
		_ = id.conn.Reject(nil) // if that fails too, the peer times out
		id.failQP()
		id.signals.end()
		e.Type, e.Status = ConnectError, status(err, syscall.EINVAL)
		return
	}
	id.established = true
	e.Type = Established
}

// cloneParam copies p with its private data, which belongs to the provider.
func cloneParam(p ConnParam) ConnParam {
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

func cloneUD(u UDParam) UDParam {
	u.PrivateData = slices.Clone(u.PrivateData)
	return u
}
