package cm

import (
	"io"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Where other processes have the same addresses, a port is for one of them.

// served is a port that this process has for itself at some addresses.
type served struct {
	once    sync.Once
	ports   []stack.Shared
	service stack.Service
}

// HoldPort reserves a port for this process. Requests to it are refused while nobody listens.
func (m *Manager) HoldPort(space rdmacm.PortSpace, addr netip.AddrPort) (io.Closer, error) {
	return m.serve("bind", space, addr)
}

// serve reserves a port at an address, or at all. It waits for other processes, so that no lock is
// held.
func (m *Manager) serve(op string, space rdmacm.PortSpace, addr netip.AddrPort) (*served, error) {
	s := &served{service: stack.Service{Addr: addr.Addr().Unmap().WithZone(""), ID: mad.ServiceID(uint16(space), addr.Port()), Mask: 1<<64 - 1}}
	if s.service.Addr.IsUnspecified() {
		s.service.Addr = netip.Addr{}
	}
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

// Close gives the port up.
func (s *served) Close() error {
	s.once.Do(func() {
		for _, p := range s.ports {
			p.EndServe(s.service)
		}
	})
	return nil
}
