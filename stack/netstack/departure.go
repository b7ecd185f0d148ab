package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// WatchDepartures implements stack.Departures, for links that are a link.Departures.
func (n *Interface) WatchDepartures(f func(netip.Addr)) { n.departed.Store(&f) }

// hasLeft is called by the link when the host with an Ethernet address has left. Nobody answers for its IP addresses any more:
// their connections are reset, and who watches is told.
func (n *Interface) hasLeft(mac [6]byte) {
	for a := range n.addrsAt(mac) {
		n.host.log.Debug("a host has left", "nic", n.Name(), "addr", a)
		n.host.tcp.streams.Range(func(_, s any) bool {
			if s := s.(*stream); s.way.to == a && s.way.from == n {
				s.ep.Abort()
			}
			return true
		})
		if f := n.departed.Load(); f != nil && *f != nil {
			(*f)(a)
		}
	}
}

// addrsAt are the addresses of the neighbour with an Ethernet address, as far as they are known.
func (n *Interface) addrsAt(mac [6]byte) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for _, proto := range []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber} {
		entries, err := n.host.stack.Neighbors(n.id, proto)
		if err != nil {
			continue // the host is closed
		}
		for _, e := range entries {
			if string(e.LinkAddr) == string(mac[:]) {
				addrs[addrOf(e.Addr)] = true
			}
		}
	}
	n.neighMu.Lock()
	defer n.neighMu.Unlock()
	for _, nb := range n.neighbours { // gVisor may have forgotten those
		if nb.mac.Load() == macNumber(mac[:]) {
			addrs[nb.key.next] = true
		}
	}
	return addrs
}
