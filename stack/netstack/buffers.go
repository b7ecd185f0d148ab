package netstack

// The memory of TCP's buffers. All the host's connections share it. Every byte that a buffer may
// hold is reserved in it. gVisor keeps out-of-order segments in the receive buffer, so they are
// counted too.
//
// While half of the memory is free, buffers get their full sizes when first needed. The send buffer
// needs its full size when it is full. The receive buffer needs it when the connection is dialled,
// accepted or given to a QP. When less memory is free, a connection whose data needs it gets an
// equal share. The buffers of idle connections shrink again, and so do send buffers of connections
// above their share. A quarter of the memory is never used for growth, so that new connections can
// begin. A buffer with data does not shrink. If a peer leaves data unacknowledged, or sends it out
// of order, its connection keeps its memory until it ends, but gets no more than others.
//
// Only a few atomic operations run for each segment. The lock order is buffers.mu, then gVisor's
// endpoint; tcpMemory.mu is last.

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// Initial and minimum sizes of a connection's buffers, in bytes.
//
// gVisor reports room in the send buffer when less than half of it is in use. A piece of a stream
// must fit then. Otherwise Send would wait for a notification that never comes.
const (
	leastSend    = 128 << 10
	leastReceive = 64 << 10
	leastBuffers = leastSend + leastReceive
)

var _ [leastSend - 2*stack.MaxPiece]struct{}

const (
	// fastRead is the time in which a quarter of the receive buffer must be read for the buffer to
	// grow. A quarter is half of the window. Over paths with longer round trips the window does not
	// open further.
	fastRead = 200 * time.Millisecond

	// reclaimEvery is the least time between two searches for reclaimable memory. A connection without
	// traffic for that long is idle, because its peer's retransmission timeout is shorter.
	reclaimEvery = time.Second
)

// tcpMemory is the memory of the buffers of all connections of a host.
type tcpMemory struct {
	clock clock.Clock
	limit int64
	used  atomic.Int64 // sum of reservations
	conns atomic.Int64 // connections with reservations

	mu        sync.Mutex
	grown     map[*buffers]struct{} // larger than initially
	reclaimed time.Time             // time of the last reclaim
}

// TCPMemoryUsed returns the sum of the present buffer sizes of all TCP connections, in bytes; see
// TCPMemory.
func (h *Host) TCPMemoryUsed() int64 { return h.tcp.memory.used.Load() }

// admit reserves the initial buffers of a new connection. release returns them.
func (m *tcpMemory) admit() error {
	if m.reserve(leastBuffers, m.limit) || m.reclaim() && m.reserve(leastBuffers, m.limit) {
		m.conns.Add(1)
		return nil
	}
	return fmt.Errorf("the buffers of %d TCP connections leave %d of the %d bytes of TCPMemory: %w",
		m.conns.Load(), max(m.limit-m.used.Load(), 0), m.limit, syscall.ENOBUFS)
}

// release returns a connection's reservations.
func (m *tcpMemory) release(n int64) {
	m.used.Add(-n)
	m.conns.Add(-1)
}

// reserve reserves n bytes. It returns false if the total would exceed most.
func (m *tcpMemory) reserve(n, most int64) bool {
	for {
		used := m.used.Load()
		if used+n > most {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// growthLimit is the total up to which buffers may grow.
func (m *tcpMemory) growthLimit() int64 { return m.limit / 4 * 3 }

// share is an equal share of the memory for each connection.
func (m *tcpMemory) share() int64 { return m.growthLimit() / max(m.conns.Load(), 1) }

// reserveFull reserves n bytes for a connection's full buffer, if at least half of the memory is
// free afterwards.
func (m *tcpMemory) reserveFull(n int64) bool { return m.reserve(n, m.limit/2) }

// grow reserves up to n bytes for a connection that has had bytes, and returns the number. The
// number is n if half of the memory is free afterwards. Otherwise it is the difference to the
// connection's share, or as much of that as is available.
func (m *tcpMemory) grow(n, had int64) int64 {
	for again := true; ; again = false {
		if m.reserveFull(n) {
			return n
		}
		least := min(n, 64<<10) // to grow by less is not worth the cost
		for part := min(n, m.share()-had); part >= least; part /= 2 {
			if m.reserve(part, m.growthLimit()) {
				return part
			}
		}
		if !again || !m.reclaim() {
			return 0
		}
	}
}

// reclaim makes connections return unneeded or excess memory. It returns false if it ran less than
// reclaimEvery ago.
func (m *tcpMemory) reclaim() bool {
	m.mu.Lock()
	if m.clock.Since(m.reclaimed) < reclaimEvery {
		m.mu.Unlock()
		return false
	}
	m.reclaimed = m.clock.Now()
	grown := slices.Collect(maps.Keys(m.grown))
	m.mu.Unlock()
	share := m.share()
	for _, b := range grown {
		b.shrink(share)
	}
	return true
}

// track adds a connection to those that reclaim examines, or removes it. b.mu is held.
func (m *tcpMemory) track(b *buffers, grown bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if grown {
		m.grown[b] = struct{}{}
	} else {
		delete(m.grown, b)
	}
}

// buffers are the send and the receive buffer of one connection.
type buffers struct {
	ep     *tcp.Endpoint
	memory *tcpMemory
	first  uint32 // sequence number of the peer's first data byte
	known  bool   // first is set
	most   struct{ send, receive int64 }

	// Bytes that have passed; end is a sequence number.
	sent atomic.Uint64 // into the send buffer
	read atomic.Uint64 // by the application
	end  atomic.Uint32 // after the last received byte, with or without a gap before it

	sentMark atomic.Uint64 // sent, when the send buffer last grew or failed to grow
	// The value of read when the receive buffer last grew or failed to grow. Used by the reader only.
	readMark uint64
	readTime time.Time

	sendSize, receiveSize atomic.Int64 // written under mu

	mu          sync.Mutex
	receiveMost int64  // SetReadBuffer's value, or most.receive
	reserved    int64  // for the receive buffer: at least its size and leastReceive
	passed      uint64 // sent+read at the last reclaim
	closed      bool
}

// init is called after the memory has admitted the connection.
func (b *buffers) init(ep *tcp.Endpoint, m *tcpMemory, c *TCPConfig, note synNote, noted bool) {
	b.ep, b.memory = ep, m
	b.most.send, b.most.receive, b.receiveMost = int64(c.SendBuffer), int64(c.RecvBuffer), int64(c.RecvBuffer)
	b.first, b.known = note.seq+1, noted
	b.end.Store(b.first)
	b.sendSize.Store(leastSend)
	b.receiveSize.Store(leastReceive) // as gVisor has set it
	b.reserved = leastReceive
	ep.SocketOptions().SetSendBufferSize(leastSend, true) // disables gVisor's own growth
}

// arrived is called before gVisor processes a segment with data. end is the sequence number after
// the segment.
func (b *buffers) arrived(end uint32) {
	for {
		last := b.end.Load()
		if int32(end-last) <= 0 || int64(end-b.first-uint32(b.read.Load())) > b.most.receive {
			return // old data, or outside of any window
		}
		if b.end.CompareAndSwap(last, end) {
			return
		}
	}
}

// consumed is called by the reader after reading n bytes.
func (b *buffers) consumed(n int) {
	read := b.read.Add(uint64(n))
	if read-b.readMark < uint64(b.receiveSize.Load())/4 {
		return
	}
	now := b.memory.clock.Now()
	if now.Sub(b.readTime) < fastRead {
		b.growReceive()
	}
	b.readMark, b.readTime = read, now
}

func (b *buffers) growReceive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := b.receiveSize.Load()
	if b.closed || size >= b.receiveMost {
		return
	}
	if n := b.receiveMost - b.reserved; n > 0 {
		b.reserved += b.memory.grow(n, b.sendSize.Load()+b.reserved)
		b.memory.track(b, true)
	}
	if larger := min(b.reserved, b.receiveMost); larger > size {
		b.setReceive(larger)
	}
}

// returnReceive returns reserved memory beyond a receive buffer of this size. It returns false if
// the buffer may have data.
func (b *buffers) returnReceive(size int64) bool {
	if !b.empty() {
		return false
	}
	if size = max(size, leastReceive); b.reserved > size {
		b.memory.used.Add(size - b.reserved)
		b.reserved = size
	}
	return true
}

// empty reports whether the receive buffer is known to be empty: all received data has been read.
func (b *buffers) empty() bool { return b.known && b.end.Load() == b.first+uint32(b.read.Load()) }

func (b *buffers) setReceive(size int64) {
	b.receiveSize.Store(size)
	b.ep.SocketOptions().SetReceiveBufferSize(size, true)
}

// acked reports whether the peer has acknowledged some of the data that was sent since the buffer
// last grew.
func (b *buffers) acked() bool { return b.sent.Load()-b.sentMark.Load() > uint64(b.sendSize.Load()) }

// hasRoom reports whether the send buffer has room for a byte.
func (b *buffers) hasRoom() bool { return b.ep.Readiness(waiter.WritableEvents) != 0 }

// growSend grows the send buffer, which has been full. It returns false if the size does not
// change.
func (b *buffers) growSend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := b.sendSize.Load()
	if b.closed || size >= b.most.send {
		return false
	}
	n := b.most.send - size
	if !b.memory.reserveFull(n) {
		if !b.acked() {
			return false // the peer has not taken a full buffer yet
		}
		b.sentMark.Store(b.sent.Load())
		if n = b.memory.grow(n, size+b.reserved); n == 0 {
			return false
		}
	}
	b.sentMark.Store(b.sent.Load())
	b.memory.track(b, true)
	b.setSend(size + n)
	b.ep.WakeupWriters() // other writers may wait, and gVisor uses the new size from now on
	return true
}

// setSend sets the size of the send buffer. gVisor must not process the connection meanwhile: when
// there is room again, it stores the previous size.
func (b *buffers) setSend(size int64) {
	b.sendSize.Store(size)
	b.ep.LockUser()
	b.ep.SocketOptions().SetSendBufferSize(size, false)
	b.ep.UnlockUser()
}

// shrink returns memory. An idle connection returns the growth of both buffers. An active
// connection above the share returns half of its send buffer. Its receive buffer stays, because its
// window was advertised, and data for it would be lost. A peer that becomes active again must first
// open its congestion window, so it does not send a full window at once.
func (b *buffers) shrink(share int64) {
	if !b.mu.TryLock() {
		return // it is growing at this moment
	}
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	passed := b.sent.Load() + b.read.Load()
	silent := passed == b.passed
	b.passed = passed
	switch size := b.sendSize.Load(); {
	case silent:
		b.shrinkSend(leastSend)
		b.shrinkReceive(min(leastReceive, b.receiveMost))
	case size+b.reserved > share:
		b.shrinkSend(max(leastSend, size/2))
	}
	b.memory.track(b, b.sendSize.Load() > leastSend || b.reserved > leastReceive)
}

// shrinkSend shrinks the send buffer, unless it holds more data than the new size.
func (b *buffers) shrinkSend(size int64) {
	before := b.sendSize.Load()
	if size >= before {
		return
	}
	if b.setSend(size); b.hasRoom() {
		b.memory.used.Add(size - before)
		return
	}
	b.setSend(before)
	b.ep.WakeupWriters() // a writer that has just found no room would not be notified
}

// shrinkReceive shrinks the receive buffer, if it is empty.
func (b *buffers) shrinkReceive(size int64) {
	before := b.receiveSize.Load()
	if !b.empty() {
		return
	}
	b.setReceive(min(size, before))
	if !b.returnReceive(size) { // data has just arrived
		b.setReceive(before)
	}
}

// setRead limits the receive buffer; 0 means the host's limit.
func (b *buffers) setRead(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.receiveMost = b.most.receive; n > 0 {
		b.receiveMost = min(n, b.most.receive)
	}
	if b.closed {
		return
	}
	size := min(max(b.receiveSize.Load(), leastReceive), b.receiveMost)
	if n := b.receiveMost - b.reserved; n <= 0 {
		size = b.receiveMost
	} else if b.memory.reserveFull(n) {
		size, b.reserved = b.receiveMost, b.receiveMost
		b.memory.track(b, true)
	}
	if size != b.receiveSize.Load() {
		b.setReceive(size)
	}
	b.returnReceive(size)
}

// close ends the growth of the buffers. It returns the number of bytes to release when TCP has
// finished the connection. It is called once.
func (b *buffers) close() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.memory.track(b, false)
	return b.sendSize.Load() + b.reserved
}
