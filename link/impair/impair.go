// Package impair is a link that impairs another link: it loses, duplicates, delays, reorders and
// corrupts packets, at random from a seed or by rules.
//
// The link accepts every offload and cuts superframes itself, in both directions. Each impairment
// thus applies to a single packet with complete checksums. [Parse] reads a configuration from a
// command line's syntax.
package impair

import (
	"fmt"
	"net"
	"sync"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Link is a link that impairs the packets of another.
type Link struct {
	inner   link.Link
	poller  link.Poller // inner, or nil
	clock   clock.Clock
	in, out *direction

	departed struct {
		sync.Mutex // held during a call of watch
		watch      func(mac [6]byte)
	}
}

var (
	_ link.Link       = (*Link)(nil)
	_ link.Poller     = (*Link)(nil)
	_ link.Carrier    = (*Link)(nil)
	_ link.Departures = (*Link)(nil)
	_ link.Clocked    = (*Link)(nil)
)

// The directions have random sequences of their own.
const (
	inStream = 1 + iota
	outStream
)

// New impairs the packets of inner as cfg describes. The same configuration has the same effect on
// the same packets. An error names the field whose value is out of bounds. With nil, cfg is the
// zero Config.
func New(inner link.Link, cfg *Config) (*Link, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	ownClock := link.ClockOf(inner)
	l := &Link{inner: inner, clock: ownClock, in: newDirection(ownClock, c.In, c.Seed, inStream),
		out: newDirection(ownClock, c.Out, c.Seed, outStream)}
	l.poller, _ = inner.(link.Poller)
	l.out.deliver = func(frames []link.Frame) error {
		_, err := inner.Write(frames)
		return err
	}
	return l, nil
}

// Set replaces the configuration while packets pass. Packets that wait arrive when they are due, so
// later packets with a shorter delay overtake them. Counters continue. Errors are as for New, and
// change nothing.
func (l *Link) Set(cfg *Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	l.in.set(cfg.In, cfg.Seed, inStream)
	l.out.set(cfg.Out, cfg.Seed, outStream)
	return nil
}

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.in.deliver = func(frames []link.Frame) error {
		recv(frames)
		return nil
	}
	var mu sync.Mutex // inner's queues must not call deliver concurrently
	l.inner.Attach(func(frames []link.Frame) {
		mu.Lock()
		defer mu.Unlock()
		for i := range frames {
			l.in.pass(&frames[i])
		}
		_ = l.in.flush()
	})
}

// Write implements link.Link. A delayed packet is lost if the inner link later refuses it.
func (l *Link) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if err := frames[i].Validate(l.MTU(), offloads); err != nil {
			return i, fmt.Errorf("%s: %w", l.Name(), err)
		}
		l.out.pass(&frames[i])
		if err := l.out.flush(); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// Poll polls the inner link, if it is a Poller. Delayed packets arrive when they are due.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}

// Close drops delayed packets and closes the inner link.
func (l *Link) Close() error {
	l.in.close()
	l.out.close()
	return l.inner.Close()
}

// Counters count the packets of one direction and the impairments applied.
type Counters struct {
	Packets    uint64 // all packets
	Lost       uint64 // by probability, burst or rule
	Duplicated uint64
	Reordered  uint64 // delayed by Hold
	Corrupted  uint64
	Overflowed uint64 // lost because Limit packets were held or the queue was full
	Marked     uint64 // marked Congestion Experienced by the queue
	// LongestQueue is the largest number of bytes that have waited for the rate, including the
	// last packet.
	LongestQueue int
}

// Counters returns the counters of received and of sent packets.
func (l *Link) Counters() (in, out Counters) { return l.in.counters(), l.out.counters() }

// Name is the inner link's name.
func (l *Link) Name() string { return l.inner.Name() }

// MAC is the inner link's address.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// MTU is the inner link's MTU.
func (l *Link) MTU() int { return l.inner.MTU() }

// Offloads are all offloads, because superframes are cut here.
func (l *Link) Offloads() link.Offloads { return offloads }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// State implements link.Carrier with the inner link's state.
func (l *Link) State() link.State { return link.StateOf(l.inner) }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { link.Watch(l.inner, f) }

// Clock implements link.Clocked with the inner link's clock.
func (l *Link) Clock() clock.Clock { return l.clock }

// WatchDepartures implements link.Departures. The call comes after the host's delayed packets.
func (l *Link) WatchDepartures(f func(mac [6]byte)) {
	l.departed.Lock()
	l.departed.watch = f
	l.departed.Unlock()
	link.WatchDepartures(l.inner, func(mac [6]byte) {
		l.in.afterHeld(func() {
			l.departed.Lock()
			defer l.departed.Unlock()
			if l.departed.watch != nil {
				l.departed.watch(mac)
			}
		})
	})
}
