package bridge

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/softrnic/softrnic/link"
)

// A probe finds loops: two ports that are connected with each other, or with the same segment, pass a broadcast frame round
// and round. A bridge sends a frame of its own from each port, again and again. Where one arrives that a port with a lower
// number, or the same port, has sent, that port passes nothing for a while.
//
// The frame goes to the multicast address for loopback assistance, with the EtherType of the Ethernet configuration
// testing protocol, as those of other switches do. Its payload is the bridge's number, which is drawn at random, and that of the
// port. Someone else who sends such frames can only have a port blocked that he is on.
type probe [16]byte

const (
	probeInterval = time.Second
	probeType     = 0x9000
	probeLen      = 60 // the shortest frame that Ethernet has
	probeAt       = link.EthernetHeaderLen
	probePortAt   = probeAt + len(probe{})
)

// A port is blocked for blockTime after a probe, and up to as long again: two switches that are connected twice do not
// open their ports at the same time.
const blockTime = 10 * time.Second

// is reports whether a frame is a probe of this bridge.
func (p *probe) is(frame []byte) bool {
	return len(frame) >= probePortAt+4 && binary.BigEndian.Uint16(frame[12:]) == probeType &&
		bytes.Equal(frame[probeAt:probePortAt], p[:])
}

// frame is the probe that a port sends.
func (p *probe) frame(number int) []byte {
	b := append(make([]byte, 0, probeLen), 0xcf, 0, 0, 0, 0, 0) // to all loopback assistants
	b = append(append(b, 2), p[:5]...)                          // from an address that nobody else has
	b = binary.BigEndian.AppendUint16(b, probeType)
	b = append(b, p[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	return b[:probeLen]
}

// probePorts sends probes until the bridge is closed.
func (b *Bridge) probePorts() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-tick.C:
			for _, p := range b.snapshot() {
				b.sendProbe(p)
			}
		}
	}
}

func (b *Bridge) sendProbe(p *port) {
	_, _ = p.link.Write([]link.Frame{{Data: b.probe.frame(p.number)}}) // a port that takes nothing is part of no loop
}

// onProbe takes in that a probe of this bridge came to a port.
func (b *Bridge) onProbe(p *port, frame []byte, now time.Time) {
	from := binary.BigEndian.Uint32(frame[probePortAt:])
	if uint64(from) > uint64(p.number) {
		b.sendProbe(p) // which makes the other port blocked
		return
	}
	until := now.Add(blockTime + rand.N(blockTime)).UnixNano()
	if p.blocked.Swap(until) == 0 {
		b.log.Warn("a port is blocked, as what is sent there comes back: look for a second connection",
			"port", p.number, "link", p.link.Name(), "sent from port", from)
	}
	b.mu.Lock()
	b.table.forget(p)
	b.mu.Unlock()
}

// isBlocked reports whether the port passes nothing now.
func (p *port) isBlocked(now time.Time) bool {
	until := p.blocked.Load()
	if until == 0 {
		return false
	}
	if now.UnixNano() < until {
		return true
	}
	p.blocked.CompareAndSwap(until, 0)
	return false
}
