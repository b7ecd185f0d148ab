package stream

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
)

// lengthLen is the size of the length field, and maxFrame the length of the longest received frame.
// (QEMU's limit is somewhat larger, 68 KiB, but none of its frames exceeds maxFrame.)
const (
	lengthLen = 4
	maxFrame  = link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe
)

// Size of the receive buffer, and number of frames passed to the receiver in one call.
const (
	receiveBytes = 256 << 10
	batchFrames  = 64
)

// receive passes the frames of a connection to the receiver, until the connection ends or a length
// is invalid.
func (l *Link) receive(conn net.Conn) {
	buf, frames := make([]byte, receiveBytes), make([]link.Frame, 0, batchFrames)
	begin, end := 0, 0 // bytes that were read and not yet passed on
	for {
		n, err := conn.Read(buf[end:])
		end += n
		for end-begin >= lengthLen {
			size := binary.BigEndian.Uint32(buf[begin:])
			if size > maxFrame {
				l.malformed.Add(1)
				l.deliver(frames)
				return
			}
			next := begin + lengthLen + int(size)
			if next > end {
				break
			}
			if size < link.EthernetHeaderLen {
				l.malformed.Add(1)
			} else {
				frames = append(frames, link.Frame{Data: buf[begin+lengthLen : next : next]})
			}
			begin = next
			if len(frames) == batchFrames {
				l.deliver(frames)
				frames = frames[:0]
			}
		}
		l.deliver(frames)
		frames = frames[:0]
		if err != nil {
			return
		}
		if len(buf)-begin < lengthLen+maxFrame || begin == end {
			end = copy(buf, buf[begin:end])
			begin = 0
		}
	}
}

func (l *Link) deliver(frames []link.Frame) {
	if len(frames) > 0 {
		l.recv(frames)
	}
}

// queueBytes is the number of bytes that may wait for a stalled connection. As many may be in the
// process of being written.
const queueBytes = 2 << 20

// readsOn is how long a link reads on from a connection to which it can no longer write.
const readsOn = 10 * time.Second

// writer writes frames to a connection. The sender writes as much as the socket takes without
// blocking. A goroutine writes the remainder.
type writer struct {
	conn    net.Conn
	try     tryWriter
	dropped *atomic.Uint64

	mu       sync.Mutex
	cutter   link.Cutter
	queue    []byte // frames with their lengths; the first may be partly written
	spare    []byte // becomes the queue while the goroutine writes
	draining bool   // the goroutine is running
	failed   bool   // the connection is unusable
	drained  sync.WaitGroup
}

func newWriter(conn net.Conn, dropped *atomic.Uint64) *writer {
	o := &writer{conn: conn, dropped: dropped}
	o.try.init(conn)
	return o
}

// send sends frames, which must be valid.
func (o *writer) send(frames []link.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed {
		o.dropped.Add(uint64(len(frames)))
		return
	}
	for i := range frames {
		o.append(&frames[i])
	}
	if o.draining || len(o.queue) == 0 {
		return
	}
	n, err := o.try.write(o.queue)
	switch {
	case err != nil:
		o.fail()
	case n == len(o.queue):
		o.queue = o.queue[:0]
	default:
		o.queue = o.queue[:copy(o.queue, o.queue[n:])]
		o.draining = true
		o.drained.Go(o.drain)
	}
}

// append adds a frame to the queue, cut into packets.
func (o *writer) append(f *link.Frame) {
	if f.Segmentation == link.NoSegmentation && !f.NeedsChecksum {
		if o.begin(f.Len()) {
			o.queue = append(o.queue, f.Data...)
			for _, m := range f.More {
				o.queue = append(o.queue, m...)
			}
		}
		return
	}
	for packet := range o.cutter.Packets(f) {
		if o.begin(len(packet)) {
			o.queue = append(o.queue, packet...)
		}
	}
}

// begin adds the length of a frame to the queue. It drops the frame if the queue is full.
func (o *writer) begin(n int) bool {
	if len(o.queue)+lengthLen+n > queueBytes {
		o.dropped.Add(1)
		return false
	}
	o.queue = binary.BigEndian.AppendUint32(o.queue, uint32(n))
	return true
}

// drain writes the queue until it is empty.
func (o *writer) drain() {
	for {
		o.mu.Lock()
		b := o.queue
		if len(b) == 0 || o.failed {
			o.draining = false
			o.mu.Unlock()
			return
		}
		o.queue = o.spare[:0]
		o.mu.Unlock()
		_, err := o.conn.Write(b)
		o.mu.Lock()
		o.spare = b
		if err != nil {
			o.fail()
		}
		o.mu.Unlock()
	}
}

// fail ends the connection in this direction. The peer, which mostly has closed it, has often sent
// frames before that, such as the acknowledgement of the last message: the receiving goroutine
// reads these, and then finds the end. A peer that goes on sending, and does not read, has little
// time. o.mu is held.
func (o *writer) fail() {
	o.failed = true
	c, ok := o.conn.(interface{ CloseWrite() error })
	if !ok || c.CloseWrite() != nil || o.conn.SetReadDeadline(time.Now().Add(readsOn)) != nil {
		_ = o.conn.Close()
	}
}

// wait returns when the goroutine has ended. The connection is closed.
func (o *writer) wait() {
	o.mu.Lock()
	o.failed = true // so that no other goroutine starts
	o.mu.Unlock()
	o.drained.Wait()
}
