// Package iwarptransport is the engine of iWARP: RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041)
// over MPA (RFC 5044, RFC 6581) over the stack's TCP. The public package iwarp has its
// configuration, and documents the supported features. The formats and the framing of the layers
// are in rdmatransport.
//
// Set-up: connect.go and listen.go exchange MPA's request and reply frames on a TCP stream. verbs
// passes the stream to the QP when it enters RTS (qp.go). disconnect.go and end.go end a connection
// and a QP's stream.
//
// Send path: verbs locks the QP and calls PostSend (send.go), which selects the next message. It
// depends on the phase (phase.go), the position in the send queue (cursor.go) and the outstanding
// READs (reads.go). requests.go and responses.go cut messages into segments (segment.go). output.go
// passes the segments to the stream. The send buffer of the stream is filled in place, including
// the CRC. Small segments, and the ends of long messages, are coalesced.
//
// Receive path: receive.go runs on the only goroutine of a QP, which exists while the stream is
// busy. MPA's receiver finds the segments in TCP's buffers, and placement.go checks and places
// them. Responses to READs and atomics wait in responses.go for room in the stream. terminate.go
// ends a stream after an error. If both ends are in this process, pairing.go finds the other end,
// and direct.go moves messages without the stream.
//
// Lock order: QP, conn.mu, then listener.mu or the stream's own lock.
package iwarptransport

import (
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/access"
	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Engine is the iWARP part of a device.
type Engine struct {
	Counters Counters

	net     stack.Network
	config  iwarp.Config
	route   RouteFunc
	regions *memory.Regions
	timers  *timers.Queue
	access  *access.Control
	rand    io.Reader
	qps     *keys.Table[qp]
	work    sync.WaitGroup // goroutines of streams
	trace   trace.Sink     // nil: off

	dials sequencer[netip.AddrPort] // outgoing connections, by destination

	mu        sync.Mutex // innermost lock
	streams   map[*verbs.PD]int
	listeners map[*listener]struct{} // listeners that are open or have unanswered requests
}

// RouteFunc finds the port and the GID index of a local address.
type RouteFunc func(local, remote netip.Addr) (rdmacm.Route, error)

// New returns an engine. QP numbers are drawn from qpns with rand, except those that taken reports
// as used by another transport.
func New(net stack.Network, config iwarp.Config, regions *memory.Regions, queue *timers.Queue, control *access.Control,
	rand io.Reader, route RouteFunc, qpns stack.Range, taken func(qpn uint32) bool) *Engine {
	return &Engine{
		net:       net,
		config:    config,
		route:     route,
		regions:   regions,
		timers:    queue,
		access:    control,
		rand:      rand,
		streams:   map[*verbs.PD]int{},
		listeners: map[*listener]struct{}{},
		qps:       keys.NewRange[qp](qpns.Base, qpns.Mask, rand, func(n uint32) bool { return n <= 1 || n == 1<<24-1 || taken(n) }),
	}
}

// HasQP reports whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// Close closes the listeners and waits for the goroutines of all streams. All QPs must be
// closed.
func (e *Engine) Close() {
	e.mu.Lock()
	listeners := slices.Collect(maps.Keys(e.listeners))
	e.mu.Unlock()
	for _, l := range listeners {
		l.closeAll()
	}
	e.work.Wait()
}

// countStream adds n to the number of streams whose QPs are in a PD.
func (e *Engine) countStream(pd *verbs.PD, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.streams[pd] += n; e.streams[pd] == 0 {
		delete(e.streams, pd)
	}
}

// shared reports whether several streams use a PD, and therefore the STags of its regions.
func (e *Engine) shared(pd *verbs.PD) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams[pd] > 1
}
