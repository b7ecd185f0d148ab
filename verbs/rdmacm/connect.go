package rdmacm

import (
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// Listen takes connection requests for the bound address; each arrives as a ConnectRequest with an ID of its own
// (rdma_listen). An ID that is not bound listens on a port that it draws, on all addresses. At most backlog requests
// wait for an answer; below 1 it is 1024.
func (id *ID) Listen(backlog int) error { return id.listen(backlog, false) }

// listen is Listen. untold says that nobody has been told of a port that was drawn: it may become another.
func (id *ID) listen(backlog int, untold bool) error {
	const op = "listen"
	if err := id.lock(op, idle, bound); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if id.state == idle {
		if err := id.bind(op, netip.AddrPort{}); err != nil {
			return err
		}
		untold = true
	}
	if backlog < 1 {
		backlog = 1024
	}
	err := id.listenAt(op, backlog)
	for i := 1; i < maxDraws && untold && err != nil; i++ {
		var b *binding
		if b, err = ports.redraw(op, id.bound, err); err != nil {
			break
		}
		id.bound, id.local = b, b.addr
		err = id.listenAt(op, backlog)
	}
	return err
}

// listenAt listens at the bound address. The ID is locked.
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

// unlisten undoes a Listen that failed on the way. The ID is locked.
func (id *ID) unlisten() {
	for _, l := range id.listeners {
		_ = l.Close()
	}
	id.listeners = nil
	if id.dev == nil {
		devices.leave(id, id.on)
		id.on = nil
	}
	ports.unlisten(id.bound)
}

// listen begins to listen on one device. The listener's ID is locked.
func (a *acceptor) listen(op string, d *verbs.Device, t verbs.Transport, backlog int) error {
	id := a.listener
	if err := id.enter(op, d); err != nil {
		return err
	}
	l, err := provider(d).Listen(&ListenAttr{Transport: t, Space: id.space, Addr: id.local, Backlog: backlog, TOS: id.opts.tos},
		func(e *ConnEvent) { a.handle(d, e) })
	if err != nil {
		return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	id.listeners = append(id.listeners, deviceListener{d, l})
	return nil
}

// acceptor is what remains of a listener as long as connections that it made are there.
type acceptor struct {
	listener *ID

	mu       sync.Mutex
	children map[ProviderConn]*ID
}

func (a *acceptor) handle(d *verbs.Device, e *ConnEvent) {
	if e.Type == ConnectRequest {
		a.request(d, e)
		return
	}
	a.mu.Lock()
	child := a.children[e.Conn]
	a.mu.Unlock()
	if child != nil && !(ends(e.Type) && a.retract(child)) {
		child.handle(e)
	}
}

// ends tells whether an event is a connection's end.
func ends(t EventType) bool {
	return t == Rejected || t == Unreachable || t == ConnectError || t == Disconnected
}

// retract destroys an ID whose request nobody has seen, and takes the request out of the channel. It returns false if
// somebody has seen the request. Peers that ask and leave must not fill the channel of an application that is slow.
//
// An unseen request is in the channel, or in the hands of the listener's Destroy, which destroys the ID too; Migrate cannot
// have it while the listener is locked. Once out of the channel it counts as taken until the ID is gone, so that the
// listener's Destroy, and the channel's after that, waits for the ID.
func (a *acceptor) retract(child *ID) bool {
	var request *Event
	a.listener.mu.Lock()
	child.mu.Lock()
	unseen := child.state == requested && !child.seen.Load()
	if unseen {
		request = child.ch.retract(child)
		unseen = !child.seen.Load() // it may have been taken just now
	}
	child.mu.Unlock()
	a.listener.mu.Unlock()
	if request != nil {
		_ = child.Destroy()
		_ = request.Ack()
	}
	return unseen
}

// request makes an ID of a connection request.
func (a *acceptor) request(d *verbs.Device, e *ConnEvent) {
	l := a.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.local.Addr()
	switch {
	case l.state != listening:
		e.Conn.Close()
		return
	case own.IsUnspecified() && l.opts.afOnly && own.Is4() != e.Src.Is4():
		_ = e.Conn.Reject(nil)
		e.Conn.Close()
		return
	}
	id := newID(l.ch, l.space, l.context)
	id.mu.Lock() // its device may vanish before it is whole
	defer id.mu.Unlock()
	id.state, id.dev, id.route, id.conn = requested, d, e.Route, e.Conn
	id.opts = l.opts
	id.route.TOS = l.opts.tos
	id.local = netip.AddrPortFrom(e.Src, e.LocalPort)
	id.remote = netip.AddrPortFrom(e.Dst, e.RemotePort)
	id.request, id.qpType = acceptable(d, e.Param), e.QPType
	id.forget = func() {
		a.mu.Lock()
		delete(a.children, e.Conn)
		a.mu.Unlock()
	}
	if err := id.enter("accept", d); err != nil {
		e.Conn.Close()
		return
	}
	if err := l.ch.attach("accept"); err != nil { // cannot be: the listener is in the channel
		devices.leave(id, id.on)
		e.Conn.Close()
		return
	}
	a.mu.Lock()
	a.children[e.Conn] = id
	a.mu.Unlock()
	l.ch.add(&Event{Type: ConnectRequest, ID: id, ListenID: l, Status: e.Status, Param: id.request, UD: ownUD(e.UD)})
}

// acceptable is what a peer asks for as far as the device has it, so that it can be given to Accept.
func acceptable(d *verbs.Device, p ConnParam) ConnParam {
	p = ownParam(p)
	attr := d.QueryDevice()
	p.ResponderResources = uint8(min(int(p.ResponderResources), attr.MaxQPRDAtom))
	p.InitiatorDepth = uint8(min(int(p.InitiatorDepth), attr.MaxQPInitRDAtom))
	return p
}

// Connect asks the peer for a connection, for UDP for its QP (rdma_connect). A nil param is Defaults. With a QP from
// CreateQP its QPNum is not needed, and the QP is in RTS when Established arrives. Without one ConnectResponse comes
// first, to be answered with Establish or Reject.
//
// Established follows, or Rejected, Unreachable or ConnectError. Then the ID cannot connect again.
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
	attr := &ConnectAttr{Route: id.route, Space: id.space, LocalPort: id.local.Port(), RemotePort: id.remote.Port(),
		QPType: verbs.RC, AckTimeout: id.opts.ackTimeout, Param: ownParam(p)}
	if qp := id.ownQP(); qp != nil {
		attr.QPType = qp.Type()
	} else if id.space == UDP || id.space == IPoIB {
		attr.QPType = verbs.UD
	}
	conn, err := provider(id.dev).Connect(attr, id.handle)
	if err != nil {
		return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	id.conn, id.state, id.asked = conn, connecting, attr
	return nil
}

// redial connects once more, from another port, if the one that was drawn turned out to be in use.
func (id *ID) redial(status int) bool {
	if id.asked == nil || id.draws >= maxDraws || status >= 0 {
		return false
	}
	b, err := ports.redraw("connect", id.bound, syscall.Errno(-status))
	if err != nil {
		return false
	}
	id.draws++
	id.bound, id.local = b, netip.AddrPortFrom(id.local.Addr(), b.addr.Port())
	attr := *id.asked
	attr.LocalPort = b.addr.Port()
	conn, err := provider(id.dev).Connect(&attr, id.handle)
	if err != nil {
		return false
	}
	id.conn.Close() // it has said its last
	id.conn, id.asked = conn, &attr
	return true
}

// param completes what the application gave; offered are the depths that MaxDepth stands for.
func (id *ID) param(op string, given, offered *ConnParam) (ConnParam, error) {
	if given == nil {
		given = Defaults()
	}
	p := *given
	attr := id.dev.QueryDevice()
	depth := func(name string, v *uint8, offered uint8, most int) error {
		if *v == MaxDepth {
			*v = uint8(min(int(offered), most, MaxDepth-1))
		} else if int(*v) > most {
			return verbs.Errorf(verbs.ErrInvalid, op, "%s %d is more than the device's %d", name, *v, most)
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

// Accept answers a ConnectRequest (rdma_accept). A nil param is Defaults; the depths that it leaves to MaxDepth are
// those that the peer asked for, as far as the device has them. With a QP from CreateQP, that is in RTS when Accept
// returns. Established follows when the peer knows, except for UDP.
func (id *ID) Accept(param *ConnParam) error {
	const op = "accept"
	if err := id.lock(op, requested); err != nil {
		return err
	}
	defer id.mu.Unlock()
	p, err := id.param(op, param, &id.request)
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
		return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	id.state = accepted
	return nil
}

// Reject turns a ConnectRequest or a ConnectResponse down (rdma_reject). The peer gets Rejected with the data.
func (id *ID) Reject(privateData []byte) error {
	const op = "reject"
	return id.tell(op, func(c ProviderConn) error {
		if err := c.Reject(privateData); err != nil {
			return err
		}
		id.state = refused
		id.failQP()
		id.end()
		return nil
	}, requested, connecting)
}

// Establish completes a connection after ConnectResponse, when the application's own QP is in RTS (rdma_establish).
func (id *ID) Establish() error {
	const op = "establish"
	return id.tell(op, func(c ProviderConn) error {
		if id.qp != nil {
			return verbs.Errorf(verbs.ErrInvalid, op, "the ID has a QP: Connect does all")
		}
		err := c.Establish()
		id.up = id.up || err == nil
		return err
	}, connecting)
}

// Disconnect ends a connection and takes the QP to ERR; both sides get Disconnected (rdma_disconnect). A side that got
// it first answers with Disconnect, or Destroy.
func (id *ID) Disconnect() error {
	return id.tell("disconnect", func(c ProviderConn) error {
		if err := c.Disconnect(); err != nil {
			return err
		}
		id.failQP()
		return nil
	}, connecting, accepted)
}

// Notify says that the QP has received: EventCommEst came from the device (rdma_notify). Established follows if the
// peer's last handshake message was lost.
func (id *ID) Notify() error {
	return id.tell("notify", ProviderConn.Notify, connecting, accepted)
}

// tell calls the connection, in the states where there is one.
func (id *ID) tell(op string, f func(ProviderConn) error, fit ...state) error {
	if err := id.lock(op, fit...); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := f(id.conn); err != nil {
		return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	return nil
}

// handle takes what happened to the connection.
func (id *ID) handle(ce *ConnEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == destroyed || id.state == removed {
		return
	}
	if ce.Type == ConnectError && id.redial(ce.Status) {
		return
	}
	id.asked = nil
	e := &Event{Type: ce.Type, ID: id, Status: ce.Status, Param: ownParam(ce.Param), UD: ownUD(ce.UD)}
	switch ce.Type {
	case ConnectResponse:
		if id.state != connecting {
			return
		}
		if id.qp != nil {
			id.complete(e)
		}
	case Established:
		if id.up { // reported when the peer's response came
			return
		}
		id.up = true
	case Rejected, Unreachable, ConnectError, Disconnected: // see ends
		if id.answers && ce.Type == Disconnected {
			_ = id.conn.Disconnect() // an error if this is the peer's answer itself
		}
		id.failQP()
		id.end()
	case TimewaitExit:
	default:
		return
	}
	id.ch.add(e)
}

// complete makes a ConnectResponse Established, or ConnectError.
func (id *ID) complete(e *Event) {
	err := id.connectQP(nil)
	if err == nil {
		err = id.conn.Establish()
	}
	if err != nil {
		_ = id.conn.Reject(nil) // as well as may be: the peer times out otherwise
		id.failQP()
		id.end()
		e.Type, e.Status = ConnectError, status(err, syscall.EINVAL)
		return
	}
	id.up = true
	e.Type = Established
}

func ownParam(p ConnParam) ConnParam {
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

func ownUD(u UDParam) UDParam {
	u.PrivateData = slices.Clone(u.PrivateData)
	return u
}
