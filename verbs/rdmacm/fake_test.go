package rdmacm_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// lan is a network of devices that exchange connection messages by calling each other.
type lan struct {
	mu   sync.Mutex
	devs []*device

	// Messages that a test loses.
	loseRTU, loseDREQ bool
}

// device is a provider that moves no data: its QPs only change state.
type device struct {
	*lan
	name  string
	addrs []netip.Addr

	event     func(verbs.AsyncEventType, uint8) // reports events of the device
	resolve   func(context.Context, rdmacm.Route) error
	route     error // of Route
	refuse    verbs.QPState
	modifies  func(to verbs.QPState) // called before a QP changes its state, or nil
	listeners []*fakeListener
	keys      atomic.Uint32
	conns     int // open
	busy      int // the number of further ports that are in use outside rdma_cm
}

// takePort fails as long as ports are busy.
func (d *device) takePort() error {
	if d.busy == 0 {
		return nil
	}
	d.busy--
	return syscall.EADDRINUSE
}

const (
	maxREQ, maxREP, maxREJ = 56, 196, 148
	maxDepth               = 16
)

func newLAN() *lan { return &lan{} }

// open makes a device with addresses.
func (l *lan) open(t testing.TB, name string, addrs ...string) (*verbs.Device, *device) {
	t.Helper()
	d := &device{lan: l, name: name}
	for _, a := range addrs {
		d.addrs = append(d.addrs, netip.MustParseAddr(a))
	}
	l.devs = append(l.devs, d)
	dev, err := verbs.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	return dev, d
}

func (d *device) Name() string { return d.name }
func (d *device) QueryDevice() verbs.DeviceAttr {
	return verbs.DeviceAttr{MaxMRSize: 1 << 30, MaxQP: 1 << 20, MaxQPWR: 1024, MaxSGE: 4, MaxSGERd: 4, MaxInlineData: 64,
		MaxCQ: 1 << 20, MaxCQE: 1 << 20, MaxMR: 1 << 20, MaxPD: 1 << 20, MaxQPRDAtom: maxDepth, MaxQPInitRDAtom: maxDepth,
		MaxSRQ: 16, MaxSRQWR: 1024, MaxSRQSGE: 4, DeviceCapFlags: verbs.DeviceXRC,
		PhysPortCnt: 1, MaxMcastGrp: 1, MaxMcastQPAttach: 1, MaxTotalMcastQPAttach: 1}
}
func (d *device) QueryPort(uint8) (verbs.PortAttr, error) {
	return verbs.PortAttr{ActiveMTU: verbs.MTU1024, PKeyTblLen: 1, MaxMsgSz: 1 << 30}, nil
}
func (d *device) GIDTable(uint8) (out []verbs.GIDEntry, err error) {
	for i, a := range d.addrs {
		out = append(out, verbs.GIDEntry{GID: verbs.GIDFromAddr(a), Index: i, PortNum: 1})
	}
	return out, nil
}
func (d *device) RegMR(*verbs.MR) (uint32, uint32, error)       { k := d.keys.Add(1); return k, k, nil }
func (d *device) DeregMR(*verbs.MR)                             {}
func (d *device) AllocMW(*verbs.MW) (uint32, error)             { return 0, verbs.ErrNotSupported }
func (d *device) DeallocMW(*verbs.MW)                           {}
func (d *device) Watch(f func(verbs.AsyncEventType, uint8))     { d.event = f }
func (d *device) Close() error                                  { return nil }
func (d *device) HWCounters() (map[string]uint64, error)        { return nil, nil }
func (d *device) PortCounters(uint8) (map[string]uint64, error) { return nil, nil }
func (d *device) Shutdown(context.Context) error                { return nil }
func (d *device) Progress() bool                                { return false }
func (d *device) EndProgress()                                  {}
func (d *device) CreateQP(h verbs.QPHandle, _ *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	return &fakeQP{d}, 0x10 + d.keys.Add(1), nil
}

func (d *device) CreateAH(*verbs.AHAttr) (verbs.ProviderAH, error) { return nil, verbs.ErrNotSupported }
func (d *device) AttachMcast(verbs.ProviderQP, verbs.GID) error    { return nil }
func (d *device) DetachMcast(verbs.ProviderQP, verbs.GID) error    { return nil }

func (d *device) CreateFlow(verbs.ProviderQP, *verbs.FlowAttr) (verbs.ProviderFlow, error) {
	return nil, verbs.ErrNotSupported
}

type fakeQP struct{ d *device }

func (q *fakeQP) Modify(_, to verbs.QPState, _ *verbs.QPAttr, _ verbs.QPAttrMask) error {
	if f := q.d.modifies; f != nil {
		f(to)
	}
	if to == q.d.refuse && to != verbs.StateReset {
		return syscall.ENOMEM
	}
	return nil
}
func (q *fakeQP) Query(*verbs.QPAttr)         {}
func (q *fakeQP) PostSend()                   {}
func (q *fakeQP) PostRecv()                   {}
func (q *fakeQP) Placed(*verbs.PlaceError)    {}
func (q *fakeQP) Counters() map[string]uint64 { return nil }
func (q *fakeQP) Peer() netip.Addr            { return netip.Addr{} }
func (q *fakeQP) Destroy()                    {}

func (d *device) Route(transport verbs.Transport, src, dst netip.Addr) (rdmacm.Route, error) {
	if d.route != nil {
		return rdmacm.Route{}, d.route
	}
	for i, a := range d.addrs {
		if a.Is4() == dst.Is4() && (!src.IsValid() || src.IsUnspecified() || src == a) {
			return rdmacm.Route{Transport: transport, Src: a, Dst: dst, PortNum: 1, GIDIndex: i, MTU: verbs.MTU1024}, nil
		}
	}
	return rdmacm.Route{}, syscall.ENETUNREACH
}

func (d *device) Resolve(ctx context.Context, r rdmacm.Route) error {
	if d.resolve != nil {
		return d.resolve(ctx, r)
	}
	return nil
}

type fakeListener struct {
	d    *device
	attr rdmacm.ListenAttr
	h    rdmacm.Handler
	n    int // requests not answered
}

func (d *device) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	if attr.Transport != verbs.RoCEv2 && d.name == "rocev2-only" {
		return nil, verbs.ErrNotSupported
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.takePort(); err != nil {
		return nil, err
	}
	l := &fakeListener{d: d, attr: *attr, h: h}
	d.listeners = append(d.listeners, l)
	return l, nil
}

func (l *fakeListener) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.listeners = slices.DeleteFunc(l.d.listeners, func(o *fakeListener) bool { return o == l })
	return nil
}

// phase is the progress of a fakeConn.
type phase int

const (
	reqSent phase = iota
	reqRcvd
	repSent
	repRcvd
	up
	dreqSent
	dreqRcvd
	over
)

// fakeConn is one end of a connection, protected by lan.mu.
type fakeConn struct {
	d        *device
	h        rdmacm.Handler
	peer     *fakeConn
	listener *fakeListener
	attr     rdmacm.ConnectAttr // the arguments of Connect
	phase    phase
	closed   bool
	events   []*rdmacm.ConnEvent
	busy     bool // a goroutine delivers them
}

// report queues an event. A goroutine of the provider delivers it.
func (c *fakeConn) report(e *rdmacm.ConnEvent) {
	if c.closed {
		return
	}
	e.Conn = c
	c.events = append(c.events, e)
	if !c.busy {
		c.busy = true
		go c.deliver()
	}
}

func (c *fakeConn) deliver() {
	c.d.mu.Lock()
	for len(c.events) > 0 && !c.closed {
		e := c.events[0]
		c.events = c.events[1:]
		c.d.mu.Unlock()
		c.h(e)
		c.d.mu.Lock()
	}
	c.busy = false
	c.d.mu.Unlock()
}

// after runs f later, unless the phase has changed.
func (c *fakeConn) after(d time.Duration, f func()) {
	was := c.phase
	time.AfterFunc(d, func() {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		if c.phase == was && !c.closed {
			f()
		}
	})
}

// answered removes a request from its listener's backlog.
func (c *fakeConn) answered(p phase) {
	if c.phase == reqRcvd {
		c.listener.n--
	}
	c.phase = p
}

func (d *device) Connect(attr *rdmacm.ConnectAttr, h rdmacm.Handler) (rdmacm.ProviderConn, error) {
	if len(attr.Param.PrivateData) > maxREQ {
		return nil, verbs.Errorf(verbs.ErrInvalid, "connect", "private data of %d bytes", len(attr.Param.PrivateData))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &fakeConn{d: d, h: h, attr: *attr}
	d.conns++
	if d.takePort() != nil {
		c.phase = over
		c.report(&rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.EADDRINUSE)})
		return c, nil
	}
	i := slices.IndexFunc(d.devs, func(o *device) bool { return slices.Contains(o.addrs, attr.Dst) })
	if i < 0 {
		c.after(time.Minute, func() {
			c.phase = over
			c.report(&rdmacm.ConnEvent{Type: rdmacm.Unreachable, Status: -int(syscall.ETIMEDOUT)})
		})
		return c, nil
	}
	o := d.devs[i]
	i = slices.IndexFunc(o.listeners, func(l *fakeListener) bool {
		a := l.attr.Addr
		return l.attr.Transport == attr.Transport && l.attr.PortSpace == attr.PortSpace && a.Port() == attr.PeerPort &&
			(!a.Addr().IsValid() || a.Addr().IsUnspecified() && a.Addr().Is4() == attr.Dst.Is4() || a.Addr() == attr.Dst)
	})
	if i < 0 {
		c.phase = over
		c.report(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: rdmacm.RejectInvalidService})
		return c, nil
	}
	l := o.listeners[i]
	if l.n == l.attr.Backlog {
		c.phase = over
		c.report(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: rdmacm.RejectNoResources})
		return c, nil
	}
	l.n++
	p := attr.Param
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	c.peer = &fakeConn{d: o, h: l.h, peer: c, listener: l, phase: reqRcvd}
	o.conns++
	route := attr.Route
	route.Src, route.Dst = attr.Dst, attr.Src
	c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.ConnectRequest, Route: route, LocalPort: attr.PeerPort,
		PeerPort: attr.LocalPort, Param: p})
	return c, nil
}

// call runs a method if the phase allows it.
func (c *fakeConn) call(op string, f func() error, allowed ...phase) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.closed || !slices.Contains(allowed, c.phase) {
		return verbs.Errorf(verbs.ErrInvalid, op, "phase %d", c.phase)
	}
	return f()
}

func (c *fakeConn) QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	a, mask := verbs.QPAttr{QPState: to}, verbs.QPAttrState
	switch to {
	case verbs.StateInit:
		a.PortNum = 1
		mask |= verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags
	case verbs.StateRTR:
		a.PathMTU, a.MaxDestRDAtomic = verbs.MTU1024, c.attr.Param.ResponderResources
		a.AHAttr = verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GID{15: 1}}}
		mask |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	case verbs.StateRTS:
		a.MaxRDAtomic, a.Timeout = c.attr.Param.InitiatorDepth, 14
		mask |= verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN |
			verbs.QPAttrMaxQPRDAtomic
	}
	return a, mask, nil
}

func (c *fakeConn) Accept(p *rdmacm.ConnParam, qkey uint32) error {
	return c.call("accept", func() error {
		if len(p.PrivateData) > maxREP {
			return verbs.Errorf(verbs.ErrInvalid, "accept", "private data of %d bytes", len(p.PrivateData))
		}
		c.answered(repSent)
		if c.listener.attr.PortSpace == rdmacm.UDP {
			c.phase, c.peer.phase = over, over
			c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.Established, UD: rdmacm.UDParam{PrivateData: p.PrivateData,
				QPNum: p.QPNum, QKey: qkey}})
			return nil
		}
		if c.peer.phase != reqSent {
			c.phase = over
			c.report(&rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.ECONNRESET)})
			return nil
		}
		c.peer.phase = repRcvd
		c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.ConnectResponse, Param: *p})
		c.after(10*time.Second, func() {
			c.phase = over
			c.report(&rdmacm.ConnEvent{Type: rdmacm.Unreachable, Status: -int(syscall.ETIMEDOUT)})
		})
		return nil
	}, reqRcvd)
}

func (c *fakeConn) Establish() error {
	return c.call("establish", func() error {
		c.phase = up
		if !c.d.loseRTU && c.peer.phase == repSent {
			c.peer.phase = up
			c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.Established})
		}
		return nil
	}, repRcvd)
}

func (c *fakeConn) Notify() error {
	return c.call("notify", func() error {
		if c.phase == repSent {
			c.phase = up
			c.report(&rdmacm.ConnEvent{Type: rdmacm.Established})
		}
		return nil
	}, repSent, up)
}

func (c *fakeConn) Reject(data []byte) error {
	return c.call("reject", func() error {
		if len(data) > maxREJ {
			return verbs.Errorf(verbs.ErrInvalid, "reject", "private data of %d bytes", len(data))
		}
		c.answered(over)
		c.reportRejected(data)
		return nil
	}, reqRcvd, repRcvd)
}

func (c *fakeConn) reportRejected(data []byte) {
	if p := c.peer; p.phase == reqSent || p.phase == repSent {
		p.phase = over
		p.report(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: rdmacm.RejectConsumerDefined,
			Param: rdmacm.ConnParam{PrivateData: data}})
	}
}

func (c *fakeConn) Disconnect() error {
	return c.call("disconnect", func() error {
		if c.phase == dreqRcvd {
			c.finish()
			if c.peer.phase == dreqSent {
				c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.Disconnected})
				c.peer.finish()
			}
			return nil
		}
		c.leave()
		return nil
	}, up, dreqRcvd)
}

// leave sends a disconnect request.
func (c *fakeConn) leave() {
	c.phase = dreqSent
	if c.peer.phase == dreqSent { // the requests crossed
		for _, e := range []*fakeConn{c, c.peer} {
			e.report(&rdmacm.ConnEvent{Type: rdmacm.Disconnected})
			e.finish()
		}
		return
	}
	if c.peer.phase == up && !c.d.loseDREQ {
		c.peer.phase = dreqRcvd
		c.peer.report(&rdmacm.ConnEvent{Type: rdmacm.Disconnected})
	}
	c.after(5*time.Second, func() {
		c.report(&rdmacm.ConnEvent{Type: rdmacm.Disconnected, Status: -int(syscall.ETIMEDOUT)})
		c.finish()
	})
}

// finish starts the time wait.
func (c *fakeConn) finish() {
	c.phase = over
	c.after(time.Second, func() { c.report(&rdmacm.ConnEvent{Type: rdmacm.TimewaitExit}) })
}

func (c *fakeConn) Close() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.closed {
		return
	}
	switch c.phase {
	case reqSent:
		if p := c.peer; p != nil && p.phase == reqRcvd {
			p.answered(over)
			p.report(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: rdmacm.RejectTimeout})
		}
	case reqRcvd, repRcvd:
		c.answered(over)
		c.reportRejected(nil)
	case up:
		c.leave()
	case repSent:
		if c.peer.phase == up {
			c.leave()
		}
	}
	c.closed, c.events = true, nil
	c.d.conns--
}

type fakeGroup struct{}

func (fakeGroup) Close() error { return nil }

func (d *device) JoinMulticast(r rdmacm.Route, group netip.Addr, _ bool, h rdmacm.Handler) (io.Closer, error) {
	e := &rdmacm.ConnEvent{Type: rdmacm.MulticastJoin, UD: rdmacm.UDParam{QPNum: 0xffffff, QKey: rdmacm.UDPQKey,
		AHAttr: verbs.AHAttr{GRH: verbs.GRH{DGID: verbs.GIDFromAddr(group)}, IsGlobal: true, PortNum: r.PortNum}}}
	switch group {
	case netip.MustParseAddr("239.0.0.13"):
		return nil, errors.New("no room in the filter")
	case netip.MustParseAddr("239.0.0.14"):
		e = &rdmacm.ConnEvent{Type: rdmacm.MulticastError, Status: -int(syscall.ENETDOWN)}
	}
	go h(e)
	return fakeGroup{}, nil
}
