// Package rocetransport is the engine of RoCEv2 and RoCE v1: it turns the work requests of QPs into
// packets, and packets into completions. The public package roce has its configuration, and
// documents the supported features.
//
// Send path: verbs locks the QP and calls PostSend (senddue.go). Package send selects the packets
// of each request, and requester.go writes them into frames of packet.go.
//
// Receive path: receive.go checks the ICRC, with identification.go if the network stack does not
// see IP headers, and finds the QP. Requests go to responder.go. It asks package receive to
// classify them, and reports their results to it. response.go sends the responses and
// acknowledgements that are then due. Acknowledgements and responses go to completer.go, which
// reports them to package send. outcome.go completes work requests or fails the QP. Before the QP
// is unlocked, senddue.go sends packets that became due. timer.go handles later deadlines, and
// delayed.go delays packets that may share a frame.
//
// Package send has all send state: the cursor in the queue, packets in flight, losses, the window,
// credits and timeouts. Package receive has all receive state: the expected PSN, NAKs that are due,
// early packets, and responses. pacing.go limits a QP to its rate, which dcqcn.go computes from the
// CNPs of notification.go. deferred.go executes slow requests. uc.go and ud.go have the unreliable
// services, and multicast.go multicast datagrams. direct.go moves messages without packets if both
// QPs are in one process. qp.go creates QPs and handles their state transitions, trace.go traces
// them, and engine.go has the types of an engine, of a QP, and of a QP's parts.
//
// A QP's state is only accessed under its lock, on the goroutine that has the work: the
// application's for posts, the link's for packets, and the timer queue's for timeouts.
package rocetransport

import (
	"cmp"
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/access"
	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/ipid"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// qpnBits is the width of a QP number. Numbers 0 and 1 are the management QPs, and 0xffffff is
// multicast.
const qpnBits = 24

// Engine is the RoCE part of a device.
type Engine struct {
	Counters Counters

	nics    []stack.NIC
	regions *memory.Regions
	timers  *timers.Queue
	access  *access.Control
	qps     *keys.Table[qp]
	env     send.Env // of QPs without tracing
	gsi     GSI
	groups  groups
	delayed delayed
	flushes flushes

	trace     trace.Sink  // nil: off
	dcqcn     *roce.DCQCN // nil: off
	selective bool        // packets of reliable connections are marked (wire.Mark)

	ids        ipid.Peers // IPv4 identifications computed from ICRCs
	strictICRC bool       // identifications are not computed
	rxeFlush   bool       // the ICRC of an RC FLUSH is that of Linux's rxe

	trimmedDSCP uint8 // of packets that a switch has trimmed; 0: off

	shared  receive.Shared // of all QPs
	byDelay *byDelay       // nil without congestion control by delay
}

// New starts an engine on every NIC. QP numbers are drawn from qpns with rand, except those that
// taken reports as used by another transport.
func New(nics []stack.NIC, cfg roce.Config, regions *memory.Regions, queue *timers.Queue, control *access.Control,
	rand io.Reader, qpns stack.Range, taken func(qpn uint32) bool) *Engine {
	e := &Engine{
		nics:    nics,
		regions: regions,
		timers:  queue,
		access:  control,
		qps:     keys.NewRange[qp](qpns.Base, qpns.Mask, rand, func(n uint32) bool { return n <= 1 || n == multicastQPN || taken(n) }),
	}
	e.env.Clock = queue.Now
	e.shared.Clock = queue.Now
	simulated := queue.Clock().Virtual()
	e.env.Prompt, e.shared.NoForgeries = simulated, simulated
	e.env.Answers = new(send.LateAnswers)
	e.selective, e.strictICRC, e.rxeFlush = cfg.SelectiveRepeat, cfg.StrictICRC, cfg.RxeFlush
	e.trimmedDSCP = cfg.TrimmedDSCP
	if cfg.ByDelay != nil {
		e.byDelay = newByDelay(cfg.ByDelay)
	}
	e.shared.Window = uint32(cmp.Or(cfg.Window, send.DefaultWindow))
	if cfg.DCQCN != nil {
		e.dcqcn = withDefaults(*cfg.DCQCN)
	}
	e.gsi.e = e
	e.delayed.timer.Init(e.sendDelayedOfAllQPs)
	for i, nic := range nics {
		port := uint8(i + 1)
		enginePorts.Store(nic, &enginePort{e, nic, port})
		if datagrams := nic.Datagrams(); datagrams != nil {
			datagrams.Receive(func(d *stack.Datagram) { e.receive(port, d) })
		}
	}
	return e
}

// HasQP reports whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close stops reception. All QPs are closed by then.
func (e *Engine) Close() {
	for _, nic := range e.nics {
		if s := enginePortOf(nic); s != nil && s.e == e {
			enginePorts.CompareAndDelete(nic, s)
		}
		if datagrams := nic.Datagrams(); datagrams != nil {
			datagrams.Receive(nil)
		}
	}
}

// now returns the monotonic time since the device was opened.
func (e *Engine) now() time.Duration { return e.timers.Now() }

// sends reports whether a QP sends requests in a state.
func sends(s verbs.QPState) bool { return s == verbs.StateRTS || s == verbs.StateSQD }

// receives reports whether a QP accepts packets in a state.
func receives(s verbs.QPState) bool { return s >= verbs.StateRTR && s <= verbs.StateSQE }

// qp is the provider's part of a QP. The QP's lock protects it.
type qp struct {
	// The fields that a peer in the same process writes, or reads for each message, share no cache
	// line with the others.
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
	mover     direct.Mover

	resumed        bool // PostSend is called by Modify, from SQD to RTS
	sharedReceives bool // receive requests come from an SRQ

	mark wire.Mark // of this QP's requests; 0 if they are not marked

	room            pathRoom
	isDelayed       bool // it is on the engine's stack of delayed QPs
	corkedSincePoll bool // a request was corked since an application last polled

	e        *Engine
	h        verbs.QPHandle
	path     stack.Path
	ends     *stack.Ends // of path
	peerPort *enginePort // the port that path leads to, if in this process
	pairedQP *qp         // the QP at peerPort, if this QP and it are each other's peers

	sending    send.State  // of the reliable services
	unreliable *unreliable // of the unreliable services, otherwise nil

	out   stack.Sender // packets to be sent before the lock is released; nil if there are none
	timer timers.Timer
	stats *stats // see count

	pace   *pacer    // nil: no limit
	notify *notifier // nil: no ECN

	nextDelayed *qp // next QP on the engine's stack of delayed QPs
}

// unlockOnly unlocks the QP and sends nothing. It is for callers that only looked at the QP, or
// that have sent what was due. All others call sendDueAndUnlock.
func (q *qp) unlockOnly() { q.h.Unlock() }

// reliable reports whether the service has acknowledgements.
func (q *qp) reliable() bool { return q.service == wire.RC || q.service == wire.XRC }

// draining reports whether no new request may be started.
func (q *qp) draining() bool { return q.h.State() == verbs.StateSQD }

// begun reports whether a request is started.
func (q *qp) begun() bool {
	if u := q.unreliable; u != nil {
		return u.packet != 0
	}
	return q.sending.Begun()
}

// pacer limits a QP's packets to a rate.
type pacer struct {
	limit   float64     // QPAttr.RateLimit in bits per second; 0 is none
	react   *reaction   // nil without DCQCN
	sending *send.State // provides the rate of a window; nil if a window is sent at once
	baseRTT *baseRTT    // of sending

	env *send.Env // for its Allowance

	debt float64 // bits sent by the time last beyond what the rate allowed; negative if fewer
	last time.Duration
	// When the next packet may be sent, or the rate increases; 0 if nothing waits.
	wake       time.Duration
	nextAckReq time.Duration // the rate causes no acknowledgement request before this time
}

// unreliable is the send state of UC and UD.
type unreliable struct {
	psn    uint32        // of the next packet
	packet uint32        // UC: index of the next packet in the oldest request
	resume time.Duration // UC: end of the pause after a window; 0 if there is none
	dest   uint32        // UD: destination of the last packet

	_ [40]byte // keeps different QPs in different cache lines
}

// responder is the state of the message that is being received. Acknowledgements and responses that
// are due are in package receive.
type responder struct {
	placed     uint64    // bytes of the open message placed in its receive request, or at write.Addr
	write      wire.RETH // of a WRITE
	srqn       uint32    // XRC: the SRQ of the open message
	message    msgKind   // the kind of the open message
	taken      bool      // the message has taken a receive request
	gotRequest bool      // a request was executed or refused
	unstarted  uint8     // deferred requests that have not started
	pd         *verbs.PD // XRC: PD of the SRQ of the current request or response
}

// notifier is a connection's notification point.
type notifier struct {
	path stack.Path    // of CNPs
	next time.Duration // earliest time of the next CNP
}

// enginePort is a port of an engine.
type enginePort struct {
	e    *Engine
	nic  stack.NIC
	port uint8
}
