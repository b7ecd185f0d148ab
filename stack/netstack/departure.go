package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// WatchDepartures implements stack.Departures, for links that implement link.Departures.
func (n *Interface) WatchDepartures(f func(netip.Addr)) { n.departed.Store(&f) }

// hostLeft is called by the link when the host with an Ethernet address has left. It ends
// connections with the host's IP addresses, and calls the watching function.
func (n *Interface) hostLeft(mac [6]byte) {
	for a := range n.addrsAt(mac) {
		n.host.log.Debug("a host has left", "nic", n.Name(), "addr", a)
		var left []*stream
		n.host.tcp.streams.Range(func(_, s any) bool {
			if s := s.(*stream); s.localRoute.to == a && s.localRoute.from == n {
				left = append(left, s)
			}
			return true
		})
		if len(left) > 0 {
			n.host.clock.AfterFunc(lastSegments, func() {
				for _, s := range left {
					s.peerLeft()
				}
			})
		}
		if f := n.departed.Load(); f != nil && *f != nil {
			(*f)(a)
		}
	}
}

// lastSegments is the time for TCP to process the segments of the departed host that may still be
// queued.
const lastSegments = 200 * time.Millisecond

// peerLeft makes the connection time out soon. Two connections end otherwise: another host with the
// peer's address may reset it, or the peer's FIN has arrived, possibly unread. Received data can
// still be read; gVisor's Abort would drop it.
func (s *stream) peerLeft() {
	c := TCPConfig{UserTimeout: lastSegments}
	switch tcp.EndpointState(s.ep.State()) {
	case tcp.StateEstablished, tcp.StateFinWait1, tcp.StateFinWait2:
		c.KeepAliveIdle, c.KeepAliveInterval, c.KeepAliveCount = lastSegments, lastSegments, 1
	}
	c.apply(s.ep)
}

// addrsAt returns the known addresses of the neighbour with an Ethernet address.
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
	for _, nb := range n.neighbours { // gVisor may have forgotten these
		if nb.mac.Load() == macNumber(mac[:]) {
			addrs[nb.key.next] = true
		}
	}
	return addrs
}
