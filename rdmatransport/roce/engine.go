// Package roce speaks RoCEv2: reliable and unreliable connections and datagrams over UDP 4791; and RoCE v1, the same
// directly over Ethernet, where a source GID is one of that.
//
// The way of a packet. Out: verbs locks the QP and calls PostSend; package send says which packets of which request may be
// sent, and requester.go writes them into a sender of the stack. In: engine.go checks the ICRC and finds the QP, then
// requests go to responder.go, whose answers response.go sends in order, and acknowledgements and responses go to
// completer.go, which tells package send of them and completes work requests. Package send holds all that is known of
// sending: the queue's cursor, what is in flight and what of it is lost, the window, credits, timeouts. Between two
// SoftRNICs reorder.go keeps what comes behind a gap. pacing.go keeps to a rate, which dcqcn.go finds by what
// notification.go hears of congestion. uc.go and ud.go are what unreliable services do instead, and multicast.go is
// datagrams to groups. Where both QPs are in one process, direct.go needs no packets.
//
// Everything about a QP happens under its lock, on the goroutine that brought the work: the application's for posts,
// the link's for packets, the timer queue's for timeouts.
package roce

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// qpnBits is the width of a QP number. Numbers 0 and 1 are the management QPs, 0xffffff is multicast.
const qpnBits = 24

// Engine is the RoCEv2 half of a device.
type Engine struct {
	Counters Counters

	nics    []stack.NIC
	regions *memory.Regions
	timers  *timers.Queue
	qps     *keys.Table[qp]
	clock   send.Clock // of all times that QPs keep
	gsi     GSI
	groups  groups
	waiting waiting
	flushes flushes

	dcqcn       *DCQCN       // nil: off
	mark        uint8        // BTH.Reserved7 of all packets: wire.SelectiveMark or 0
	reorders    atomic.Int32 // in use
	reorderPool sync.Pool
}

// Config is how a device wants its reliable connections.
type Config struct {
	// GoBackN repeats everything from a lost packet on, as towards peers that are no SoftRNIC.
	GoBackN bool
	// DCQCN turns congestion control of connections on: packets say that they may be marked (ECT(0)), those that come
	// marked are answered with CNPs, and CNPs slow a connection down. &DCQCN{} has the default parameters; nil is off,
	// and CNPs are ignored.
	DCQCN *DCQCN
}

// New starts an engine on every NIC. QP numbers are drawn from rand, but none that taken says is in use by another
// transport.
func New(nics []stack.NIC, cfg Config, regions *memory.Regions, queue *timers.Queue, rand io.Reader, taken func(qpn uint32) bool) *Engine {
	e := &Engine{
		nics:    nics,
		regions: regions,
		timers:  queue,
		qps:     keys.New[qp](qpnBits, rand, func(n uint32) bool { return n <= 1 || n == multicastQPN || taken(n) }),
	}
	e.clock = queue.Now
	if !cfg.GoBackN {
		e.mark = wire.SelectiveMark
	}
	if cfg.DCQCN != nil {
		e.dcqcn = cfg.DCQCN.withDefaults()
	}
	e.gsi.e = e
	e.waiting.timer.Init(func() { e.release(true) })
	for i, nic := range nics {
		port := uint8(i + 1)
		stations.Store(nic, &station{e, nic, port})
		nic.Datagrams().Receive(func(d *stack.Datagram) { e.receive(port, d) })
	}
	return e
}

// HasQP tells whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close stops reception; no QP is left by then.
func (e *Engine) Close() {
	for _, nic := range e.nics {
		if s := stationOf(nic); s != nil && s.e == e {
			stations.CompareAndDelete(nic, s)
		}
		nic.Datagrams().Receive(nil)
	}
}

// now is the monotonic time since the device was opened.
func (e *Engine) now() time.Duration { return e.timers.Now() }

// receive takes one frame's datagrams. All packets of one QP in a row are handled in one hold of its lock, and
// answered with one acknowledgement.
func (e *Engine) receive(port uint8, d *stack.Datagram) {
	var pkt wire.Packet
	var held *qp
	for {
		b, ok := d.Next()
		if !ok {
			break
		}
		// A reserved opcode is its QP's to refuse.
		if err := pkt.Parse(b); err != nil && err != wire.ErrOpcode {
			e.Counters.Malformed.Add(1)
			continue
		}
		if !wire.CheckICRC(d.Header, b) {
			e.Counters.ICRCErrors.Add(1)
			continue
		}
		if pkt.DestQP == mad.QPN || pkt.DestQP == multicastQPN {
			if held != nil { // these lock QPs of their own
				held.leave(d.Polled)
				held = nil
			}
			if pkt.DestQP == mad.QPN {
				e.gsi.receive(port, d, &pkt)
			} else {
				e.receiveMulticast(port, d, &pkt)
			}
			continue
		}
		q := e.qps.Get(pkt.DestQP)
		if q == nil {
			e.Counters.UnknownQP.Add(1)
			continue
		}
		if q != held {
			if held != nil {
				held.leave(d.Polled)
			}
			q.h.Lock()
			held = q
		}
		held.receive(port, d, &pkt)
	}
	if held != nil {
		held.leave(d.Polled)
	}
}

// receive hands a packet to the half of the QP that it is for. IBTA Vol 1 §9.6.1 lists the checks.
func (q *qp) receive(port uint8, d *stack.Datagram, pkt *wire.Packet) {
	info := pkt.Opcode.Info()
	state := q.h.State()
	switch {
	case q.destroyed || !receives(state), port != q.port,
		q.service != wire.UD && (d.Src != q.ends.Dst || d.Dst != q.ends.Src || d.V1 != q.ends.V1),
		q.service == wire.UD && d.Dst.IsMulticast() != (pkt.DestQP == multicastQPN):
		q.e.Counters.Misdirected.Add(1)
		return
	case pkt.PKey&0x7fff != defaultPKey&0x7fff:
		q.e.Counters.BadPKey.Add(1)
		return
	case pkt.Opcode == wire.CNP:
		q.stats.rcvdPkts++
		q.notified()
		return
	case q.service == wire.UD:
		q.receiveDatagram(d, pkt)
		return
	case pkt.Opcode.Transport() != q.service:
		q.e.Counters.Malformed.Add(1)
		return
	}
	q.stats.rcvdPkts++
	if q.notify != nil && d.TrafficClass&ecnMask == congestionExperienced {
		q.congestionAhead()
	}
	switch {
	case q.service == wire.UC:
		q.receiveMessage(pkt, info)
	case info.Request() || !info.Known():
		if q.kind != verbs.XRCSend {
			q.request(pkt, info)
		}
	case sends(state) && q.kind != verbs.XRCRecv:
		q.response(pkt, info)
	}
}

// sends tells whether requests are under way in a state.
func sends(s verbs.QPState) bool { return s == verbs.StateRTS || s == verbs.StateSQD }

// receives tells whether a QP takes packets in a state.
func receives(s verbs.QPState) bool { return s >= verbs.StateRTR && s <= verbs.StateSQE }
