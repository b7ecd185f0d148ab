// Package iwarp is the engine of iWARP: RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) over MPA
// (RFC 5044, RFC 6581) over the stack's TCP. The public package iwarp has its configuration, and
// says what it supports; the formats and the framing of the layers are packages below that one.
//
// The way of a message. Set-up: connect.go and listen.go exchange MPA's request and reply frames on
// a TCP stream, and verbs hands the started stream to the QP as it enters RTS. Out: verbs locks the
// QP and calls PostSend; sender.go decides what is sent next, by its phase (phase.go), its place in
// the send queue (cursor.go) and the READs that are outstanding (reads.go). requests.go and
// responses.go make segments of it (segment.go), and output.go gives those to the stream, whose
// send buffer has them filled in place, CRC included; small ones, and the ends of long ones, go
// there together. In: receiver.go runs on the one goroutine that a QP has while its stream is busy,
// MPA's receiver finds the segments where TCP has them, placement.go checks and places them;
// responses to READs and atomics wait in responses.go for room in the stream. terminate.go ends a
// stream on which something went wrong.
//
// Locks, in the order they are taken: QP, conn.mu, then listener.mu or the stream's own.
package iwarp

import (
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Engine is the iWARP half of a device.
type Engine struct {
	Counters Counters

	net     stack.Network
	config  iwarp.Config
	route   RouteFunc
	regions *memory.Regions
	timers  *timers.Queue
	rand    io.Reader
	qps     *keys.Table[qp]
	work    sync.WaitGroup // goroutines of streams
	trace   trace.Sink     // nil: off

	dials order[netip.AddrPort] // the connections that ask for one, by where they go

	mu        sync.Mutex // taken last
	streams   map[*verbs.PD]int
	listeners map[*listener]struct{} // those that listen, or have requests that are not answered
}

// RouteFunc finds the port and the GID index of a local address.
type RouteFunc func(local, remote netip.Addr) (rdmacm.Route, error)

// New makes an engine. QP numbers are drawn from qpns with rand, but none that taken says is in use
// by another transport.
func New(net stack.Network, config iwarp.Config, regions *memory.Regions, queue *timers.Queue, rand io.Reader, route RouteFunc,
	qpns stack.Range, taken func(qpn uint32) bool) *Engine {
	return &Engine{
		net:       net,
		config:    config,
		route:     route,
		regions:   regions,
		timers:    queue,
		rand:      rand,
		streams:   map[*verbs.PD]int{},
		listeners: map[*listener]struct{}{},
		qps:       keys.NewRange[qp](qpns.Base, qpns.Mask, rand, func(n uint32) bool { return n <= 1 || n == 1<<24-1 || taken(n) }),
	}
}

// HasQP reports whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close closes the listeners and waits for the goroutines of all streams. All QPs have been
// destroyed before.
func (e *Engine) Close() {
	e.mu.Lock()
	listeners := slices.Collect(maps.Keys(e.listeners))
	e.mu.Unlock()
	for _, l := range listeners {
		l.closeAll()
	}
	e.work.Wait()
}

// countStream adds n to the number of streams whose QPs are of a PD.
func (e *Engine) countStream(pd *verbs.PD, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.streams[pd] += n; e.streams[pd] == 0 {
		delete(e.streams, pd)
	}
}

// shared reports whether several streams use a PD, and with it the STags of its regions.
func (e *Engine) shared(pd *verbs.PD) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams[pd] > 1
}

// CreateQP makes a QP in state RESET and draws its number.
func (e *Engine) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	if attr.Type != verbs.RC {
		return nil, 0, verbs.Errorf(verbs.ErrNotSupported, "create QP", "QP type %v over iWARP", attr.Type)
	}
	q := &qp{e: e, h: h, depth: uint32(attr.Cap.MaxSendWR), srq: attr.SRQ != nil}
	q.tx.init(attr.Cap.MaxSendWR)
	num, err := e.qps.Insert(q)
	if err != nil {
		return nil, 0, verbs.Errorf(verbs.ErrNoMemory, "create QP", "%v", err)
	}
	q.num = num
	if e.trace != nil {
		q.tx.lifecycle.setTracer(q.tracePhase)
	}
	return q, num, nil
}
