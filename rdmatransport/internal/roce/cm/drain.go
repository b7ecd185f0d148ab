package cm

import (
	"context"
	"fmt"
)

// Drain waits until the peer of each connection that this side has ended knows of it, or has not
// answered for long enough: a DREQ is repeated after a tenth of a second from now on, and given up
// after less than two, in which those do not count that a port is without a carrier which will
// return (Config.Returns). The error is that of ctx, if it ends first.
func (m *Manager) Drain(ctx context.Context) error {
	m.mu.Lock()
	if !m.draining {
		m.draining = true
		for _, c := range m.ids.All() {
			if c.state == dreqSent {
				c.timeout = drainTimeout
				c.arm(c.timeout)
			}
		}
	}
	if m.leaving == 0 {
		m.mu.Unlock()
		return nil
	}
	if m.drained == nil {
		m.drained = make(chan struct{})
	}
	drained := m.drained
	m.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaving == 0 {
		return nil
	}
	return fmt.Errorf("%d peers have not answered their DREQ: %w", m.leaving, ctx.Err())
}

// countLeaving counts n more connections that wait for DREP.
func (m *Manager) countLeaving(n int) {
	if m.leaving += n; m.leaving == 0 && m.drained != nil {
		close(m.drained)
		m.drained = nil
	}
}
