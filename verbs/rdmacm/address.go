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

// Bind gives the ID a local address and port (rdma_bind_addr). An address that is unspecified or not valid stands for
// all addresses of all devices of the channel; port 0 draws one. EADDRNOTAVAIL if no device has the address,
// EADDRINUSE if the port is taken.
func (id *ID) Bind(addr netip.AddrPort) error {
	const op = "bind"
	if err := id.lock(op, idle); err != nil {
		return err
	}
	defer id.mu.Unlock()
	return id.bind(op, addr)
}

func (id *ID) bind(op string, addr netip.AddrPort) error {
	a := plain(addr.Addr())
	b := &binding{devs: id.ch.devs, space: id.space, reuse: id.opts.reuse, afOnly: id.opts.afOnly}
	var at place
	switch {
	case !a.IsValid():
		a = netip.IPv6Unspecified()
	case !a.IsUnspecified():
		var ok bool
		if at, ok = findAddr(id.ch.devs, a); !ok {
			return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "%v is not an address of the devices of the channel", a)
		}
		b.devs = []*verbs.Device{at.dev}
	}
	b.addr = netip.AddrPortFrom(a, addr.Port())
	if err := ports.bind(op, b); err != nil {
		return err
	}
	if at.dev != nil {
		if err := id.enter(op, at.dev); err != nil {
			ports.release(b)
			return err
		}
	}
	id.bound, id.local, id.dev, id.state = b, b.addr, at.dev, bound
	if at.dev != nil {
		id.route = Route{Transport: id.transport(), Src: a, Port: at.port, GIDIndex: at.index, TOS: id.opts.tos}
	}
	return nil
}

// plain is an address as GIDs have it.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// place is where an address is.
type place struct {
	dev   *verbs.Device
	port  uint8
	index int
}

func findAddr(devs []*verbs.Device, a netip.Addr) (place, bool) {
	gid := verbs.GIDFromAddr(a)
	for _, d := range devs {
		for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
			table, err := d.GIDTable(port)
			if err != nil {
				continue
			}
			if i := slices.IndexFunc(table, func(g verbs.GIDEntry) bool { return g.GID == gid }); i >= 0 {
				return place{d, port, table[i].Index}, true
			}
		}
	}
	return place{}, false
}

// ResolveAddr looks for a way to dst, from src if that is valid, and waits for the neighbour on it (rdma_resolve_addr).
// It binds the ID if it is not yet bound, and chooses the device. AddrResolved follows, or AddrError: ETIMEDOUT after
// timeout, if that is not 0. No way at all is an error at once.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	const op = "resolve address"
	if !dst.IsValid() || dst.Addr().IsUnspecified() {
		return verbs.Errorf(verbs.ErrInvalid, op, "destination %v is no address", dst)
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

// ResolveHost is ResolveAddr for "host:port", where either may be a name. Of the host's addresses it takes the first
// that answers.
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

// LookupHost is the addresses that "host:port" stands for, where either may be a name (rdma_getaddrinfo). An empty
// host is an address that is not valid, as Bind takes it.
func LookupHost(ctx context.Context, hostport string) ([]netip.AddrPort, error) {
	const op = "look up address"
	host, service, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "%q: give host:port, [address]:port or :port", hostport)
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

// beginResolve locks the ID and binds it to src if that is given.
func (id *ID) beginResolve(op string, src netip.AddrPort) (pathFinder, error) {
	fit := []state{idle, bound}
	if src.IsValid() {
		fit = fit[:1]
	}
	if err := id.lock(op, fit...); err != nil {
		return pathFinder{}, err
	}
	if src.IsValid() {
		if err := id.bind(op, src); err != nil {
			id.mu.Unlock()
			return pathFinder{}, err
		}
	}
	f := pathFinder{devs: id.ch.devs, transports: id.opts.transports}
	if id.dev != nil {
		f.devs, f.src = []*verbs.Device{id.dev}, id.local.Addr()
	}
	return f, nil
}

// pathFinder looks for a way to a peer.
type pathFinder struct {
	devs       []*verbs.Device
	transports []verbs.Transport
	src        netip.Addr
}

// target is a peer and the way to it.
type target struct {
	dev   *verbs.Device
	route Route
	port  uint16
}

// find takes the first transport, and of its devices the first, that has a way.
func (f *pathFinder) find(op string, dst netip.AddrPort) (target, error) {
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
	return target{}, &verbs.Error{Op: op, Detail: fmt.Sprintf("%v: %v", dst, errs[0]), Err: errors.Join(errs...)}
}

func (*pathFinder) wait(ctx context.Context, t target) error {
	return provider(t.dev).Resolve(ctx, t.route)
}

// resolve runs find and reports what came of it. The ID is locked; resolve unlocks it.
func (id *ID) resolve(timeout time.Duration, find func(context.Context) (target, error)) {
	if timeout <= 0 {
		timeout = math.MaxInt64
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	before := id.state
	id.state, id.cancel = resolvingAddr, cancel
	id.mu.Unlock()
	go func() {
		defer cancel()
		t, err := find(ctx)
		if ctx.Err() != nil && err != nil {
			err = ctx.Err() // whatever the provider made of it
		}
		id.resolved(before, t, err)
	}()
}

func (id *ID) resolved(before state, t target, err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != resolvingAddr {
		return
	}
	id.cancel = nil
	src := netip.AddrPortFrom(t.route.Src, 0)
	if err == nil {
		err = id.enter("resolve address", t.dev)
	}
	if err == nil && id.bound == nil {
		b := &binding{devs: []*verbs.Device{t.dev}, space: id.space, addr: src, reuse: id.opts.reuse}
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
	id.local = netip.AddrPortFrom(t.route.Src, id.bound.addr.Port())
	id.remote = netip.AddrPortFrom(t.route.Dst, t.port)
	id.ch.add(&Event{Type: AddrResolved, ID: id})
}

// ResolveRoute settles the way to the peer (rdma_resolve_route). RouteResolved follows, or RouteError. On Ethernet
// there is nothing to ask, so both are there at once.
func (id *ID) ResolveRoute() error {
	if err := id.lock("resolve route", addrResolved); err != nil {
		return err
	}
	defer id.mu.Unlock()
	r, err := provider(id.dev).Route(id.route.Transport, id.route.Src, id.route.Dst)
	if err != nil {
		id.ch.add(&Event{Type: RouteError, ID: id, Status: status(err, syscall.ENETUNREACH)})
		return nil
	}
	r.TOS = id.opts.tos
	id.state, id.route = routeResolved, r
	id.ch.add(&Event{Type: RouteResolved, ID: id})
	return nil
}
