package stack

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Source implements NIC. It is the address of the smallest network that has dst, or has the gateway to it.
func (n *Interface) Source(dst netip.Addr) (src netip.Addr, direct bool, err error) {
	dst = dst.Unmap().WithZone("")
	if !isHostAddr(dst) || dst.IsLoopback() {
		return src, false, fmt.Errorf("route to %v: want the address of a host: %w", dst, syscall.EINVAL)
	}
	if n.has(dst) {
		return dst, true, nil
	}
	n.host.mu.Lock()
	defer n.host.mu.Unlock()
	if src := n.inNetwork(dst); src.IsValid() {
		return src, true, nil
	}
	for _, gw := range n.gateways {
		if gw.Is4() != dst.Is4() {
			continue
		}
		src := n.inNetwork(gw)
		if src.IsLinkLocalUnicast() {
			src = n.global(dst.Is4(), src)
		}
		if src.IsValid() {
			return src, false, nil
		}
	}
	return src, false, n.noRoute(dst)
}

// noRoute is the error of having no way to dst. host.mu is held.
func (n *Interface) noRoute(dst netip.Addr) error {
	return fmt.Errorf("no route to %v from %s (%s): give it a gateway or an address of that network: %w",
		dst, n.Name(), n.networks(dst.Is4()), syscall.ENETUNREACH)
}

// inNetwork is the address whose network has a; the smallest, if several do. host.mu is held.
func (n *Interface) inNetwork(a netip.Addr) (src netip.Addr) {
	bits := -1
	for _, p := range n.prefixes {
		if p.Contains(a) && p.Bits() > bits {
			src, bits = p.Addr(), p.Bits()
		}
	}
	return src
}

// global is the first address that is good beyond the link, else otherwise. host.mu is held.
func (n *Interface) global(v4 bool, otherwise netip.Addr) netip.Addr {
	for _, p := range n.prefixes {
		if p.Addr().Is4() == v4 && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return otherwise
}

// Resolve implements NIC.
func (n *Interface) Resolve(ctx context.Context, src, dst netip.Addr) error {
	p, err := n.port.Path(PathAttr{Src: src, Dst: dst})
	if err != nil {
		return err
	}
	defer p.Close()
	if nb := p.(*path).nb; nb != nil {
		return nb.wait(ctx)
	}
	return nil
}

// Join implements NIC.
func (n *Interface) Join(group netip.Addr) error {
	return n.member("join", n.host.stack.JoinGroup, group)
}

// Leave implements NIC.
func (n *Interface) Leave(group netip.Addr) error {
	return n.member("leave", n.host.stack.LeaveGroup, group)
}

func (n *Interface) member(what string, change func(tcpip.NetworkProtocolNumber, tcpip.NICID, tcpip.Address) tcpip.Error,
	group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() {
		return fmt.Errorf("%s %v: want a multicast address", what, group)
	}
	if err := change(protocolOf(group), n.id, tcpipAddr(group)); err != nil {
		return fmt.Errorf("%s %v on %s: %w", what, group, n.Name(), stackError(err))
	}
	return nil
}
