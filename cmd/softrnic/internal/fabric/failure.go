package fabric

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
)

// failure is a table [[failure]] of a file.
type failure struct {
	Kind  string   `toml:"kind"`
	At    duration `toml:"at"`
	For   duration `toml:"for"` // 0: for ever
	Node  string   `toml:"node"`
	Peer  string   `toml:"peer"`
	Share float64  `toml:"share"`
	Rate  float64  `toml:"rate"`

	given given
}

// holds are what failures do at a time. A cable is down, and a host pauses, as long as one failure
// says so; the rates of bit errors add up.
type holds struct {
	down   map[*network.Port]int // by the end of a cable
	pause  map[*network.Host]int
	errors map[*network.Port][]float64
}

func newHolds() *holds {
	return &holds{map[*network.Port]int{}, map[*network.Host]int{}, map[*network.Port][]float64{}}
}

// firstEnd returns the end of a port's cable that stands for it.
func firstEnd(p *network.Port) *network.Port {
	if q := p.Peer(); q.Node() < p.Node() {
		return q
	}
	return p
}

// setDown has one more failure, or one less, that cuts a cable.
func (h *holds) setDown(p *network.Port, down bool) {
	p = firstEnd(p)
	h.down[p] += step(down)
	p.SetDown(h.down[p] > 0)
}

// setPause has one more failure, or one less, that makes a host pause classes.
func (h *holds) setPause(host *network.Host, classes uint8, on bool) {
	h.pause[host] += step(on)
	host.Pause(classes, h.pause[host] > 0)
}

func step(on bool) int {
	if on {
		return 1
	}
	return -1
}

// setErrors has one more failure, or one less, that makes bits wrong.
func (h *holds) setErrors(p *network.Port, rate float64, on bool) error {
	p = firstEnd(p)
	if on {
		h.errors[p] = append(h.errors[p], rate)
	} else if i := slices.Index(h.errors[p], rate); i >= 0 {
		h.errors[p] = slices.Delete(h.errors[p], i, i+1)
	}
	sum := 0.0
	for _, e := range h.errors[p] {
		sum += float64(e * (1 - sum)) // the same on all processors
	}
	return p.SetBitErrors(min(sum, math.Nextafter(1, 0)))
}

// fail schedules a failure.
func (r *run) fail(e *failure) error {
	kinds := map[string]func(*failure) (begin, end func(), err error){
		"cable-down": r.cableDown, "switch-restart": r.switchRestart, "pfc-storm": r.pfcStorm, "slow-host": r.slowHost,
		"bit-errors": r.bitErrors}
	kind := kinds[e.Kind]
	switch {
	case kind == nil:
		return fmt.Errorf("kind is %q: it must be one of %s", e.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case e.given["peer"] && e.Kind != "cable-down" && e.Kind != "bit-errors",
		e.given["share"] && e.Kind != "slow-host", e.given["rate"] && e.Kind != "bit-errors":
		return fmt.Errorf("kind %s: it has no peer, share or rate, except that cable-down has a peer, bit-errors a peer and a rate, and "+
			"slow-host a share", e.Kind)
	}
	if e.given["for"] && e.For == 0 {
		return fmt.Errorf("for is 0: it must be more, or left out if there is no end")
	}
	begin, end, err := kind(e)
	if err != nil {
		return err
	}
	r.at(time.Duration(e.At), 0, begin)
	if e.For > 0 {
		r.at(time.Duration(e.At+e.For), 0, end)
	}
	return nil
}

// port returns the port that a failure names. A host's needs no peer.
func (r *run) port(e *failure) (*network.Port, error) {
	for _, p := range r.ports {
		if p.Node() == e.Node && (p.Peer().Node() == e.Peer || e.Peer == "" && strings.HasPrefix(e.Node, "host")) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("node %q and peer %q: there is no such cable", e.Node, e.Peer)
}

func (r *run) cableDown(e *failure) (begin, end func(), err error) {
	p, err := r.port(e)
	return func() { r.holds.setDown(p, true) }, func() { r.holds.setDown(p, false) }, err
}

// switchRestart cuts all cables of a switch. What is in its queues is lost.
func (r *run) switchRestart(e *failure) (begin, end func(), err error) {
	ports := r.graph.ports[e.Node]
	switch {
	case ports == nil:
		return nil, nil, fmt.Errorf("node %q is no switch", e.Node)
	case e.For == 0:
		return nil, nil, fmt.Errorf("for is missing: it is the time that the restart takes")
	}
	set := func(down bool) func() {
		return func() {
			for _, p := range ports {
				r.holds.setDown(p, down)
			}
			if down {
				for _, p := range ports {
					p.Flush()
				}
			}
		}
	}
	return set(true), set(false), nil
}

// host returns the host that a failure names.
func (r *run) host(e *failure) (*network.Host, error) {
	for _, n := range r.nodes {
		if n.h.Name() == e.Node {
			return n.h, nil
		}
	}
	return nil, fmt.Errorf("node %q is no host: they are host0 to host%d", e.Node, len(r.nodes)-1)
}

// paused are the classes that a faulty host pauses: those with PFC, or else that of the flows.
func (r *run) paused() uint8 {
	if c := r.net.Switch.PFC.Classes; c != 0 {
		return c
	}
	return 1 << (r.cfg.RDMA.DSCP >> 3)
}

func (r *run) pfcStorm(e *failure) (begin, end func(), err error) {
	h, err := r.host(e)
	set := func(on bool) func() { return func() { r.holds.setPause(h, r.paused(), on) } }
	return set(true), set(false), err
}

// slowness is the period of the pauses of a slow host.
const slowness = 20 * time.Microsecond

// slowHost has a host that pauses its port for a share of the time, as an adapter does whose
// memory is slow.
func (r *run) slowHost(e *failure) (begin, end func(), err error) {
	h, err := r.host(e)
	if err == nil && !(e.Share > 0 && e.Share < 1) {
		err = fmt.Errorf("share is %v: it is that of the rate that remains, more than 0 and less than 1", e.Share)
	}
	if err != nil {
		return nil, nil, err
	}
	free := time.Duration(e.Share * float64(slowness))
	pausing, ended := false, false
	pause := func(on bool) {
		if on != pausing {
			pausing = on
			r.holds.setPause(h, r.paused(), on)
		}
	}
	var cycle func()
	cycle = func() {
		if !ended {
			pause(true)
			h.Alone(slowness-free, func() {
				pause(false)
				h.Alone(free, cycle)
			})
		}
	}
	return cycle, func() {
		ended = true
		pause(false)
	}, nil
}

func (r *run) bitErrors(e *failure) (begin, end func(), err error) {
	p, err := r.port(e)
	if err == nil && !(e.Rate > 0 && e.Rate < 1) {
		err = fmt.Errorf("rate is %v: it is the probability that a bit is wrong, such as 1e-6", e.Rate)
	}
	set := func(on bool) func() { return func() { r.check(r.holds.setErrors(p, e.Rate, on)) } }
	return set(true), set(false), err
}
