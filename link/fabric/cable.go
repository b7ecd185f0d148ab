package fabric

import (
	"fmt"
	"math/rand/v2"
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
func (o *Port) Rate() float64 { return float64(o.rate) }

// Delay returns the cable's delay.
func (o *Port) Delay() time.Duration { return time.Duration(o.delay / nanosecond) }

// SetBitErrors sets the probability that a bit on the cable is wrong, in both directions. A frame
// with such a bit has a wrong FCS, and is lost.
func (o *Port) SetBitErrors(rate float64) error {
	o.f.mustBeAlone("Port.SetBitErrors")
	if !(rate >= 0 && rate < 1) {
		return fmt.Errorf("fabric: bit error rate %v: it must be 0 to less than 1", rate)
	}
	for _, p := range []*Port{o, o.peer} {
		if p.bitErrors = rate; p.random == nil {
			p.random = rand.New(o.f.newRandom(ofCables + uint64(p.number)))
		}
	}
	return nil
}

// atLeastOne returns the probability that one of n events happens or more of them, each of which
// has a probability. It is the same number on all machines: the conversions keep a compiler from
// joining a product and a sum.
func atLeastOne(probability float64, n int) float64 {
	either := func(p, q float64) float64 { return p + float64(q*(1-p)) }
	all := 0.0
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			all = either(all, probability)
		}
		probability = either(probability, probability)
	}
	return all
}

// damaged says whether a frame on the cable has a wrong bit. Then it is lost.
func (o *Port) damaged(p *packet) bool {
	const around = 20 // preamble and gap, in p.size
	if o.bitErrors == 0 || o.random.Float64() >= atLeastOne(o.bitErrors, 8*int(p.size-around)) {
		return false
	}
	o.lose(p)
	return true
}

// Pause makes the host send PFC frames that stop classes, a bit for each, or let them go on. It is
// what a host does that is slow, or faulty (a PFC storm). It goes on when its cable was cut and is
// mended. While hosts run at the same time, only a function or a process of the host may call it:
// another's call is a race, which mostly panics.
func (h *Host) Pause(classes uint8, on bool) {
	if h.f.apart && h.shard.acting != h {
		panic("fabric: Host.Pause of another host, while it runs: see Host.Alone")
	}
	if on {
		h.pausing |= classes
	} else {
		h.pausing &^= classes
	}
	for c := range uint8(8) {
		if classes>>c&1 != 0 {
			h.port.pause(c, on)
		}
	}
}

// pauseAgain sends the frames that the host has sent before its cable was cut.
func (h *Host) pauseAgain() {
	if !h.port.down {
		h.Pause(h.pausing, true)
	}
}
