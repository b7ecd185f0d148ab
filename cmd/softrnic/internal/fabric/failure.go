package fabric

import (
	"fmt"
	"maps"
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
	case e.Peer != "" && e.Kind != "cable-down" && e.Kind != "bit-errors",
		e.Share != 0 && e.Kind != "slow-host", e.Rate != 0 && e.Kind != "bit-errors":
		return fmt.Errorf("kind %s: it has no peer, share or rate, except that cable-down has a peer, bit-errors a peer and a rate, and "+
			"slow-host a share", e.Kind)
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
	return func() { p.SetDown(true) }, func() { p.SetDown(false) }, err
}

// switchRestart cuts all cables of a switch. What is in its queues is lost.
func (r *run) switchRestart(e *failure) (begin, end func(), err error) {
	var ports []*network.Port
	for _, p := range r.ports {
		if p.Node() == e.Node && !strings.HasPrefix(e.Node, "host") {
			ports = append(ports, p)
		}
	}
	switch {
	case ports == nil:
		return nil, nil, fmt.Errorf("node %q is no switch", e.Node)
	case e.For == 0:
		return nil, nil, fmt.Errorf("for is missing: it is the time that the restart takes")
	}
	set := func(down bool) func() {
		return func() {
			for _, p := range ports {
				p.SetDown(down)
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
	return func() { h.Pause(r.paused(), true) }, func() { h.Pause(r.paused(), false) }, err
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
	ended := false
	var cycle func()
	cycle = func() {
		if !ended {
			h.Pause(r.paused(), true)
			h.Clock().AfterFunc(slowness-free, func() {
				h.Pause(r.paused(), false)
				h.Clock().AfterFunc(free, cycle)
			})
		}
	}
	return cycle, func() { ended = true }, nil
}

func (r *run) bitErrors(e *failure) (begin, end func(), err error) {
	p, err := r.port(e)
	if err == nil && !(e.Rate > 0 && e.Rate < 1) {
		err = fmt.Errorf("rate is %v: it is the probability that a bit is wrong, such as 1e-6", e.Rate)
	}
	set := func(rate float64) func() { return func() { r.check(p.SetBitErrors(rate)) } }
	return set(e.Rate), set(0), err
}
