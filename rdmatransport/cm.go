package rdmatransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

var _ rdmacm.PortHolder = (*provider)(nil)

// newCM starts RoCEv2's connection manager.
func (p *provider) newCM(rand io.Reader, ids stack.Range) *cm.Manager {
	return cm.New(cm.Config{
		GSI:              p.roce.GSI(),
		Timers:           p.timers,
		Rand:             rand,
		IDs:              ids,
		Shared:           p.sharedAt,
		GUID:             uint64(p.guid()),
		AckDelay:         ackDelay,
		MaxDepth:         rocetransport.MaxReadAtomic,
		GIDIndex:         func(port uint8, a netip.Addr) int { return slices.Index(gids(p.nics[port-1]), a) },
		MTU:              func(port uint8) verbs.MTU { return activeMTU(p.nics[port-1]) },
		Access:           p.access,
		BeforeDisconnect: p.roce.SendBeforeDisconnect,
		CarrierExpected:  p.carrierExpected,
	})
}

// carrierExpected reports whether a port's shared hub is gone: another one will start soon.
func (p *provider) carrierExpected(port uint8) bool {
	nic := p.nics[port-1]
	return nic.State() == stack.LinkNoCarrier && sharedPort(nic) != nil
}

// Route implements rdmacm.Provider. The error wraps EACCES if the device's access control does not
// allow dst, and the errors of findRoute.
func (p *provider) Route(transport verbs.Transport, src, dst netip.Addr) (rdmacm.Route, error) {
	if err := p.access.Check(dst.Unmap()); err != nil {
		return rdmacm.Route{}, &verbs.Error{Op: opRoute, Err: err}
	}
	return p.findRoute(transport, src, dst)
}

// Allows implements rdmacm.AccessController.
func (p *provider) Allows(host netip.Addr) bool { return p.access.Allows(host) }

// Admits implements rdmacm.AccessController.
func (p *provider) Admits(host netip.Addr) bool { return p.access.Admits(host) }

// Identify implements rdmacm.AccessController.
func (p *provider) Identify(host netip.Addr) (rdmacm.Identity, bool) {
	if p.identify == nil {
		return rdmacm.Identity{}, false
	}
	return p.identify(host)
}

const opRoute = "route"

// findRoute returns the route to dst. Without src it selects an interface on a network with dst,
// otherwise one with a gateway. The error wraps EADDRNOTAVAIL if the device does not have src, and
// ENETUNREACH if it has no route to dst. It wraps EINVAL if dst is no address of a host (or for
// RoCEv2, of a group), or src is of the other IP version.
func (p *provider) findRoute(transport verbs.Transport, src, dst netip.Addr) (rdmacm.Route, error) {
	const op = opRoute
	zone := dst.Zone()
	src, dst = src.Unmap().WithZone(""), dst.Unmap().WithZone("")
	if dst.IsMulticast() && transport == verbs.IWARP {
		return rdmacm.Route{}, verbs.Errorf(verbs.ErrInvalid, op, "%v: iWARP has no multicast", dst)
	}
	given := src.IsValid() && !src.IsUnspecified()
	if given && src.Is4() != dst.Is4() {
		return rdmacm.Route{}, verbs.Errorf(verbs.ErrInvalid, op, "source %v, destination %v: must have the same IP version", src, dst)
	}
	var route rdmacm.Route
	var errs []error
	for i, nic := range p.nics {
		table := gids(nic)
		if zone != "" && zone != nic.Name() || given && !slices.Contains(table, src) {
			continue
		}
		from, direct, err := nic.Source(dst)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if route.PortNum != 0 && !direct {
			continue
		}
		if given {
			from = src
		}
		index := slices.Index(table, from)
		if index < 0 {
			errs = append(errs, fmt.Errorf("%v is not among the first %d addresses of %s, its GIDs: %w", from, maxAddrs, nic.Name(),
				syscall.ENETUNREACH))
			continue
		}
		route = rdmacm.Route{
			Transport: transport, Src: from, Dst: dst, PortNum: uint8(i + 1), GIDIndex: index, MTU: activeMTU(nic),
		}
		if direct {
			break
		}
	}
	switch {
	case route.PortNum != 0:
		return route, nil
	case len(errs) > 0:
		err := errors.Join(errs...)
		return route, &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	case given:
		return route, verbs.Errorf(syscall.EADDRNOTAVAIL, op, "source %v: device %s does not have that address where %v may be",
			src, p.name, dst)
	}
	return route, verbs.Errorf(syscall.ENETUNREACH, op, "%v: device %s has no interface %q", dst, p.name, zone)
}

// iwarpRoute returns the route of a stream between two addresses. The engine has checked the peer's
// access.
func (p *provider) iwarpRoute(local, remote netip.Addr) (rdmacm.Route, error) {
	return p.findRoute(verbs.IWARP, local, remote)
}

// Resolve implements rdmacm.Provider.
func (p *provider) Resolve(ctx context.Context, r rdmacm.Route) error {
	nic, err := p.nic(r.PortNum)
	if err != nil {
		return err
	}
	return nic.Resolve(ctx, r.Src, r.Dst)
}

// Listen implements rdmacm.Provider.
func (p *provider) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	if attr.Transport == verbs.IWARP {
		return p.iwarp.Listen(attr, h)
	}
	return p.cm.Listen(attr, h)
}

// HoldPort implements rdmacm.PortHolder. iWARP uses TCP ports, which the network stack manages.
func (p *provider) HoldPort(space rdmacm.PortSpace, addr netip.AddrPort, afOnly bool) (io.Closer, error) {
	return p.cm.HoldPort(space, addr, afOnly)
}

// Connect implements rdmacm.Provider.
func (p *provider) Connect(attr *rdmacm.ConnectAttr, h rdmacm.Handler) (rdmacm.ProviderConn, error) {
	if _, err := p.nic(attr.PortNum); err != nil {
		return nil, err
	}
	if attr.Dst.IsMulticast() {
		return nil, verbs.Errorf(verbs.ErrInvalid, "connect", "%v is a multicast group: join it", attr.Dst)
	}
	if attr.Transport == verbs.IWARP {
		return p.iwarp.Connect(attr, h)
	}
	return p.cm.Connect(attr, h)
}

// multicastQPN and multicastQKey are the QP number and Q_Key of multicast datagrams. Every QP
// attached to the group gets them, and the Q_Key is rdma_cm's.
const (
	multicastQPN  = 0xffffff
	multicastQKey = 0x01234567
)

// JoinMulticast implements rdmacm.Provider.
func (p *provider) JoinMulticast(r rdmacm.Route, group netip.Addr, sendOnly bool, h rdmacm.Handler) (io.Closer, error) {
	nic, err := p.nic(r.PortNum)
	if err != nil {
		return nil, err
	}
	m := &membership{p: p, group: group}
	if !sendOnly {
		if err := nic.Join(group); err != nil {
			return nil, err
		}
		m.joined = nic
	}
	m.timer.Init(func() {
		m.mu.Lock()
		left := m.left
		m.mu.Unlock()
		if left {
			return
		}
		h(&rdmacm.ConnEvent{Type: rdmacm.MulticastJoin, Route: r, UD: rdmacm.UDParam{
			AHAttr: verbs.AHAttr{
				GRH: verbs.GRH{
					DGID: verbs.GIDFromAddr(group), SGIDIndex: uint8(r.GIDIndex), HopLimit: 1, TrafficClass: r.TOS,
				},
				IsGlobal: true,
				PortNum:  r.PortNum,
			},
			QPNum: multicastQPN,
			QKey:  multicastQKey,
		}})
	})
	p.timers.ArmAt(&m.timer, 0) // the event is delivered on a goroutine of the device
	return m, nil
}

// membership is the result of JoinMulticast.
type membership struct {
	p      *provider
	joined stack.NIC // nil: the member only sends
	group  netip.Addr
	timer  timers.Timer
	mu     sync.Mutex
	left   bool
}

// Close leaves the group.
func (m *membership) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left {
		return nil
	}
	m.left = true
	m.p.timers.Remove(&m.timer)
	if m.joined == nil {
		return nil
	}
	return m.joined.Leave(m.group)
}
