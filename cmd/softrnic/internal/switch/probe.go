package ethswitch

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/softrnic/softrnic/link"
)

// A probe detects loops: two ports that are connected to each other, or to the same segment,
// forward a broadcast frame in a loop. A switch periodically sends a probe from each port. A port
// that receives a probe of a port with a lower or equal number is blocked for a while.
//
// The frame is sent to the multicast address for loopback assistance with the EtherType of the
// Ethernet configuration testing protocol, as by other switches. Its payload is the switch's random
// number and the port's number. A host that forges such frames can only block its own port.
type probe [16]byte

const (
	probeInterval = time.Second
	probeType     = 0x9000
	probeLen      = 60 // the shortest Ethernet frame
	probeAt       = link.EthernetHeaderLen
	probePortAt   = probeAt + len(probe{})
)

// blockTime is how long a port is blocked after a probe, plus a random time up to as long again. So
// two switches with two connections do not unblock their ports at the same time.
const blockTime = 10 * time.Second

// is reports whether a frame is a probe of this switch.
func (p *probe) is(frame []byte) bool {
	return len(frame) >= probePortAt+4 && binary.BigEndian.Uint16(frame[12:]) == probeType &&
		bytes.Equal(frame[probeAt:probePortAt], p[:])
}

// frame returns the probe of a port.
func (p *probe) frame(number int) []byte {
	b := append(make([]byte, 0, probeLen), 0xcf, 0, 0, 0, 0, 0) // to all loopback assistants
	b = append(append(b, 2), p[:5]...)                          // from a unique address
	b = binary.BigEndian.AppendUint16(b, probeType)
	b = append(b, p[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	return b[:probeLen]
}

// probePorts sends probes until the switch is closed.
func (s *Switch) probePorts() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			for _, p := range s.snapshot() {
				s.sendProbe(p)
			}
		}
	}
}

func (s *Switch) sendProbe(p *port) {
	// A port that refuses frames is not part of a loop.
	_, _ = p.link.Write([]link.Frame{{Data: s.probe.frame(p.number)}})
}

// onProbe handles a probe of this switch that a port has received.
func (s *Switch) onProbe(p *port, frame []byte, now time.Time) {
	from := binary.BigEndian.Uint32(frame[probePortAt:])
	if uint64(from) > uint64(p.number) {
		s.sendProbe(p) // blocks the other port
		return
	}
	until := now.Add(blockTime + rand.N(blockTime)).UnixNano()
	if p.blocked.Swap(until) == 0 {
		s.log.Warn("a port is blocked, as what is sent there comes back: look for a second connection",
			"port", p.number, "link", p.link.Name(), "sent from port", from)
	}
	s.mu.Lock()
	s.table.forget(p)
	s.mu.Unlock()
}

// isBlocked reports whether the port is blocked now.
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
