// Package roce is the engine of RoCEv2 and RoCE v1: it turns the work requests of QPs into packets,
// and packets into completions. The public package roce has its configuration, and says what it
// supports.
//
// The way of a packet. Out: verbs locks the QP and calls PostSend; package send says which packets
// of which request may be sent, and requester.go writes them into frames of packet.go. In:
// receive.go checks the ICRC, with identification.go where the network stack does not see IP
// headers, and finds the QP. Requests go to responder.go, which asks package receive what they are
// and tells it what became of them; response.go sends the responses and acknowledgements that are
// due then. Acknowledgements and responses go to completer.go, which tells package send of them;
// outcome.go completes work requests, or fails the QP. What all that made due unlock.go sends as
// the QP is unlocked, and timer.go what is due later; delayed.go delays what may share a frame.
//
// Package send holds all that is known of sending: the queue's cursor, what is in flight and what
// of it is lost, the window, credits, timeouts. Package receive holds what is known of receiving:
// the expected PSN, the verdict on the packets from there on, the packets that came before their
// turn, and the responses. pacing.go keeps a QP to its rate, which dcqcn.go computes from the
// congestion notifications of notification.go. deferred.go executes what takes long. uc.go and
// ud.go have the unreliable services, and multicast.go datagrams to groups. Where both QPs are in
// one process, direct.go needs no packets. qp.go makes QPs and takes them through their states;
// trace.go tells what happens to them; engine.go has the types of an engine and a QP.
//
// Everything about a QP happens under its lock, on the goroutine that brought the work: the
// application's for posts, the link's for packets, the timer queue's for timeouts.
package roce

import (
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/ipid"
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// qpnBits is the width of a QP number. Numbers 0 and 1 are the management QPs, 0xffffff is
// multicast.
const qpnBits = 24

// Engine is the RoCE half of a device.
type Engine struct {
	Counters Counters

	nics    []stack.NIC
	regions *memory.Regions
	timers  *timers.Queue
	qps     *keys.Table[qp]
	env     send.Env // of QPs that are not traced
	gsi     GSI
	groups  groups
	delayed delayed
	flushes flushes

	trace     trace.Sink  // nil: off
	dcqcn     *roce.DCQCN // nil: off
	selective bool        // packets of reliable connections are marked (wire.Mark)

	ids        ipid.Peers // IPv4 identifications that were solved from ICRCs
	strictICRC bool       // none are

	shared  receive.Shared // of all QPs
	byDelay *byDelay       // nil without congestion control by delay
}

// New starts an engine on every NIC. QP numbers are drawn from qpns with rand, but none that taken
// says is in use by another transport.
func New(nics []stack.NIC, cfg roce.Config, regions *memory.Regions, queue *timers.Queue, rand io.Reader,
	qpns stack.Range, taken func(qpn uint32) bool) *Engine {
	e := &Engine{
		nics:    nics,
		regions: regions,
		timers:  queue,
		qps:     keys.NewRange[qp](qpns.Base, qpns.Mask, rand, func(n uint32) bool { return n <= 1 || n == multicastQPN || taken(n) }),
	}
	e.env.Clock = queue.Now
	e.shared.Clock = queue.Now
	e.selective, e.strictICRC = cfg.SelectiveRepeat, cfg.StrictICRC
	if cfg.ByDelay != nil {
		e.byDelay = newByDelay(cfg.ByDelay)
	}
	e.shared.Window = send.WindowOf(cfg.Window)
	if cfg.DCQCN != nil {
		e.dcqcn = withDefaults(*cfg.DCQCN)
	}
	e.gsi.e = e
	e.delayed.timer.Init(e.sendDelayed)
	for i, nic := range nics {
		port := uint8(i + 1)
		stations.Store(nic, &station{e, nic, port})
		if datagrams := nic.Datagrams(); datagrams != nil {
			datagrams.Receive(func(d *stack.Datagram) { e.receive(port, d) })
		}
	}
	return e
}

// HasQP reports whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close stops reception; no QP is left by then.
func (e *Engine) Close() {
	for _, nic := range e.nics {
		if s := stationOf(nic); s != nil && s.e == e {
			stations.CompareAndDelete(nic, s)
		}
		if datagrams := nic.Datagrams(); datagrams != nil {
			datagrams.Receive(nil)
		}
	}
}

// now is the monotonic time since the device was opened.
func (e *Engine) now() time.Duration { return e.timers.Now() }

// sends reports whether requests are under way in a state.
func sends(s verbs.QPState) bool { return s == verbs.StateRTS || s == verbs.StateSQD }

// receives reports whether a QP takes packets in a state.
func receives(s verbs.QPState) bool { return s >= verbs.StateRTR && s <= verbs.StateSQE }

// qp is the provider's half of a QP. All of it is guarded by the QP's lock.
type qp struct {
	// What a peer in the same process writes to, or reads for each message, shares no cache line
	// with the rest.
	receiving receive.State
	resp      responder
	recvs     uint64
	num       uint32
	dest      uint32 // the peer's QP number
	mtu       uint32 // path MTU in bytes of payload
	port      uint8
	service   wire.Transport
	kind      verbs.QPType
	blockSelf bool // QPInitAttr.BlockSelfMcastLB
	destroyed bool
	direct    directFlags

	mark wire.Mark // of the requests that this QP sends; 0 if it marks none

	mayCrowd  bool // path is a stack.Backlogged
	paired    bool // the QP at near and this one are each other's peers
	isDelayed bool // it is among the engine's delayed
	posted    bool // something was posted since an application last polled

	e    *Engine
	h    verbs.QPHandle
	path stack.Path
	ends *stack.Ends // of path
	near *station    // of a peer in this process: what path leads to
	met  *qp         // the QP at near, if paired

	sending    send.State  // of the reliable services
	unreliable *unreliable // of the others; else nil

	out   stack.Sender // packets that will be sent before the lock is released; nil if there are none
	timer timers.Timer
	stats *stats // see count

	pace   *pacer    // nil: no limit
	notify *notifier // nil: congestion is not looked for

	nextDelayed *qp // of the engine's delayed, if this is one
}

// reliable reports whether the QP acknowledges what comes, and wants that of its peer.
func (q *qp) reliable() bool { return q.service == wire.RC || q.service == wire.XRC }

// draining reports whether no new request may be begun.
func (q *qp) draining() bool { return q.h.State() == verbs.StateSQD }

// begun reports whether a request is under way.
func (q *qp) begun() bool {
	if u := q.unreliable; u != nil {
		return u.packet != 0
	}
	return q.sending.Begun()
}
