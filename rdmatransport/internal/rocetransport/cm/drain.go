package cm

import (
	"context"
	"fmt"
)

// Drain waits until the peer of each disconnected connection has answered or the time for an answer
// has passed. From now on, DREQs are retransmitted every tenth of a second, and abandoned after
// less than two seconds. Time without a carrier that is expected to return (Config.CarrierExpected)
// does not count. If ctx ends first, its error is returned.
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
	if m.disconnecting == 0 {
		m.mu.Unlock()
		return nil
	}
	if m.drained == nil {
		m.drained = make(chan struct{})
	}
	drained := m.drained
	m.mu.Unlock()
	m.cfg.Timers.Clock().Park(func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.disconnecting == 0 || ctx.Err() != nil
	})
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disconnecting == 0 {
		return nil
	}
	return fmt.Errorf("%d peers have not answered their DREQ: %w", m.disconnecting, ctx.Err())
}

// countDisconnecting adds n to the number of connections that wait for DREP.
func (m *Manager) countDisconnecting(n int) {
	if m.disconnecting += n; m.disconnecting == 0 && m.drained != nil {
		close(m.drained)
		m.drained = nil
	}
}
