package cm

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// listener accepts requests for a port: at one address, at all addresses, or at those of one IP
// version.
type listener struct {
	m           *Manager
	handler     rdmacm.Handler
	space       rdmacm.PortSpace
	serviceID   uint64
	addr        netip.Addr
	v4, v6      bool // accepted IP versions
	backlog     int
	held        io.Closer
	unvalidated int                // half-open connections of unvalidated peers
	validated   int                // of validated ones
	of          map[netip.Addr]int // and of each of these
}

// Listen accepts connection requests; in the UDP port space, requests for the QP of the port.
func (m *Manager) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	const op = "listen"
	l := &listener{
		m: m, handler: h, of: map[netip.Addr]int{}, space: attr.PortSpace, addr: attr.Addr.Addr().Unmap().WithZone(""), backlog: attr.Backlog,
		serviceID: mad.ServiceID(uint16(attr.PortSpace), attr.Addr.Port()),
	}
	l.v4, l.v6 = !l.addr.Is6(), !l.addr.Is4()
	if l.backlog <= 0 {
		l.backlog = defaultBacklog
	}
	if attr.Addr.Port() == 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "%v: want a port from 1 to 65535", attr.Addr)
	}
	held, err := m.reserve(op, l.space, attr.Addr, attr.AFOnly)
	if err != nil {
		return nil, err
	}
	l.held = held
	if err := m.addListener(op, l, attr); err != nil {
		_ = held.Close()
		return nil, err
	}
	return l, nil
}

func (m *Manager) addListener(op string, l *listener, attr *rdmacm.ListenAttr) error {
	m.mu.Lock()
	defer m.unlockAndDeliverLater()
	if m.closed {
		return verbs.Errorf(verbs.ErrClosed, op, "the device is closed")
	}
	for _, o := range m.listeners[l.serviceID] {
		if o.conflicts(l) {
			return verbs.Errorf(fmt.Errorf("%w: %w", verbs.ErrBusy, syscall.EADDRINUSE), op,
				"%v: another ID listens there in port space %v", attr.Addr, attr.PortSpace)
		}
	}
	m.listeners[l.serviceID] = append(m.listeners[l.serviceID], l)
	return nil
}

// conflicts reports whether two listeners for one service ID cannot exist at the same time.
func (l *listener) conflicts(o *listener) bool {
	if l.any() && o.any() {
		return l.addr == o.addr || l.v4 && o.v4 || l.v6 && o.v6
	}
	return l.addr == o.addr
}

// any reports whether the listener is for all addresses, of IPv4, IPv6 or both.
func (l *listener) any() bool { return !l.addr.IsValid() || l.addr.IsUnspecified() }

// Close stops the listener. Earlier requests may still be reported, and wait for their answers as
// before.
func (l *listener) Close() error {
	l.m.removeListener(l)
	return l.held.Close()
}

func (m *Manager) removeListener(l *listener) {
	m.mu.Lock()
	defer m.unlockAndDeliverLater()
	s := m.listeners[l.serviceID]
	if i := slices.Index(s, l); i >= 0 {
		if len(s) == 1 {
			delete(m.listeners, l.serviceID)
		} else {
			m.listeners[l.serviceID] = slices.Delete(s, i, i+1)
		}
	}
}

// findListener returns the listener for a service at an address. known reports whether there is a
// listener for the service at any address.
func (m *Manager) findListener(serviceID uint64, dst netip.Addr) (l *listener, known bool) {
	s := m.listeners[serviceID]
	for _, o := range s {
		if o.addr == dst {
			return o, true
		}
		if o.any() && (o.v4 && dst.Is4() || o.v6 && dst.Is6()) {
			l = o
		}
	}
	return l, len(s) > 0
}
