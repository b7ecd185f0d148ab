package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Bind binds the ID to a local address and port (rdma_bind_addr). An unspecified or invalid address
// means all addresses of all devices of the channel: 0.0.0.0 those of IPv4, others those of both
// families, see [ID.SetAFOnly]. Port 0 means an ephemeral port. Bind fails with EADDRNOTAVAIL if no
// device has the address. If the port is in use, it fails with EADDRINUSE if another ID has the
// same address, and with EADDRNOTAVAIL if one of the two has all addresses, as in Linux.
func (id *ID) Bind(addr netip.AddrPort) error {
	const op = "bind"
	if err := id.lock(op, idle); err != nil {
		return err
	}
	defer id.mu.Unlock()
	return id.bind(op, addr, true)
}

// bind implements Bind. Without hold, it reserves the port in this process only. That suffices for
// the active side, whose connections the provider distinguishes by other numbers than the port. The
// ID is locked.
func (id *ID) bind(op string, addr netip.AddrPort, hold bool) error {
	a := canonical(addr.Addr())
	b := &binding{devs: id.ch.devs, space: id.space, reuse: id.opts.reuse, afOnly: id.afOnly(a)}
	var at location
	switch {
	case !a.IsValid():
		a = netip.IPv6Unspecified()
		b.devs = withOwnAddrs(b.devs)
	case a.IsUnspecified():
		b.devs = withOwnAddrs(b.devs)
	default:
		var ok bool
		if at, ok = findAddr(id.ch.devs, a); !ok {
			return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "no device of the channel has address %v", a)
		}
		b.devs = []*verbs.Device{at.dev}
	}
	b.addr = netip.AddrPortFrom(a, addr.Port())
	bind := ports.bind
	if hold {
		bind = ports.bindAndHold
	}
	if err := bind(op, b); err != nil {
		return err
	}
	if at.dev != nil {
		if err := id.watch(op, at.dev); err != nil {
			ports.release(b)
			return err
		}
	}
	id.bound, id.localPort, id.dev, id.state = b, b.addr.Port(), at.dev, bound
	if at.dev != nil {
		id.route = Route{Transport: id.transport(), Src: a, PortNum: at.port, GIDIndex: at.index, TOS: id.opts.tos}
	}
	return nil
}

// afOnly reports whether a binding to an address is limited to the address's family.
func (id *ID) afOnly(a netip.Addr) bool {
	return id.opts.afOnly || a.Is4() && !id.opts.afOnlySet // as in Linux
}

// withOwnAddrs returns the devices without those whose addresses are all of earlier devices. At one
// of these addresses the earlier device listens, as it does if the ID is bound to that address.
func withOwnAddrs(devs []*verbs.Device) (list []*verbs.Device) {
	seen := make(map[verbs.GID]bool)
	for _, d := range devs {
		var gids []verbs.GID
		for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
			table, _ := d.Provider().GIDTable(port) // an error means that the device is closed
			for _, e := range table {
				gids = append(gids, e.GID)
			}
		}
		if len(gids) > 0 && !slices.ContainsFunc(gids, func(g verbs.GID) bool { return !seen[g] }) {
			continue
		}
		for _, g := range gids {
			seen[g] = true
		}
		list = append(list, d)
	}
	return list
}

// canonical returns an address in the form that GIDs use.
func canonical(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// location is the device and port that have an address, and its GID index.
type location struct {
	dev   *verbs.Device
	port  uint8
	index int
}

func findAddr(devs []*verbs.Device, a netip.Addr) (location, bool) {
	gid := verbs.GIDFromAddr(a)
	for _, d := range devs {
		for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
			table, err := d.Provider().GIDTable(port)
			if err != nil {
				continue
			}
			if i := slices.IndexFunc(table, func(g verbs.GIDEntry) bool { return g.GID == gid }); i >= 0 {
				return location{d, port, table[i].Index}, true
			}
		}
	}
	return location{}, false
}

// ResolveAddr looks for a route to dst, from src if that is valid, and resolves the neighbour's MAC
// address (rdma_resolve_addr). It chooses the device, and binds the ID if it is not yet bound. If
// no device has a route, it returns an error. Otherwise AddrResolved follows, or AddrError, with
// ETIMEDOUT after timeout if that is not 0.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	const op = "resolve address"
	if !dst.IsValid() || dst.Addr().IsUnspecified() {
		return verbs.Errorf(verbs.ErrInvalid, op, "destination %v is not the address of a host", dst)
	}
	f, err := id.beginResolve(op, src)
	if err != nil {
		return err
	}
	t, err := f.find(op, dst)
	if err != nil {
		id.mu.Unlock()
		return err
	}
	id.resolve(timeout, func(ctx context.Context) (target, error) { return t, f.wait(ctx, t) })
	return nil
}

// ResolveHost is like ResolveAddr for "host:port", where either may be a name. It uses the first of
// the host's addresses that has a route and a neighbour that answers.
func (id *ID) ResolveHost(src netip.AddrPort, host string, timeout time.Duration) error {
	const op = "resolve address"
	f, err := id.beginResolve(op, src)
	if err != nil {
		return err
	}
	id.resolve(timeout, func(ctx context.Context) (target, error) {
		addrs, err := LookupHost(ctx, host)
		if err != nil {
			return target{}, err
		}
		var errs []error
		for _, dst := range addrs {
			t, err := f.find(op, dst)
			if err == nil {
				err = f.wait(ctx, t)
			}
			if err == nil {
				return t, nil
			}
			errs = append(errs, err)
		}
		return target{}, errors.Join(errs...)
	})
	return nil
}

// LookupHost returns the addresses of "host:port", where either may be a name (rdma_getaddrinfo).
// For an empty host it returns an invalid address, which means all addresses in Bind.
func LookupHost(ctx context.Context, hostport string) ([]netip.AddrPort, error) {
	const op = "look up address"
	host, service, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "%q: must be host:port, [address]:port or :port", hostport)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
		if err != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "%q: port %q is neither 0–65535 nor a known service", hostport, service)
		}
		port = uint64(n)
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, uint16(port))}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), uint16(port))}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, &verbs.Error{Op: op, Detail: fmt.Sprintf("%q: %v", hostport, err), Err: err}
	}
	out := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		out[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	return out, nil
}

// beginResolve locks the ID, and binds it to src if that is valid. On an error the ID is unlocked.
func (id *ID) beginResolve(op string, src netip.AddrPort) (routeResolver, error) {
	if err := id.lock(op, idle, bound); err != nil {
		return routeResolver{}, err
	}
	if src.IsValid() {
		if err := id.bindSource(op, src); err != nil {
			id.mu.Unlock()
			return routeResolver{}, err
		}
	}
	f := routeResolver{devs: id.ch.devs, transports: id.opts.transports}
	if id.dev != nil {
		f.devs, f.src = []*verbs.Device{id.dev}, id.local().Addr()
	}
	return f, nil
}

// bindSource binds the ID to the source address of a resolution. An ID that is already bound, for
// example after a failed resolution, stays bound.
func (id *ID) bindSource(op string, src netip.AddrPort) error {
	if id.state == idle {
		return id.bind(op, src, src.Port() != 0)
	}
	if at := id.local(); canonical(src.Addr()) != at.Addr() || src.Port() != 0 && src.Port() != at.Port() {
		return verbs.Errorf(verbs.ErrInvalid, op, "the source is %v, but the ID is bound to %v", src, at)
	}
	return nil
}

// routeResolver finds a route to a peer.
type routeResolver struct {
	devs       []*verbs.Device
	transports []verbs.Transport
	src        netip.Addr
}

// target is a peer and the route to it.
type target struct {
	dev   *verbs.Device
	route Route
	port  uint16
}

// find returns the first route. It tries the transports in order, and for each transport the
// devices in order.
func (f *routeResolver) find(op string, dst netip.AddrPort) (target, error) {
	var errs []error
	for _, transport := range f.transports {
		for _, d := range f.devs {
			r, err := provider(d).Route(transport, f.src, dst.Addr().Unmap())
			if err == nil {
				return target{d, r, dst.Port()}, nil
			}
			errs = append(errs, err)
		}
	}
	return target{}, &verbs.Error{Op: op, Detail: errs[0].Error(), Err: errors.Join(errs...)}
}

// wait waits until the neighbour on the route to a target answers.
func (*routeResolver) wait(ctx context.Context, t target) error {
	return provider(t.dev).Resolve(ctx, t.route)
}

// resolve calls find on a goroutine, which reports the outcome as an event. The ID is locked;
// resolve unlocks it.
func (id *ID) resolve(timeout time.Duration, find func(context.Context) (target, error)) {
	if timeout <= 0 {
		timeout = math.MaxInt64
	}
	ctx, cancel := id.ch.clock().WithTimeout(context.Background(), timeout)
	before := id.state
	id.state, id.cancel = resolvingAddr, cancel
	id.mu.Unlock()
	id.ch.clock().Go(func() {
		defer cancel()
		t, err := find(ctx)
		if o := id.outcome("rdma_resolve_addr"); o != nil {
			err = syscall.Errno(-o.Status)
		} else if ctx.Err() != nil && err != nil {
			err = ctx.Err() // rather than the provider's error, which may hide the reason
		}
		id.resolved(before, t, err)
	})
}

// resolved handles the outcome of resolve. before is the state to return to after an error.
func (id *ID) resolved(before state, t target, err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != resolvingAddr {
		return
	}
	id.cancel = nil
	src := netip.AddrPortFrom(t.route.Src, 0)
	if err == nil {
		err = id.watch("resolve address", t.dev)
	}
	if err == nil && id.bound == nil {
		b := &binding{devs: []*verbs.Device{t.dev}, space: id.space, addr: src, reuse: id.opts.reuse, afOnly: id.afOnly(src.Addr())}
		if err = ports.bind("resolve address", b); err == nil {
			id.bound = b
		}
	}
	if err != nil {
		id.state = before
		id.ch.add(&Event{Type: AddrError, ID: id, Status: status(err, syscall.EHOSTUNREACH)})
		return
	}
	id.state, id.dev, id.route = addrResolved, t.dev, t.route
	id.route.TOS = id.opts.tos
	id.localPort, id.remotePort = id.bound.addr.Port(), t.port
	id.ch.add(&Event{Type: AddrResolved, ID: id})
}

// ResolveRoute resolves the route to the peer (rdma_resolve_route). RouteResolved follows, or
// RouteError. On Ethernet no messages are needed, so that the event is in the channel when
// ResolveRoute returns.
func (id *ID) ResolveRoute() error {
	if err := id.lock("resolve route", addrResolved); err != nil {
		return err
	}
	defer id.mu.Unlock()
	r, err := provider(id.dev).Route(id.route.Transport, id.route.Src, id.route.Dst)
	if o := id.outcomeLocked("rdma_resolve_route"); o != nil {
		err = syscall.Errno(-o.Status)
	}
	if err != nil {
		id.ch.add(&Event{Type: RouteError, ID: id, Status: status(err, syscall.ENETUNREACH)})
		return nil
	}
	r.TOS = id.opts.tos
	id.state, id.route = routeResolved, r
	id.ch.add(&Event{Type: RouteResolved, ID: id})
	return nil
}
