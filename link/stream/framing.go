package stream

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
)

// lengthLen is the number of bytes of a frame's length, and maxFrame the largest that is received. (QEMU's is somewhat
// larger, 68 KiB, but no frame that it has room for is longer than this.)
const (
	lengthLen = 4
	maxFrame  = link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe
)

// What is received at once, and how many frames of it the receiver is given in one call.
const (
	receiveBytes = 256 << 10
	batchFrames  = 64
)

// receive passes the frames of a connection to the receiver, until it ends or is no sequence of frames.
func (l *Link) receive(conn net.Conn) {
	buf, frames := make([]byte, receiveBytes), make([]link.Frame, 0, batchFrames)
	begin, end := 0, 0 // of what was read and not yet passed on
	for {
		n, err := conn.Read(buf[end:])
		end += n
		for end-begin >= lengthLen {
			size := binary.BigEndian.Uint32(buf[begin:])
			if size > maxFrame {
				l.malformed.Add(1)
				l.pass(frames)
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
				l.pass(frames)
				frames = frames[:0]
			}
		}
		l.pass(frames)
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

func (l *Link) pass(frames []link.Frame) {
	if len(frames) > 0 {
		l.recv(frames)
	}
}

// queueBytes is how many bytes wait for a connection that takes none, beside as many that are being written.
const queueBytes = 2 << 20

// outlet writes frames to a connection. Whoever sends writes as much as the socket takes at once; what it does not take is
// left to a goroutine.
type outlet struct {
	conn    net.Conn
	try     tryWriter
	dropped *atomic.Uint64

	mu       sync.Mutex
	cutter   link.Cutter
	queue    []byte // frames with their lengths; the first may have been written in part
	spare    []byte // becomes the queue while the goroutine writes
	draining bool   // the goroutine is there
	failed   bool   // the connection is of no use any more
	drained  sync.WaitGroup
}

func newOutlet(conn net.Conn, dropped *atomic.Uint64) *outlet {
	o := &outlet{conn: conn, dropped: dropped}
	o.try.init(conn)
	return o
}

// send takes frames that are valid.
func (o *outlet) send(frames []link.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed {
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

// append puts a frame into the queue, cut into its packets.
func (o *outlet) append(f *link.Frame) {
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

// begin puts the length of a frame into the queue, or drops the frame.
func (o *outlet) begin(n int) bool {
	if len(o.queue)+lengthLen+n > queueBytes {
		o.dropped.Add(1)
		return false
	}
	o.queue = binary.BigEndian.AppendUint32(o.queue, uint32(n))
	return true
}

// drain writes the queue until it is empty.
func (o *outlet) drain() {
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

// fail ends the connection, which whoever receives from it notices. It is called with o.mu held.
func (o *outlet) fail() {
	o.failed = true
	_ = o.conn.Close()
}

// wait returns when the goroutine has ended. The connection is closed.
func (o *outlet) wait() {
	o.mu.Lock()
	o.failed = true // so that there will be no other
	o.mu.Unlock()
	o.drained.Wait()
}
