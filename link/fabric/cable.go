package fabric

import (
	"fmt"
	"math"
	"time"
)

// Ports returns the ports of all hosts, and then of all switches.
func (f *Fabric) Ports() (all []*Port) {
	for _, h := range f.hosts {
		all = append(all, h.port)
	}
	for _, s := range f.switches {
		all = append(all, s.ports...)
	}
	return all
}

// Node returns the name of the host or switch that has the port.
func (o *Port) Node() string { return o.node }

// Peer returns the port at the other end of the cable.
func (o *Port) Peer() *Port { return o.peer }

// Rate returns the cable's rate in bit/s.
func (o *Port) Rate() float64 { return 8e12 / float64(o.perByte) }

// Delay returns the cable's delay.
func (o *Port) Delay() time.Duration { return time.Duration(o.delay / nanosecond) }

// SetBitErrors sets the probability that a bit on the cable is wrong, in both directions. A frame
// with such a bit has a wrong FCS, and is lost.
func (o *Port) SetBitErrors(rate float64) error {
	if !(rate >= 0 && rate < 1) {
		return fmt.Errorf("fabric: bit error rate %v: it must be 0 to less than 1", rate)
	}
	o.bitErrors, o.peer.bitErrors = rate, rate
	return nil
}

// damaged says whether a frame on the cable has a wrong bit. Then it is lost.
func (o *Port) damaged(p *packet) bool {
	const around = 20 // preamble and gap, in p.size
	if o.bitErrors == 0 || o.f.random.Float64() >= -math.Expm1(float64(8*(p.size-around))*math.Log1p(-o.bitErrors)) {
		return false
	}
	o.counters.Lost++
	o.f.counters.Lost++
	o.f.free(p)
	return true
}

// Pause makes the host send PFC frames that stop classes, a bit for each, or let them go on. It is
// what a host does that is slow, or faulty (a PFC storm).
func (h *Host) Pause(classes uint8, on bool) {
	for c := range uint8(8) {
		if classes>>c&1 != 0 {
			h.port.pause(c, on)
		}
	}
}
