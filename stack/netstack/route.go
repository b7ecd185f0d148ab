package netstack

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// Source implements NIC. It returns the address in the smallest network that contains dst, or the
// gateway to dst. For a group it returns the first address that is not link-local. If there is
// none, or if an IPv6 group is link-local, it returns the link-local IPv6 address.
func (n *Interface) Source(dst netip.Addr) (src netip.Addr, direct bool, err error) {
	dst = dst.Unmap().WithZone("")
	if !isHostAddr(dst) && !dst.IsMulticast() || dst.IsLoopback() {
		return src, false, fmt.Errorf("route to %v: want the address of a host or a group: %w", dst, syscall.EINVAL)
	}
	if n.has(dst) {
		return dst, true, nil
	}
	n.host.mu.Lock()
	defer n.host.mu.Unlock()
	if dst.IsMulticast() {
		if !dst.Is4() {
			src = n.prefixes[0].Addr() // the link-local address
		}
		if !dst.IsLinkLocalMulticast() || dst.Is4() {
			src = n.global(dst.Is4(), src)
		}
		if src.IsValid() {
			return src, true, nil
		}
		return src, false, n.noRoute(dst)
	}
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

// noRoute returns the error for a destination without a route. host.mu is held.
func (n *Interface) noRoute(dst netip.Addr) error {
	return fmt.Errorf("no route to %v from %s (%s): add a gateway or an address of that network: %w",
		dst, n.Name(), n.networks(dst.Is4()), syscall.ENETUNREACH)
}

// inNetwork returns the interface's address in the network of a. If there are several networks, it
// is that of the smallest. host.mu is held.
func (n *Interface) inNetwork(a netip.Addr) (src netip.Addr) {
	bits := -1
	for _, p := range n.prefixes {
		if p.Contains(a) && p.Bits() > bits {
			src, bits = p.Addr(), p.Bits()
		}
	}
	return src
}

// global returns the first address that is not link-local, or the parameter otherwise if there is
// none. host.mu is held.
func (n *Interface) global(v4 bool, otherwise netip.Addr) netip.Addr {
	for _, p := range n.prefixes {
		if p.IsValid() && p.Addr().Is4() == v4 && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return otherwise
}

// Resolve implements NIC.
func (n *Interface) Resolve(ctx context.Context, src, dst netip.Addr) error {
	p, err := n.port.Path(stack.PathAttr{Src: src, Dst: dst})
	if err != nil {
		return err
	}
	defer p.Close()
	if nb := p.(*path).nb; nb != nil {
		return nb.wait(ctx)
	}
	return nil
}
