package netstack

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/stack"
)

// What an interface's datagram port counts.

// traffic is what has to be added to, or subtracted from, the counters of frames and bytes to get those of packets on the
// link. Most frames are one packet, which needs no correction.
type traffic struct {
	loopedFrames, loopedBytes atomic.Uint64
	morePackets, moreBytes    atomic.Uint64 // packets in superframes beyond the first, and their headers
	multicast                 atomic.Uint64
}

// add counts frames that went over the loopback, or the corrections for others.
func (t *traffic) add(looped bool, frames, bytes uint64, more *stack.Traffic) {
	if looped {
		t.loopedFrames.Add(frames)
		t.loopedBytes.Add(bytes)
		return
	}
	if more.Packets > 0 {
		t.morePackets.Add(more.Packets)
		t.moreBytes.Add(more.Bytes)
	}
	if more.Multicast > 0 {
		t.multicast.Add(more.Multicast)
	}
}

// countCut adds to t what a frame that is cut into n packets counts beyond one packet. The frame has its headers, of so
// many bytes, only once.
func countCut(t *stack.Traffic, frame []byte, n, header int) {
	t.Packets += uint64(n - 1)
	t.Bytes += uint64((n - 1) * header)
	if frame[0]&1 != 0 {
		t.Multicast += uint64(n)
	}
}

// addTo adds the traffic to s, given the counters of frames and bytes. Those are read last, so that they include everything
// that is taken from them.
func (t *traffic) addTo(s *stack.Traffic, frames, bytes *atomic.Uint64) {
	s.Packets += t.morePackets.Load() - t.loopedFrames.Load()
	s.Multicast += t.multicast.Load()
	s.Bytes += t.moreBytes.Load() - t.loopedBytes.Load()
	s.Packets += frames.Load()
	s.Bytes += bytes.Load()
}

type counters struct {
	txFrames, txDatagrams, txBytes, txErrors, txNoRoute atomic.Uint64
	rxFrames, rxBytes, rxMalformed, rxDropped           atomic.Uint64
	sent, received                                      traffic
}

// tally is the counters of some flows, in cache lines of its own: a processor that counts a frame seldom has to fetch them from
// one that counts those of other flows.
type tally struct {
	counters
	_ [64]byte
}

// snapshot is what the port has counted.
func (p *port) snapshot() (all stack.Counters) {
	for i := range lanes {
		p.sent[i].addTo(&all)
		p.received[i].addTo(&all)
	}
	return all
}

func (c *counters) addTo(s *stack.Counters) {
	s.TxErrors += c.txErrors.Load()
	s.TxNoRoute += c.txNoRoute.Load()
	s.RxMalformed += c.rxMalformed.Load()
	s.RxDropped += c.rxDropped.Load()
	s.TxFrames += c.txFrames.Load()
	s.TxDatagrams += c.txDatagrams.Load()
	s.TxBytes += c.txBytes.Load()
	s.RxFrames += c.rxFrames.Load()
	s.RxBytes += c.rxBytes.Load()
	c.sent.addTo(&s.Sent, &c.txFrames, &c.txBytes)
	c.received.addTo(&s.Received, &c.rxFrames, &c.rxBytes)
}
