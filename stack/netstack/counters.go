package netstack

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// Counters of an interface's datagram port.

// counts are the counters of frames in one direction.
type counts struct {
	frames, datagrams uint64
	looped, multicast uint64 // datagrams; looped ones are in no other count
	bytes             uint64 // of datagrams that were not looped, as packets on the wire
	// Refused by the link or malformed; lost for lack of a neighbour or a receiver.
	bad, lost uint64
}

// frame counts a frame of n packets on the wire. f contains the headers of the packets only once.
// header is their length in bytes.
func (c *counts) frame(f *link.Frame, n, header int, looped bool) {
	c.frames++
	c.datagrams += uint64(n)
	if looped {
		c.looped += uint64(n)
		return
	}
	c.bytes += uint64(f.Len() + (n-1)*header)
	if f.Data[0]&1 != 0 {
		c.multicast += uint64(n)
	}
}

func (c *counts) add(o *counts) {
	c.frames += o.frames
	c.datagrams += o.datagrams
	c.looped += o.looped
	c.multicast += o.multicast
	c.bytes += o.bytes
	c.bad += o.bad
	c.lost += o.lost
}

// tally has the counters of some flows. Different tallies are in separate cache lines, so that a
// processor that counts a frame seldom fetches them from another processor.
//
// Nearly every frame is counted by one addition to recent: one word that contains the numbers of
// frames, datagrams and bytes. It is moved into counts before it overflows, and when counts is
// read.
type tally struct {
	recent atomic.Uint64
	mu     sync.Mutex // held only while counting: a reader may be a function that the receiver calls
	counts counts     // without recent; guarded by mu
	_      [64]byte
}

// Layout of recent, from the lowest bit on: bytes, datagrams, frames. Each field has room for eight
// times its threshold. This is enough for thousands of goroutines that add a burst at the same
// moment.
const (
	byteBits, datagramBits = 31, 20

	fullFrames     = 1024 // threshold for emptying recent
	burstFrames    = 4    // larger bursts bypass recent
	burstDatagrams = link.MaxSegments
	burstBytes     = 2 * link.MaxSuperframe
)

func (t *tally) add(c *counts) {
	if c.frames > burstFrames || c.datagrams > burstDatagrams || c.bytes > burstBytes || c.looped|c.multicast|c.bad|c.lost != 0 {
		t.mu.Lock()
		t.counts.add(c)
		t.mu.Unlock()
		return
	}
	r := t.recent.Add(c.frames<<(byteBits+datagramBits) | c.datagrams<<byteBits | c.bytes)
	if r>>(byteBits+datagramBits) >= fullFrames {
		t.read() // empties recent
	}
}

// read empties recent and returns the counts.
func (t *tally) read() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.recent.Swap(0)
	t.counts.add(&counts{
		frames:    r >> (byteBits + datagramBits),
		datagrams: r >> byteBits & (1<<datagramBits - 1),
		bytes:     r & (1<<byteBits - 1),
	})
	return t.counts
}

// snapshot returns the port's counters.
func (p *port) snapshot() stack.Counters {
	var sent, received counts
	for i := range lanes {
		s, r := p.sent[i].read(), p.received[i].read()
		sent.add(&s)
		received.add(&r)
	}
	return stack.Counters{
		TxFrames: sent.frames, TxDatagrams: sent.datagrams, TxErrors: sent.bad, TxNoRoute: sent.lost,
		RxFrames: received.frames, RxMalformed: received.bad, RxDropped: received.lost,
		Sent: sent.traffic(), Received: received.traffic(),
	}
}

func (c *counts) traffic() stack.Traffic {
	return stack.Traffic{Packets: c.datagrams - c.looped, Multicast: c.multicast, Bytes: c.bytes}
}
