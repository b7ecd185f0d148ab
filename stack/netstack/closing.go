package netstack

// The end of a connection after its stream is closed. gVisor still sends the contents of the send
// buffer, then FIN. The side that closed first stays in TIME-WAIT. Without limits, a peer that
// stops reading but acknowledges window probes would hold a send buffer forever. TIME-WAIT would
// hold the port, and six kilobytes, for a minute. Therefore:
//
//   - A connection that has not ended after the linger time is aborted.
//   - A connection in TIME-WAIT is replaced by a new one on the same addresses and ports,
//     according to RFC 6191, whichever end opens that. gVisor itself compares sequence numbers
//     only, which advance more slowly than a fast transfer uses them.
//   - The number of connections in TIME-WAIT is bounded: beyond it the oldest are discarded.

import (
	"container/list"
	"context"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/link/clock"
)

const (
	// timestampTick is the time for which a connection's timestamps may stay the same, with some
	// margin: gVisor's timestamps count milliseconds. A new connection on the same addresses and ports
	// starts at least this long after the old one's last segment. The peer then distinguishes them by
	// timestamps (RFC 6191 §2, RFC 7323 §5).
	timestampTick = 2 * time.Millisecond

	// closeGrace is the time that a dial from a given port waits for a closed stream's connection on
	// that port to end.
	closeGrace = 500 * time.Millisecond
)

// closings are a host's connections with closed streams, until TCP has finished them.
type closings struct {
	linger    time.Duration
	timeWaits int // at most
	memory    *tcpMemory
	clock     clock.Clock

	mu       sync.Mutex // taken after gVisor's locks: none of those may be taken under it
	byID     map[gstack.TransportEndpointID]*closing
	timeWait list.List // of *closing, the longest in TIME-WAIT first
	over     bool      // the host is closed
}

// closing is one such connection.
type closing struct {
	all   *closings
	id    gstack.TransportEndpointID
	ep    tcpip.Endpoint
	entry waiter.Entry

	// Guarded by all.mu.
	state closingState
	since time.Time     // start of timeWait or gone
	moved chan struct{} // closed when the state lingering ends
	place *list.Element // in all.timeWait
	timer clock.Timer

	claimed  bool  // a SYN is about to replace it
	reserved int64 // for its buffers, while lingering
}

type closingState uint8

const (
	// Data or FIN is unsent or unacknowledged, or the peer's FIN is missing.
	lingering closingState = iota
	timeWait
	gone // ended, and remembered for timestampTick
)

// close passes a stream's endpoint to gVisor to finish. Its buffers have reserved memory.
func (c *closings) close(ep tcpip.Endpoint, wq *waiter.Queue, reserved int64) {
	r := &closing{all: c, id: idOf(ep), ep: ep, reserved: reserved, moved: make(chan struct{})}
	r.entry.Init(r, waiter.EventHUp)
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		ep.Close()
		return
	}
	c.byID[r.id] = r
	r.timer = c.clock.AfterFunc(c.linger, r.expire)
	c.mu.Unlock()
	wq.EventRegister(&r.entry)
	// The linger time suffices, and gVisor would probe in TIME-WAIT too.
	ep.SocketOptions().SetKeepAlive(false)
	ep.Close()
	r.NotifyEvent(waiter.EventHUp) // it may have ended before the entry was registered
}

// NotifyEvent implements waiter.EventListener: the connection may have entered TIME-WAIT or ended.
// gVisor may hold the endpoint's lock.
func (r *closing) NotifyEvent(waiter.EventMask) {
	c := r.all
	c.mu.Lock()
	defer c.mu.Unlock()
	was := r.state
	switch tcp.EndpointState(r.ep.State()) {
	case tcp.StateTimeWait:
		if was == lingering {
			r.enter(timeWait)
			r.timer.Stop()
			r.place = c.timeWait.PushBack(r)
			if c.timeWait.Len() > c.timeWaits {
				c.timeWait.Remove(c.timeWait.Front()).(*closing).timer.Reset(0)
			}
		}
	case tcp.StateClose, tcp.StateError:
		if was != gone {
			if r.place != nil {
				c.timeWait.Remove(r.place)
			}
			r.enter(gone)
			r.timer.Reset(timestampTick)
		}
	}
}

// enter changes the state. all.mu is held.
func (r *closing) enter(s closingState) {
	if r.state == lingering {
		close(r.moved)
		r.all.memory.release(r.reserved) // the buffers are empty
	}
	r.state, r.since = s, r.all.clock.Now()
}

// expire is called when the state has lasted long enough.
func (r *closing) expire() {
	c := r.all
	c.mu.Lock()
	state := r.state
	if state == gone && c.byID[r.id] == r {
		delete(c.byID, r.id)
	}
	c.mu.Unlock()
	switch state {
	case lingering:
		r.ep.Abort()
	case timeWait:
		r.discard()
	}
}

// discard ends TIME-WAIT without the RST that Abort would send. The peer no longer has a connection
// with these addresses and ports, or has a new one.
func (r *closing) discard() {
	r.ep.SocketOptions().SetMark(Discard)
	r.ep.Abort()
}

// find returns a connection with a closed stream, its state, and the start of that state. It
// returns nil if there is none.
func (c *closings) find(id gstack.TransportEndpointID) (r *closing, state closingState, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r = c.byID[id]; r != nil {
		state, since = r.state, r.since
	}
	return r, state, since
}

// awaitPort waits until a new connection may use the addresses and ports of a connection whose
// stream is closed. If patient is false, it fails instead of waiting. The error is the context's,
// or EADDRINUSE.
func (c *closings) awaitPort(ctx context.Context, id gstack.TransportEndpointID, patient bool) error {
	r, state, since := c.find(id)
	if r == nil {
		return nil
	}
	free := since.Add(timestampTick)
	if !patient && (state == lingering || c.clock.Now().Before(free)) {
		return syscall.EADDRINUSE
	}
	if state == lingering {
		ctx, cancel := c.clock.WithTimeoutCause(ctx, closeGrace, syscall.EADDRINUSE)
		defer cancel()
		select {
		case <-r.moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r, state, since = c.find(id); r == nil {
			return nil
		}
		free = since.Add(timestampTick)
	}
	tick, timer := c.clock.NewTimer(c.clock.Until(free))
	defer timer.Stop()
	select {
	case <-tick:
	case <-ctx.Done():
		return ctx.Err()
	}
	if state == timeWait {
		if !timestamps(r.ep) {
			return syscall.EADDRINUSE
		}
		r.discard()
	}
	return nil
}

// timestamps reports whether a connection uses timestamps.
func timestamps(ep tcpip.Endpoint) bool {
	e, ok := ep.(*tcp.Endpoint)
	if !ok {
		return false
	}
	e.LockUser()
	defer e.UnlockUser()
	return e.SendTSOk
}

// superseded reports whether a SYN for a connection in TIME-WAIT opens a new one: its timestamp is
// later than all received ones (RFC 6191 §2). Other SYNs follow gVisor's rule, which compares
// sequence numbers.
func superseded(ep gstack.TransportEndpoint, segment header.TCP, pkt *gstack.PacketBuffer) bool {
	const kind = header.TCPFlagSyn | header.TCPFlagAck | header.TCPFlagRst | header.TCPFlagFin
	e, ok := ep.(*tcp.Endpoint)
	if !ok || segment.Flags()&kind != header.TCPFlagSyn || tcp.EndpointState(e.State()) != tcp.StateTimeWait ||
		!checksumValid(segment, pkt) {
		return false
	}
	o := header.ParseSynOptions(segment.Options(), false)
	if !e.TryLock() {
		// The lock's holder may be about to lock gVisor's connection table, which is locked here. The SYN
		// is dropped, and the peer will retransmit it.
		return false
	}
	// TryLock is followed by ResumeWork. UnlockUser would also process queued segments. These are
	// processed with this one if it is queued; otherwise their connection no longer exists.
	defer e.ResumeWork()
	return o.TS && e.SendTSOk && seqnum.Value(e.RecentTS).LessThan(seqnum.Value(o.TSVal))
}

func checksumValid(segment header.TCP, pkt *gstack.PacketBuffer) bool {
	ip := pkt.Network()
	_, valid, ok := header.TCPValid(segment, func() uint16 { return pkt.Data().Checksum() }, uint16(pkt.Data().Size()),
		ip.SourceAddress(), ip.DestinationAddress(), pkt.RXChecksumValidated)
	return valid && ok
}

// supersede ends a connection in TIME-WAIT in favour of the new one that pkt opens, and passes pkt
// on. If the stream is not closed yet, it may have unread data. pkt is then received again after
// the close. gVisor's connection table is locked.
func (l *lazyTCP) supersede(ep gstack.TransportEndpoint, id gstack.TransportEndpointID, pkt *gstack.PacketBuffer) {
	if s, ok := l.streams.Load(ep); ok && s.(*stream).awaitClose(pkt) {
		return
	}
	r := l.closings.claim(id)
	if r == nil {
		return // an earlier copy of the SYN is being processed
	}
	pkt = pkt.Clone()
	go func() {
		defer pkt.DecRef()
		r.discard()
		l.get().QueuePacket(ep, id, pkt) // its connection is gone, so gVisor looks for a listener
	}()
}

// claim returns the connection in TIME-WAIT with these addresses and ports. Only the first caller
// gets it.
func (c *closings) claim(id gstack.TransportEndpointID) *closing {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.byID[id]
	if r == nil || r.state != timeWait || r.claimed {
		return nil
	}
	r.claimed = true
	return r
}

// stop drops all connections, because the host is closed.
func (c *closings) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, r := range c.byID {
		r.timer.Stop()
	}
	clear(c.byID)
	c.timeWait.Init()
}

// idOf returns the addresses and ports of a connection.
func idOf(ep tcpip.Endpoint) gstack.TransportEndpointID {
	return ep.Info().(*gstack.TransportEndpointInfo).ID
}
