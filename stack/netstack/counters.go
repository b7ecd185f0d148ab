package netstack

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// What an interface's datagram port counts.

// counts is what is counted of frames that went one way.
type counts struct {
	frames, datagrams uint64
	looped, multicast uint64 // of datagrams; those that were looped are not among the others
	bytes             uint64 // of what was not looped, as packets on the wire
	bad, lost         uint64 // frames that the link refused, or were malformed; that had no neighbour, or no receiver
}

// frame counts a frame that is n packets on the wire. It has their headers, of so many bytes, only once.
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

// tally has the counts of some flows, in cache lines of its own: a processor that counts a frame seldom has to fetch them from
// one that counts those of other flows.
//
// Nearly all frames are counted by one addition to recent: frames, datagrams and bytes in one word, which is emptied into
// counts before it is full, and by who reads.
type tally struct {
	recent atomic.Uint64
	mu     sync.Mutex // held for no longer than it takes to count: who reads may be in a function that the receiver calls
	counts counts     // without recent; under mu
	_      [64]byte
}

// The places in recent, from the lowest bit on: bytes, datagrams, frames. Each has room for eight times as much as is there when it
// is emptied, and so for thousands of goroutines that add a burst at the same moment.
const (
	byteBits, datagramBits = 31, 20

	fullFrames     = 1024 // empty recent
	burstFrames    = 4    // what has more than one of these is not put there
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
		t.read() // empties it
	}
}

// read returns the counts, for which it empties recent.
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

// snapshot is what the port has counted.
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
