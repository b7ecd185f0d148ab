package cm

import (
	"io"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Ports of addresses that several processes share. Each port belongs to one process.

// reservation is a port that is reserved for this process at some addresses.
type reservation struct {
	once    sync.Once
	ports   []stack.Shared
	service stack.Service
}

// HoldPort reserves a port for this process. Requests to it are refused until there is a listener.
func (m *Manager) HoldPort(space rdmacm.PortSpace, addr netip.AddrPort, afOnly bool) (io.Closer, error) {
	return m.reserve("bind", space, addr, afOnly)
}

// reserve reserves a port at one address, at all addresses of a family (0.0.0.0 or ::), or at all
// of both (the zero Addr). It waits for other processes, so the caller must not hold a lock.
func (m *Manager) reserve(op string, space rdmacm.PortSpace, addr netip.AddrPort, afOnly bool) (*reservation, error) {
	s := &reservation{service: stack.Service{
		Addr: addr.Addr().Unmap().WithZone(""), ID: mad.ServiceID(uint16(space), addr.Port()), Mask: 1<<64 - 1,
		BothFamilies: !afOnly && addr.Addr().IsValid() && !addr.Addr().IsUnspecified(),
	}}
	if m.cfg.Shared == nil {
		return s, nil
	}
	for _, p := range m.cfg.Shared(s.service.Addr) {
		if err := p.Serve(s.service); err != nil {
			_ = s.Close()
			return nil, verbs.Errorf(err, op, "%v in port space %v: %v", addr, space, err)
		}
		s.ports = append(s.ports, p)
	}
	return s, nil
}

// Close releases the port.
func (s *reservation) Close() error {
	s.once.Do(func() {
		for _, p := range s.ports {
			p.EndServe(s.service)
		}
	})
	return nil
}
