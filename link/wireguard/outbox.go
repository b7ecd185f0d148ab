package wireguard

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
)

// A frame on its way out: Link.Write checks it, and gives it to the outbox. WireGuard's device
// reads the packets on a goroutine of its own into buffers of its own, where it encrypts them.
// While it waits for packets, the outbox has its buffers, and frames are cut into these. If they
// are full, the writer lets the device's goroutines run once, which encrypt and send the batch
// while it is in the caches. If there are still no buffers, packets are cut into a queue, and
// copied when the device reads again.

// maxQueued is the number of bytes in the queue from which on writers wait.
const maxQueued = 1 << 20

// maxInDevice limits the packets that the device has read and not yet sent. Its own limits are 128
// times its queues' 1024 places, with 64 KiB for each packet.
const maxInDevice = 2048

// maxWait is how long the device's reader waits for room. Packets that the device has dropped, or
// keeps for a peer that does not answer, are not reported. After that time all packets count as
// dropped or kept.
const maxWait = 20 * time.Millisecond

// The device keeps packets for a peer without a session: the last 128 batches, with 64 KiB for each
// packet. Batches are therefore smaller while it sends nothing.
const (
	maxBatch  = 64
	slowBatch = 4
)

type outbox struct {
	name string
	mtu  int

	mu      sync.Mutex
	wake    sync.Cond // the reader
	room    sync.Cond // writers
	writing int       // calls of write, which may be in the middle of a frame
	closed  bool

	lent     *batch // the reader's while it waits; nil otherwise
	queue    queue
	gathered []byte // a frame that came in pieces

	// Owned by the reader.
	reading batch
	taken   queue

	inDevice atomic.Int64
	stalled  atomic.Bool // the reader waits for room in the device
	slow     atomic.Bool // a wait for room has expired, and nothing was sent since
}

// queue has packets with their Ethernet headers, one after the other.
type queue struct {
	data  []byte
	sizes []int
	next  int // packet, after the begin of data
	begin int
}

func (q *queue) empty() bool { return q.next == len(q.sizes) }

func (q *queue) reset() { q.data, q.sizes, q.next, q.begin = q.data[:0], q.sizes[:0], 0, 0 }

func newOutbox(name string, mtu int) *outbox {
	o := &outbox{name: name, mtu: mtu}
	o.wake.L, o.room.L = &o.mu, &o.mu
	return o
}

// write passes on frames that have been checked. It waits while the queue is full.
func (o *outbox) write(frames []link.Frame) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing++
	defer func() { o.writing-- }()
	mayYield := true
	for i := range frames {
		for len(o.queue.data) >= maxQueued && !o.closed {
			o.wake.Signal() // the reader may wait for the first of these frames
			o.room.Wait()
		}
		if !o.closed {
			mayYield = o.add(&frames[i], mayYield)
		}
		if o.closed { // perhaps in the middle of the frame
			return fmt.Errorf("%s: %w", o.name, net.ErrClosed)
		}
	}
	if o.lent != nil && o.waiting() {
		o.wake.Signal()
	}
	return nil
}

// waiting reports whether there are packets that the device has not read. o.mu is held.
func (o *outbox) waiting() bool { return o.lent != nil && o.lent.n > 0 || !o.queue.empty() }

// pending reports whether there are packets that the device has not read.
func (o *outbox) pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting()
}

// add cuts a frame into the reader's buffers, or into the queue. o.mu is held, except while other
// goroutines run. A write lets them run again only if there were buffers each time.
func (o *outbox) add(f *link.Frame, mayYield bool) (mayYieldAgain bool) {
	// RoCE packets have an ICRC, and the tunnel protects them on most of their way.
	s := link.Segmenter{NoUDPChecksum: true}
	g := *f
	whole := len(f.More) == 0
	if !whole {
		o.gathered = append(o.gathered[:0], f.Data...)
		for _, m := range f.More {
			o.gathered = append(o.gathered, m...)
		}
		g.Data, g.More = o.gathered, nil
	}
	for s.Cut(&g); ; {
		if o.lent != nil && o.queue.empty() && o.lent.fill(&s) {
			return mayYield
		}
		if !mayYield || !whole || o.closed {
			break
		}
		o.wake.Signal()
		o.mu.Unlock()
		runtime.Gosched()
		o.mu.Lock()
		mayYield = o.lent != nil && o.queue.empty() && o.lent.n == 0
	}
	q := &o.queue
	for {
		end := len(q.data)
		q.data = slices.Grow(q.data, len(g.Data)) // a packet is no longer, also one that is not cut
		n, ok := s.Next(q.data[end : end+len(g.Data)])
		if !ok {
			return mayYield
		}
		q.data = q.data[:end+n]
		q.sizes = append(q.sizes, n)
	}
}

// read is tun.Device.Read.
func (o *outbox) read(bufs [][]byte, sizes []int, offset int) (int, error) {
	o.awaitRoom(maxBatch)
	most := maxBatch
	if o.slow.Load() {
		most = slowBatch
	}
	b := &o.reading
	*b = batch{bufs: bufs[:min(most, len(bufs))], sizes: sizes, offset: offset, mtu: o.mtu}
	for b.take(&o.taken); !b.full(); b.take(&o.taken) {
		o.mu.Lock()
		if b.n == 0 {
			o.await(b)
		}
		if o.closed {
			o.mu.Unlock()
			return 0, os.ErrClosed
		}
		more := !o.queue.empty()
		if more {
			o.taken.reset()
			o.taken, o.queue = o.queue, o.taken
			o.room.Broadcast()
		}
		o.mu.Unlock()
		if !more {
			break
		}
	}
	b.level()
	o.inDevice.Add(int64(b.n))
	return b.n, nil
}

// await lends the reader's buffers to writers until there are packets, in them or in the queue.
// o.mu is held.
func (o *outbox) await(b *batch) {
	o.lent = b
	for b.n == 0 && o.queue.empty() && !o.closed {
		o.wake.Wait()
	}
	o.lent = nil
}

// awaitRoom waits until the device has room for n packets.
func (o *outbox) awaitRoom(n int) {
	if o.inDevice.Load()+int64(n) <= maxInDevice {
		return
	}
	o.stalled.Store(true)
	defer o.stalled.Store(false)
	expired := false
	timer := time.AfterFunc(maxWait, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		expired = true
		o.wake.Signal()
	})
	defer timer.Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for !expired && !o.closed && o.inDevice.Load()+int64(n) > maxInDevice {
		o.wake.Wait()
	}
	if expired {
		o.slow.Store(true)
		o.inDevice.Store(0)
	}
}

// sent reports that the device has sent n packets.
func (o *outbox) sent(n int) {
	// Packets may be more than were counted, after a wait that has expired.
	if left := o.inDevice.Add(-int64(n)); left < 0 {
		o.inDevice.CompareAndSwap(left, 0)
	}
	o.slow.Store(false)
	if o.stalled.Load() {
		o.mu.Lock()
		o.wake.Signal()
		o.mu.Unlock()
	}
}

// drained reports whether the device has sent all packets, or dropped them, and nobody writes more.
func (o *outbox) drained() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writing == 0 && o.lent != nil && !o.waiting() && o.inDevice.Load() <= 0
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.wake.Broadcast()
	o.room.Broadcast()
}
