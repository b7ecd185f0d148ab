package wireguard

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
)

// A frame on its way out: Link.Write checks it, and gives it to the outbox. WireGuard's device
// reads the packets on a goroutine of its own, up to 128 at a time, into buffers of its own, where
// it encrypts them. While it waits for packets, the outbox has its buffers, and frames are cut into
// these. Otherwise they are copied to a queue, and cut when the device reads again.

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

	mu     sync.Mutex
	wake   sync.Cond // the reader
	room   sync.Cond // writers
	closed bool

	// The reader's buffers while it waits; nil otherwise. Packets are at offset in them.
	lent     [][]byte
	sizes    []int
	offset   int
	filled   int // number of buffers with a packet
	frames   []link.Frame
	data     []byte // of frames
	gathered []byte // a frame that came in pieces
	cutter   link.Segmenter

	// Owned by the reader.
	taken     []link.Frame
	takenData []byte
	next      int // in taken
	cut       link.Segmenter
	cutting   bool

	inDevice atomic.Int64
	stalled  atomic.Bool // the reader waits for room in the device
	slow     atomic.Bool // a wait for room has expired, and nothing was sent since
}

func newOutbox(name string) *outbox {
	o := &outbox{name: name}
	// RoCE packets have an ICRC, and the tunnel protects them on most of their way.
	o.cut.NoUDPChecksum, o.cutter.NoUDPChecksum = true, true
	o.wake.L, o.room.L = &o.mu, &o.mu
	return o
}

// write passes on frames that have been checked. It waits while the queue is full.
func (o *outbox) write(frames []link.Frame) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range frames {
		for len(o.data) >= maxQueued && !o.closed {
			o.wake.Signal() // the reader may wait for the first of these frames
			o.room.Wait()
		}
		if o.closed {
			return fmt.Errorf("%s: %w", o.name, net.ErrClosed)
		}
		o.add(&frames[i])
	}
	if o.lent != nil && (o.filled > 0 || len(o.frames) > 0) {
		o.wake.Signal()
	}
	return nil
}

// add cuts a frame into the reader's buffers, or copies it to the queue. o.mu is held.
func (o *outbox) add(f *link.Frame) {
	if len(o.frames) > 0 || f.Segments() > len(o.lent)-o.filled {
		begin := len(o.data)
		o.data = append(o.data, f.Data...)
		for _, m := range f.More {
			o.data = append(o.data, m...)
		}
		g := *f
		g.More = nil
		// When o.data grows, earlier frames keep the previous array.
		g.Data = o.data[begin:len(o.data):len(o.data)]
		o.frames = append(o.frames, g)
		return
	}
	g := *f
	if len(f.More) > 0 {
		o.gathered = append(o.gathered[:0], f.Data...)
		for _, m := range f.More {
			o.gathered = append(o.gathered, m...)
		}
		g.Data, g.More = o.gathered, nil
	}
	o.cutter.Cut(&g)
	o.filled += packetsInto(&o.cutter, o.lent[o.filled:], o.sizes[o.filled:], o.offset)
}

// packetsInto writes packets of a frame to buffers until there are no more of either. The Ethernet
// header is before the offset: the buffers have room there for the tunnel's header. They are longer
// than any packet.
func packetsInto(s *link.Segmenter, bufs [][]byte, sizes []int, offset int) (packets int) {
	for packets < len(bufs) {
		n, ok := s.Next(bufs[packets][offset-link.EthernetHeaderLen:])
		if !ok {
			break
		}
		sizes[packets] = n - link.EthernetHeaderLen
		packets++
	}
	return packets
}

// read is tun.Device.Read.
func (o *outbox) read(bufs [][]byte, sizes []int, offset int) (int, error) {
	o.awaitRoom(maxBatch)
	most := maxBatch
	if o.slow.Load() {
		most = slowBatch
	}
	bufs = bufs[:min(most, len(bufs))]
	n := 0
	for {
		n += o.cutTaken(bufs[n:], sizes[n:], offset)
		if n == len(bufs) {
			break
		}
		o.mu.Lock()
		if n == 0 {
			n = o.await(bufs, sizes, offset)
		}
		if o.closed {
			o.mu.Unlock()
			return 0, os.ErrClosed
		}
		more := len(o.frames) > 0
		if more {
			o.taken, o.frames = o.frames, o.taken[:0]
			o.takenData, o.data = o.data, o.takenData[:0]
			o.next = 0
			o.room.Broadcast()
		}
		o.mu.Unlock()
		if !more {
			break
		}
	}
	o.inDevice.Add(int64(n))
	return n, nil
}

// cutTaken cuts the frames that were taken from the queue.
func (o *outbox) cutTaken(bufs [][]byte, sizes []int, offset int) (n int) {
	for n < len(bufs) {
		if !o.cutting {
			if o.next == len(o.taken) {
				break
			}
			o.cut.Cut(&o.taken[o.next])
			o.next++
			o.cutting = true
		}
		n += packetsInto(&o.cut, bufs[n:], sizes[n:], offset)
		o.cutting = n == len(bufs)
	}
	return n
}

// await lends the reader's buffers to writers until there are packets. It returns the number that
// they have filled; more may be in the queue. o.mu is held.
func (o *outbox) await(bufs [][]byte, sizes []int, offset int) int {
	o.lent, o.sizes, o.offset, o.filled = bufs, sizes, offset, 0
	for o.filled == 0 && len(o.frames) == 0 && !o.closed {
		o.wake.Wait()
	}
	o.lent, o.sizes = nil, nil
	return o.filled
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

// drained reports whether the device has sent all packets, or dropped them.
func (o *outbox) drained() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lent != nil && o.filled == 0 && len(o.frames) == 0 && o.inDevice.Load() <= 0
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.wake.Broadcast()
	o.room.Broadcast()
}
