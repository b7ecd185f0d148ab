package rtnetlink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Neighbour is what the kernel knows about the next hop to a host.
type Neighbour uint8

// The states of a next hop.
const (
	Unknown Neighbour = iota // no entry, or the search has failed: the next packet starts a search
	Sought                   // the kernel is asking for its link-layer address
	Known                    // packets are sent at once, or the route needs no such address
)

// Neighbour asks the kernel for the next hop of packets from src to dst. The interface index is
// only used if dst is link-local. The error wraps what the routing table says: ENETUNREACH without
// a route, EHOSTUNREACH, EACCES or EINVAL for a route of type unreachable, prohibit or blackhole.
// It wraps [errors.ErrUnsupported] if the kernel does not tell, as in a sandbox.
func (l *Listener) Neighbour(src, dst netip.Addr, index int) (Neighbour, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == nil {
		return Unknown, os.ErrClosed
	}
	options := &netlink.RouteGetOptions{SrcAddr: src.AsSlice()}
	if dst.IsLinkLocalUnicast() && dst.Is6() {
		options.OifIndex = index
	}
	routes, err := l.requests.RouteGetWithOptions(dst.AsSlice(), options)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES):
		return Unknown, fmt.Errorf("route from %v to %v: %w", src, dst, err)
	case err != nil || len(routes) == 0:
		return Unknown, fmt.Errorf("route from %v to %v: %w: %v", src, dst, errors.ErrUnsupported, err)
	}
	r := &routes[0]
	if refusal := map[int]error{unix.RTN_UNREACHABLE: unix.EHOSTUNREACH, unix.RTN_PROHIBIT: unix.EACCES,
		unix.RTN_BLACKHOLE: unix.EINVAL}[r.Type]; refusal != nil {
		return Unknown, fmt.Errorf("route from %v to %v: %w", src, dst, refusal)
	}
	if r.Type != unix.RTN_UNICAST {
		return Known, nil // this machine, or a group
	}
	next := dst
	if via, ok := r.Via.(*netlink.Via); ok {
		next, _ = netip.AddrFromSlice(via.Addr)
	} else if len(r.Gw) > 0 {
		next, _ = netip.AddrFromSlice(r.Gw)
	}
	return l.neighbour(r.LinkIndex, next.Unmap())
}

// Through returns the index of the interface that packets from src to dst leave through, with a
// mark of their socket (SO_MARK) or 0. It is 0 if there is no such route. For IPv4 it is also 0 if
// src is no address of this machine; for IPv6 the kernel does not look: see Home. The error wraps
// [errors.ErrUnsupported] if the kernel does not tell.
func (l *Listener) Through(src, dst netip.Addr, mark uint32) (index int, err error) {
	r, err := l.route(dst, &netlink.RouteGetOptions{SrcAddr: src.AsSlice(), Mark: mark})
	return r.LinkIndex, err
}

// Home returns the index of the interface that has an address, or 0 if addr is no address of this
// machine, or one of IPv6 that is not yet known to be unique. The error is like that of Through.
func (l *Listener) Home(addr netip.Addr) (index int, err error) {
	r, err := l.route(addr, &netlink.RouteGetOptions{FIBMatch: true})
	if r.Type != unix.RTN_LOCAL {
		return 0, err
	}
	return r.LinkIndex, err
}

// route returns a route, or the zero Route if there is none.
func (l *Listener) route(to netip.Addr, options *netlink.RouteGetOptions) (netlink.Route, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == nil {
		return netlink.Route{}, os.ErrClosed
	}
	routes, err := l.requests.RouteGetWithOptions(to.AsSlice(), options)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return netlink.Route{}, fmt.Errorf("route to %v: %w: %v", to, errors.ErrUnsupported, err)
	case err != nil || len(routes) == 0:
		return netlink.Route{}, nil
	}
	return routes[0], nil
}

// neighbour looks for the entry of a next hop. l.mu is held.
func (l *Listener) neighbour(index int, next netip.Addr) (Neighbour, error) {
	const valid = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
	family := uint8(unix.AF_INET)
	if next.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: family, Index: uint32(index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, next.AsSlice()))
	found, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case err == nil && len(found) > 0 && len(found[0]) >= unix.SizeofNdMsg:
		switch state := found[0][8] | found[0][9]; { // ndm_state, 16 bits; all states are in the lower eight
		case state&valid != 0:
			return Known, nil
		case state&unix.NUD_INCOMPLETE != 0:
			return Sought, nil
		}
	case !errors.Is(err, unix.ENOENT):
		return Unknown, fmt.Errorf("neighbour %v: %w: %v", next, errors.ErrUnsupported, err)
	}
	// An interface without addresses of its link layer has no entries by the host's address.
	at, err := l.requests.LinkByIndex(index)
	if err == nil && at.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK|unix.IFF_POINTOPOINT) != 0 {
		return Known, nil
	}
	return Unknown, nil
}
