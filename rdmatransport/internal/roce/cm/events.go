package cm

import (
	"time"

	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// report queues an event for the application.
func (c *conn) report(ev rdmacm.ConnEvent) {
	if c.closed {
		return
	}
	ev.Conn = c
	c.events = append(c.events, ev)
	c.m.ready = append(c.m.ready, c)
}

// unlockAndDeliver unlocks, and hands over the events that were queued. It is called on goroutines
// of the device only.
func (m *Manager) unlockAndDeliver() {
	ready := m.ready
	m.ready = nil
	m.mu.Unlock()
	for _, c := range ready {
		c.deliver()
	}
}

// unlockAndDeliverLater unlocks for a method that the application called: what events it brought
// about are handed over by the timers' goroutine.
func (m *Manager) unlockAndDeliverLater() {
	if len(m.ready) > 0 && !m.closed {
		m.cfg.Timers.Arm(&m.kick, time.Now())
	}
	m.mu.Unlock()
}

func (m *Manager) deliverKicked() {
	m.mu.Lock()
	m.unlockAndDeliver()
}

// deliver hands the connection's events over, unless another goroutine is at it: that one then
// takes these too.
func (c *conn) deliver() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.delivering {
		return
	}
	c.delivering = true
	for len(c.events) > 0 {
		ev := c.events[0]
		c.events = c.events[1:]
		c.m.mu.Unlock()
		c.handler(&ev)
		c.m.mu.Lock()
	}
	c.events, c.delivering = nil, false
}
