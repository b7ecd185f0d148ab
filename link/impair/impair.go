// Package impair is a link that makes another one worse: it loses, repeats, delays, reorders and damages packets, at
// random from a seed or by script.
//
// The link takes every offload and cuts superframes itself, in both directions, so that each impairment is of a single packet
// with complete checksums. [Parse] reads a configuration as a command line has it.
package impair

import (
	"fmt"
	"net"
	"sync"

	"github.com/softrnic/softrnic/link"
)

// Link is a link that impairs the packets of another.
type Link struct {
	inner   link.Link
	poller  link.Poller // inner, or nil
	in, out *direction
}

var (
	_ link.Link    = (*Link)(nil)
	_ link.Poller  = (*Link)(nil)
	_ link.Carrier = (*Link)(nil)
)

// New impairs the packets of inner as cfg says. The same configuration does the same to the same packets. An error names the
// setting that is out of its bounds.
func New(inner link.Link, cfg Config) (*Link, error) {
	for _, d := range []struct {
		name string
		d    *Direction
	}{{"in", &cfg.In}, {"out", &cfg.Out}} {
		if err := d.d.check(); err != nil {
			return nil, fmt.Errorf("impair: %s: %w", d.name, err)
		}
	}
	l := &Link{inner: inner, in: newDirection(cfg.In, cfg.Seed, 1), out: newDirection(cfg.Out, cfg.Seed, 2)}
	l.poller, _ = inner.(link.Poller)
	l.out.deliver = func(frames []link.Frame) error {
		_, err := inner.Write(frames)
		return err
	}
	return l, nil
}

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.in.deliver = func(frames []link.Frame) error {
		recv(frames)
		return nil
	}
	var mu sync.Mutex // one of inner's queues must not deliver packets that another has brought
	l.inner.Attach(func(frames []link.Frame) {
		mu.Lock()
		defer mu.Unlock()
		for i := range frames {
			l.in.pass(&frames[i])
		}
		_ = l.in.flush()
	})
}

// Write implements link.Link. Packets that are held back, and that the inner link then refuses, are lost.
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

// Poll polls the inner link, if it can be polled. Packets that are held back arrive when they are due.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}

// Close drops what is held back and closes the inner link.
func (l *Link) Close() error {
	l.in.close()
	l.out.close()
	return l.inner.Close()
}

// Counters tell what happened to the packets of one direction.
type Counters struct {
	Packets    uint64 // that came
	Lost       uint64 // by chance, burst or rule
	Duplicated uint64
	Reordered  uint64 // held back
	Corrupted  uint64
	Overflowed uint64 // lost because Limit packets were held, or the queue was full
	Marked     uint64 // Congestion Experienced, by the queue
	// LongestQueue is how many bytes have waited for the rate at most, the last packet's included.
	LongestQueue int
}

// Counters returns those of received and of sent packets.
func (l *Link) Counters() (in, out Counters) { return l.in.counters(), l.out.counters() }

// Name is the inner link's.
func (l *Link) Name() string { return l.inner.Name() }

// MAC is the inner link's.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// MTU is the inner link's.
func (l *Link) MTU() int { return l.inner.MTU() }

// Offloads are all: what comes is cut here.
func (l *Link) Offloads() link.Offloads { return offloads }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// State implements link.Carrier: the inner link's.
func (l *Link) State() link.State { return link.StateOf(l.inner) }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { link.Watch(l.inner, f) }
