// Package roce speaks RoCEv2: the requester and responder of reliable connections over UDP 4791.
//
// The way of a packet. Out: verbs locks the QP and calls PostSend; requester.go cuts messages into packets, as many as
// the window lets out, and writes them into a sender of the stack. In: engine.go checks the ICRC and finds the QP, then
// requests go to responder.go, whose answers response.go sends in order, and acknowledgements and responses go to
// completer.go. retry.go holds the timers and what goes back when something was lost.
//
// Everything about a QP happens under its lock, on the goroutine that brought the work: the application's for posts,
// the link's for packets, the timer queue's for timeouts.
package roce

import (
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/keys"
	"github.com/softrnic/softrnic/rdmatransport/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/timers"
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
	start   time.Time // monotonic base of all times that QPs keep
	gsi     GSI
}

// New starts an engine on every NIC. QP numbers are drawn from rand, but none that taken says is in use by another
// transport.
func New(nics []stack.NIC, regions *memory.Regions, queue *timers.Queue, rand io.Reader, taken func(qpn uint32) bool) *Engine {
	e := &Engine{
		nics:    nics,
		regions: regions,
		timers:  queue,
		qps:     keys.New[qp](qpnBits, rand, func(n uint32) bool { return n <= 1 || n == 1<<qpnBits-1 || taken(n) }),
		start:   time.Now(),
	}
	e.gsi.e = e
	for i, nic := range nics {
		port := uint8(i + 1)
		nic.Datagrams().Receive(func(d *stack.Datagram) { e.receive(port, d) })
	}
	return e
}

// HasQP tells whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close stops reception; no QP is left by then.
func (e *Engine) Close() {
	for _, nic := range e.nics {
		nic.Datagrams().Receive(nil)
	}
}

// now is the monotonic time since the engine started.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

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
		if pkt.DestQP == mad.QPN {
			if held != nil { // its handler may lock any QP
				held.leave()
				held = nil
			}
			e.gsi.receive(port, d, &pkt)
			continue
		}
		q := e.qps.Get(pkt.DestQP)
		if q == nil {
			e.Counters.UnknownQP.Add(1)
			continue
		}
		if q != held {
			if held != nil {
				held.leave()
			}
			q.h.Lock()
			held = q
		}
		held.receive(port, d, &pkt)
	}
	if held != nil {
		held.leave()
	}
}

// receive hands a packet to the half of the QP that it is for. IBTA Vol 1 §9.6.1 lists the checks.
func (q *qp) receive(port uint8, d *stack.Datagram, pkt *wire.Packet) {
	info := pkt.Opcode.Info()
	state := q.h.State()
	switch {
	case q.destroyed || state != verbs.StateRTR && state != verbs.StateRTS,
		port != q.port, d.Src != q.remote, d.Dst != q.local:
		q.e.Counters.Misdirected.Add(1)
		return
	case pkt.PKey&0x7fff != defaultPKey&0x7fff:
		q.e.Counters.BadPKey.Add(1)
		return
	case pkt.Opcode.Transport() != wire.RC:
		q.e.Counters.Malformed.Add(1)
		return
	}
	q.stats.rcvdPkts++
	switch {
	case info.Request() || !info.Known():
		q.request(pkt, info)
	case state == verbs.StateRTS:
		q.response(pkt, info)
	}
}
