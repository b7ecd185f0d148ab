package cm_test

// The test itself is the peer: it passes datagrams to the manager as a kernel would send them, and
// checks each one that the manager sends.

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const (
	ourGUID  = 0x0200_00ff_fe00_0001
	peerGUID = 0x5054_00ff_fe77_0002
	ourQPN   = 0x11
	peerQPN  = 0x1d
	peerID   = 0xb59ce56d
	peerTID  = 0x26de59cb5
	port     = 7174
	peerPort = 33217
)

var (
	here  = netip.MustParseAddr("10.77.0.9")
	there = netip.MustParseAddr("10.77.0.2")
	third = netip.MustParseAddr("10.77.0.66")
)

// sent is a message that the manager sent.
type sent struct {
	at  time.Duration
	to  netip.Addr
	tid uint64
	m   mad.Message
}

// rig is a manager and its environment.
type rig struct {
	t      testing.TB
	m      *cm.Manager
	q      *timers.Queue
	recv   func(*cm.Datagram)
	start  time.Time
	gid    int          // the index of the local address
	paths  atomic.Int32 // open paths
	mu     sync.Mutex   // protects the fields below
	sent   []sent
	events []rdmacm.ConnEvent
	onSend func(to netip.Addr, b []byte) // instead of sent

	carrierExpected atomic.Bool // there is no hub at the moment
}

func newRig(t testing.TB, seed uint64) *rig {
	r := &rig{t: t, q: timers.New(stack.Clock{}), start: time.Now(), gid: 1}
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	r.m = cm.New(cm.Config{
		GSI: r, Timers: r.q, Rand: rand.NewChaCha8(key), GUID: ourGUID, AckDelay: 15, MaxDepth: 128,
		GIDIndex:        func(uint8, netip.Addr) int { return r.gid },
		MTU:             func(uint8) verbs.MTU { return verbs.MTU1024 },
		CarrierExpected: func(uint8) bool { return r.carrierExpected.Load() },
	})
	return r
}

func (r *rig) close() {
	r.m.Close()
	r.q.Close()
	if r.paths.Load() != 0 {
		r.t.Errorf("%d paths are open after Close", r.paths.Load())
	}
}

func (r *rig) Receive(f func(*cm.Datagram)) { r.recv = f }

func (r *rig) Path(_ uint8, a stack.PathAttr) (cm.Path, error) {
	r.paths.Add(1)
	return &rigPath{r, a.Dst}, nil
}

type rigPath struct {
	r   *rig
	dst netip.Addr
}

func (p *rigPath) Close() { p.r.paths.Add(-1) }

func (p *rigPath) Send(b *[mad.Size]byte) {
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onSend != nil {
		r.onSend(p.dst, b[:])
		return
	}
	h, m := decode(r.t, slices.Clone(b[:]))
	r.sent = append(r.sent, sent{time.Since(r.start), p.dst, h.TID, m})
}

// messages are the empty messages by type.
var messages = map[mad.Attr]func() mad.Message{
	mad.AttrREQ:     func() mad.Message { return new(mad.REQ) },
	mad.AttrMRA:     func() mad.Message { return new(mad.MRA) },
	mad.AttrREJ:     func() mad.Message { return new(mad.REJ) },
	mad.AttrREP:     func() mad.Message { return new(mad.REP) },
	mad.AttrRTU:     func() mad.Message { return new(mad.RTU) },
	mad.AttrDREQ:    func() mad.Message { return new(mad.DREQ) },
	mad.AttrDREP:    func() mad.Message { return new(mad.DREP) },
	mad.AttrSIDRREQ: func() mad.Message { return new(mad.SIDRREQ) },
	mad.AttrSIDRREP: func() mad.Message { return new(mad.SIDRREP) },
	mad.AttrLAP:     func() mad.Message { return new(mad.LAP) },
	mad.AttrAPR:     func() mad.Message { return new(mad.APR) },
}

func decode(t testing.TB, b []byte) (mad.Header, mad.Message) {
	t.Helper()
	h, data, err := mad.Parse(b)
	if err != nil || messages[h.Attr] == nil {
		t.Fatalf("sent no CM datagram: %+v, %v", h, err)
	}
	m := messages[h.Attr]()
	mad.Decode(data, m)
	return h, m
}

// receive passes a message from the peer to the manager.
func (r *rig) receive(tid uint64, m mad.Message) { r.receiveFrom(there, tid, m) }

func (r *rig) receiveFrom(src netip.Addr, tid uint64, m mad.Message) {
	var b [mad.Size]byte
	mad.Encode(&b, tid, m)
	r.recv(&cm.Datagram{Port: 1, Src: src, Dst: here, MAD: b[:]})
}

func (r *rig) handler(e *rdmacm.ConnEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, *e)
}

// next returns the oldest sent message, which must be a T.
func next[T mad.Message](r *rig) (T, sent) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sent) == 0 {
		var want T
		r.t.Fatalf("nothing was sent, want %v", want.Attr())
	}
	s := r.sent[0]
	r.sent = r.sent[1:]
	m, ok := s.m.(T)
	if !ok {
		r.t.Fatalf("%v was sent, want %v: %+v", s.m.Attr(), m.Attr(), s.m)
	}
	return m, s
}

// nothing checks that nothing else was sent or reported.
func (r *rig) nothing() {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		r.t.Errorf("%v was sent at %v: %+v", s.m.Attr(), s.at, s.m)
	}
	for _, e := range r.events {
		r.t.Errorf("%v, status %d was reported", e.Type, e.Status)
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// event returns the oldest event, which must have a type and status.
func (r *rig) event(want rdmacm.EventType, status int) rdmacm.ConnEvent {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		r.t.Fatalf("no event, want %v", want)
	}
	e := r.events[0]
	r.events = r.events[1:]
	if e.Type != want || e.Status != status {
		r.t.Fatalf("%v, status %d; want %v, status %d", e.Type, e.Status, want, status)
	}
	return e
}

func (r *rig) listen(space rdmacm.PortSpace, backlog int) {
	r.t.Helper()
	if _, err := r.m.Listen(&rdmacm.ListenAttr{
		PortSpace: space, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Backlog: backlog,
	}, r.handler); err != nil {
		r.t.Fatal(err)
	}
}

// kernelREQ is the REQ of rdma_connect.
func kernelREQ() *mad.REQ {
	ip := mad.IPCM{Src: there, SrcPort: peerPort, Dst: here}
	return &mad.REQ{
		LocalCommID: peerID, ServiceID: mad.ServiceID(uint16(rdmacm.TCP), port), LocalCAGUID: peerGUID,
		LocalQPN: peerQPN, ResponderResources: 3, InitiatorDepth: 5, RemoteResponseTimeout: 20,
		LocalResponseTimeout: 20, StartingPSN: 0xa3f754, RetryCount: 7, PKey: 0xffff, MTU: 3, RNRRetryCount: 6,
		MaxCMRetries: 15,
		Primary: mad.Path{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: there.As16(), RemoteGID: here.As16(),
			FlowLabel: 0xfd265, HopLimit: 64, AckTimeout: 19},
		PrivateData: append(ip.Append(nil), "hello"...),
	}
}

// acceptParam is an application's answer.
func acceptParam() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{QPNum: ourQPN, ResponderResources: 4, InitiatorDepth: 2, RNRRetryCount: 7,
		PrivateData: []byte("welcome")}
}

// accepted makes the application accept a connection from the peer, up to the REP.
func (r *rig) accepted() (rdmacm.ProviderConn, *mad.REP) {
	r.t.Helper()
	r.listen(rdmacm.TCP, 10)
	r.receive(peerTID, kernelREQ())
	c := r.event(rdmacm.ConnectRequest, 0).Conn
	if err := c.Accept(acceptParam(), 0); err != nil {
		r.t.Fatal(err)
	}
	rep, _ := next[*mad.REP](r)
	return c, rep
}

// passive establishes a connection from the peer; id is its local communication ID.
func (r *rig) passive() (c rdmacm.ProviderConn, id uint32) {
	r.t.Helper()
	c, rep := r.accepted()
	r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
	r.event(rdmacm.Established, 0)
	return c, rep.LocalCommID
}

func connectAttr() *rdmacm.ConnectAttr {
	return &rdmacm.ConnectAttr{
		Route:     rdmacm.Route{Src: here, Dst: there, PortNum: 1, GIDIndex: 1, MTU: verbs.MTU1024},
		PortSpace: rdmacm.TCP, LocalPort: 40000, PeerPort: port, QPType: verbs.RC,
		Param: rdmacm.ConnParam{QPNum: ourQPN, ResponderResources: 4, InitiatorDepth: 2, RetryCount: 7,
			RNRRetryCount: 7, PrivateData: []byte("hello")},
	}
}

// asked sends a REQ.
func (r *rig) asked() (rdmacm.ProviderConn, *mad.REQ, uint64) {
	r.t.Helper()
	c, err := r.m.Connect(connectAttr(), r.handler)
	if err != nil {
		r.t.Fatal(err)
	}
	req, s := next[*mad.REQ](r)
	return c, req, s.tid
}

func kernelREP(req *mad.REQ) *mad.REP {
	return &mad.REP{
		LocalCommID: peerID, RemoteCommID: req.LocalCommID, LocalQPN: peerQPN, StartingPSN: 0xdfd224,
		ResponderResources: 6, InitiatorDepth: 1, TargetAckDelay: 15, RNRRetryCount: 5, LocalCAGUID: peerGUID,
		PrivateData: []byte("welcome"),
	}
}

// established establishes a connection to the peer.
func (r *rig) established() (c rdmacm.ProviderConn, id uint32, tid uint64) {
	r.t.Helper()
	c, req, tid := r.asked()
	r.receive(tid, kernelREP(req))
	r.event(rdmacm.ConnectResponse, 0)
	if err := c.Establish(); err != nil {
		r.t.Fatal(err)
	}
	next[*mad.RTU](r)
	return c, req.LocalCommID, tid
}

// bubble runs a test in virtual time with a rig of its own.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.close()
		f(r)
	})
}
