package cm

import "github.com/softrnic/softrnic/verbs/rdmacm"

// report queues an event for the application.
func (c *conn) report(ev rdmacm.ConnEvent) {
	if c.closed {
		return
	}
	ev.Conn = c
	c.events = append(c.events, ev)
	c.m.ready = append(c.m.ready, c)
}

// unlockAndDeliver unlocks, and delivers queued events. It must be called on a goroutine of the
// device.
func (m *Manager) unlockAndDeliver() {
	ready := m.ready
	m.ready = nil
	m.mu.Unlock()
	for _, c := range ready {
		c.deliver()
	}
}

// unlockAndDeliverLater unlocks at the end of an application's call. The timers' goroutine delivers
// the events.
func (m *Manager) unlockAndDeliverLater() {
	if len(m.ready) > 0 && !m.closed {
		m.cfg.Timers.ArmAt(&m.eventTimer, 0)
	}
	m.mu.Unlock()
}

func (m *Manager) deliverOnTimer() {
	m.mu.Lock()
	m.unlockAndDeliver()
}

// deliver delivers the connection's events. If another goroutine is delivering, that one delivers
// these too.
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
