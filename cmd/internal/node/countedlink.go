package node

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// countedLink is a link that counts packets on the wire in both directions. A superframe counts as
// its segments. Nodes that share a medium also share it through a countedLink.
type countedLink struct {
	link.Link
	poller  link.Poller // the link, or nil
	shared  link.Shared // the link, or nil
	Packets atomic.Uint64
}

var (
	_ link.Poller     = (*countedLink)(nil)
	_ link.Shared     = (*countedLink)(nil)
	_ link.Carrier    = (*countedLink)(nil)
	_ link.Departures = (*countedLink)(nil)
)

func newCountedLink(l link.Link) *countedLink {
	c := &countedLink{Link: l}
	c.poller, _ = l.(link.Poller)
	c.shared, _ = l.(link.Shared)
	return c
}

func (c *countedLink) count(frames []link.Frame) {
	n := 0
	for i := range frames {
		n += frames[i].Segments()
	}
	c.Packets.Add(uint64(n))
}

// Attach implements link.Link.
func (c *countedLink) Attach(recv link.Receiver) {
	c.Link.Attach(func(frames []link.Frame) {
		c.count(frames)
		recv(frames)
	})
}

// Write implements link.Link.
func (c *countedLink) Write(frames []link.Frame) (int, error) {
	n, err := c.Link.Write(frames)
	c.count(frames[:n])
	return n, err
}

// Poll implements link.Poller.
func (c *countedLink) Poll() bool { return c.poller != nil && c.poller.Poll() }

// EndPoll implements link.Poller.
func (c *countedLink) EndPoll() {
	if c.poller != nil {
		c.poller.EndPoll()
	}
}

// Medium implements link.Shared.
func (c *countedLink) Medium() any {
	if c.shared == nil {
		return nil
	}
	return c.shared.Medium()
}

// State implements link.Carrier.
func (c *countedLink) State() link.State { return link.StateOf(c.Link) }

// Watch implements link.Carrier.
func (c *countedLink) Watch(f func()) { link.Watch(c.Link, f) }

// Clock implements link.Clocked.
func (c *countedLink) Clock() clock.Clock { return link.ClockOf(c.Link) }

// WatchDepartures implements link.Departures.
func (c *countedLink) WatchDepartures(f func(mac [6]byte)) { link.WatchDepartures(c.Link, f) }
