package netstack

// The memory of TCP's buffers. Every byte that a buffer may hold is reserved in the memory of all the host's connections.
// What gVisor keeps of segments that came out of order lies in the receive buffer, and so is counted too.
//
// While half of the memory is free, a connection's buffers get their full sizes when they are first needed: the send buffer
// when it is full, the receive buffer when the connection is dialled, accepted or given to a QP. When less is free, a
// connection gets an equal share of the memory, if the data that passes through it needs that. The buffers of silent
// connections become small again, and so do the send buffers of connections that have more than their share. A quarter of the
// memory is never used for growth, so that new connections can begin. A buffer that holds data does not shrink: a peer that
// leaves data unacknowledged, or sends it out of order, keeps the memory that it has got until the connection ends, but gets
// no more than anybody else.
//
// Nothing here runs for each segment but a few atomic operations. The lock order is buffers.mu, then gVisor's endpoint;
// tcpMemory.mu is taken last.

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

	"github.com/softrnic/softrnic/stack"
)

// The sizes that a connection's buffers begin with, and shrink to, in bytes.
//
// gVisor says that there is room in the send buffer when less than half of it is in use. A piece of a stream must fit
// then, or Send would wait for room that is never announced.
const (
	leastSend    = 128 << 10
	leastReceive = 64 << 10
	leastBuffers = leastSend + leastReceive
)

var _ [leastSend - 2*stack.MaxPiece]struct{}

const (
	// quickly is the time in which a quarter of the receive buffer has to be read for it to grow. That is half of the window:
	// over paths with longer round trips than this the window does not open further.
	quickly = 200 * time.Millisecond

	// reclaimEvery is the least time between two searches for memory that connections can give back. A connection through
	// which nothing has passed for that long is silent: its peer's retransmission timeout is shorter.
	reclaimEvery = time.Second
)

// tcpMemory is the memory of all buffers of a host's connections.
type tcpMemory struct {
	limit int64
	used  atomic.Int64 // the sum of what is reserved
	conns atomic.Int64 // those that have reserved some

	mu        sync.Mutex
	grown     map[*buffers]struct{} // larger than at first
	reclaimed time.Time             // when that was last tried
}

// TCPMemoryUsed is the sum of the sizes that the buffers of all TCP connections have now, in bytes; see TCPMemory.
func (h *Host) TCPMemoryUsed() int64 { return h.tcp.memory.used.Load() }

// admit reserves the buffers that a new connection begins with. release gives them back.
func (m *tcpMemory) admit() error {
	if m.reserve(leastBuffers, m.limit) || m.reclaim() && m.reserve(leastBuffers, m.limit) {
		m.conns.Add(1)
		return nil
	}
	return fmt.Errorf("the buffers of %d TCP connections have all but %d of the %d bytes that TCPMemory allows: %w",
		m.conns.Load(), max(m.limit-m.used.Load(), 0), m.limit, syscall.ENOBUFS)
}

// release gives back all that a connection has reserved.
func (m *tcpMemory) release(n int64) {
	m.used.Add(-n)
	m.conns.Add(-1)
}

// reserve reserves n bytes, if no more than most bytes are reserved then.
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

// forGrowth is how much may be reserved before no buffer grows any more.
func (m *tcpMemory) forGrowth() int64 { return m.limit / 4 * 3 }

// share is what each connection can have if all have the same.
func (m *tcpMemory) share() int64 { return m.forGrowth() / max(m.conns.Load(), 1) }

// atOnce reserves n bytes for a connection's full buffer, if half of the memory is free then.
func (m *tcpMemory) atOnce(n int64) bool { return m.reserve(n, m.limit/2) }

// grow reserves up to n bytes for a connection that has reserved some, and returns how many: all of them if half of the
// memory is free then, else what is missing to the connection's share, or as much of that as can be had.
func (m *tcpMemory) grow(n, had int64) int64 {
	for again := true; ; again = false {
		if m.atOnce(n) {
			return n
		}
		least := min(n, 64<<10) // less is not worth it
		for part := min(n, m.share()-had); part >= least; part /= 2 {
			if m.reserve(part, m.forGrowth()) {
				return part
			}
		}
		if !again || !m.reclaim() {
			return 0
		}
	}
}

// reclaim has connections give back what they do not need, or have too much of; false if it was tried just before.
func (m *tcpMemory) reclaim() bool {
	m.mu.Lock()
	if time.Since(m.reclaimed) < reclaimEvery {
		m.mu.Unlock()
		return false
	}
	m.reclaimed = time.Now()
	grown := slices.Collect(maps.Keys(m.grown))
	m.mu.Unlock()
	share := m.share()
	for _, b := range grown {
		b.shrink(share)
	}
	return true
}

// note says whether a connection is to be looked at by reclaim. b.mu is held.
func (m *tcpMemory) note(b *buffers, grown bool) {
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
	first  uint32 // the sequence number of the peer's first byte of data
	known  bool   // first is set
	most   struct{ send, receive int64 }

	// What has passed, in bytes; end is a sequence number.
	sent atomic.Uint64 // into the send buffer
	read atomic.Uint64 // by the application
	end  atomic.Uint32 // behind the last byte that has come, with a gap before it or not

	sentMark atomic.Uint64 // value of sent when the send buffer last grew, or could not
	readMark uint64        // value of read when the receive buffer last grew, or could not; only the reader uses it
	readTime time.Time

	sendSize, receiveSize atomic.Int64 // change under mu

	mu          sync.Mutex
	receiveMost int64  // what SetReadBuffer has said, or most.receive
	reserved    int64  // for the receive buffer: at least its size, and at least leastReceive
	passed      uint64 // sent+read when reclaim last looked
	closed      bool
}

// init is called when the memory has admitted the connection.
func (b *buffers) init(ep *tcp.Endpoint, m *tcpMemory, c *tcpConfig, note synNote, noted bool) {
	b.ep, b.memory = ep, m
	b.most.send, b.most.receive, b.receiveMost = int64(c.sendBuffer), int64(c.receiveBuffer), int64(c.receiveBuffer)
	b.first, b.known = note.seq+1, noted
	b.end.Store(b.first)
	b.sendSize.Store(leastSend)
	b.receiveSize.Store(leastReceive) // which gVisor has given it
	b.reserved = leastReceive
	ep.SocketOptions().SetSendBufferSize(leastSend, true) // now gVisor lets it grow no more
}

// arrived is called before gVisor has a segment with data, with the sequence number behind that.
func (b *buffers) arrived(end uint32) {
	for {
		last := b.end.Load()
		if int32(end-last) <= 0 || int64(end-b.first-uint32(b.read.Load())) > b.most.receive {
			return // it was there before, or is outside of any window
		}
		if b.end.CompareAndSwap(last, end) {
			return
		}
	}
}

// took is called by the reader, who has read n bytes.
func (b *buffers) took(n int) {
	read := b.read.Add(uint64(n))
	if read-b.readMark < uint64(b.receiveSize.Load())/4 {
		return
	}
	now := time.Now()
	if now.Sub(b.readTime) < quickly {
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
		b.memory.note(b, true)
	}
	if larger := min(b.reserved, b.receiveMost); larger > size {
		b.setReceive(larger)
	}
}

// returnReceive gives back what a receive buffer of a size does not need; false if there may be data in it.
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

// empty tells whether the receive buffer is known to be empty: all that has come has been read.
func (b *buffers) empty() bool { return b.known && b.end.Load() == b.first+uint32(b.read.Load()) }

func (b *buffers) setReceive(size int64) {
	b.receiveSize.Store(size)
	b.ep.SocketOptions().SetReceiveBufferSize(size, true)
}

// turned tells whether the peer has acknowledged some of what was put into the send buffer since the buffer last grew.
func (b *buffers) turned() bool { return b.sent.Load()-b.sentMark.Load() > uint64(b.sendSize.Load()) }

// hasRoom tells whether there is room for a byte in the send buffer.
func (b *buffers) hasRoom() bool { return b.ep.Readiness(waiter.WritableEvents) != 0 }

// growSend makes the send buffer larger, which has been full; false if it stays as it is.
func (b *buffers) growSend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := b.sendSize.Load()
	if b.closed || size >= b.most.send {
		return false
	}
	n := b.most.send - size
	if !b.memory.atOnce(n) {
		if !b.turned() {
			return false // the peer has not taken as much as it could
		}
		b.sentMark.Store(b.sent.Load())
		if n = b.memory.grow(n, size+b.reserved); n == 0 {
			return false
		}
	}
	b.sentMark.Store(b.sent.Load())
	b.memory.note(b, true)
	b.setSend(size + n)
	b.ep.WakeupWriters() // others may wait, and gVisor goes by the new size from now on
	return true
}

// setSend sets the size of the send buffer. gVisor must not work on the connection meanwhile: when it has room again, it
// stores the size that it had before.
func (b *buffers) setSend(size int64) {
	b.sendSize.Store(size)
	b.ep.LockUser()
	b.ep.SocketOptions().SetSendBufferSize(size, false)
	b.ep.UnlockUser()
}

// shrink gives back memory. If the connection is silent, that is what its buffers have grown by. If it is not, but has more
// than the share, it is half of the send buffer; the receive buffer stays, because the peer has been offered its window, and
// what came in that would be lost. A silent peer has to open its congestion window again, so that it does not send all at
// once.
func (b *buffers) shrink(share int64) {
	if !b.mu.TryLock() {
		return // it is growing
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
	b.memory.note(b, b.sendSize.Load() > leastSend || b.reserved > leastReceive)
}

// shrinkSend makes the send buffer smaller, unless more than that is in it.
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
	b.ep.WakeupWriters() // one who has found no room just now would not hear of it
}

// shrinkReceive makes the receive buffer smaller, if it is empty.
func (b *buffers) shrinkReceive(size int64) {
	before := b.receiveSize.Load()
	if !b.empty() {
		return
	}
	b.setReceive(min(size, before))
	if !b.returnReceive(size) { // something has just come
		b.setReceive(before)
	}
}

// setRead bounds the receive buffer; 0 leaves it to the host's own bound.
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
	} else if b.memory.atOnce(n) {
		size, b.reserved = b.receiveMost, b.receiveMost
		b.memory.note(b, true)
	}
	if size != b.receiveSize.Load() {
		b.setReceive(size)
	}
	b.returnReceive(size)
}

// close ends the growth, and returns what is to be released when TCP has done with the connection. It is called once.
func (b *buffers) close() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.memory.note(b, false)
	return b.sendSize.Load() + b.reserved
}
