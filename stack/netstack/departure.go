package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// WatchDepartures implements stack.Departures, for links that are a link.Departures.
func (n *Interface) WatchDepartures(f func(netip.Addr)) { n.departed.Store(&f) }

// hasLeft is called by the link when the host with an Ethernet address has left. Nobody answers for its IP addresses any more:
// their connections end, and who watches is told.
func (n *Interface) hasLeft(mac [6]byte) {
	for a := range n.addrsAt(mac) {
		n.host.log.Debug("a host has left", "nic", n.Name(), "addr", a)
		var left []*stream
		n.host.tcp.streams.Range(func(_, s any) bool {
			if s := s.(*stream); s.way.to == a && s.way.from == n {
				left = append(left, s)
			}
			return true
		})
		if len(left) > 0 {
			time.AfterFunc(lastSegments, func() {
				for _, s := range left {
					s.peerHasLeft()
				}
			})
		}
		if f := n.departed.Load(); f != nil && *f != nil {
			(*f)(a)
		}
	}
}

// lastSegments is how long TCP has for what a host sent before it left, which may still be in its queues.
const lastSegments = 200 * time.Millisecond

// peerHasLeft has the connection time out soon, unless a host is at the peer's address again, which resets it, or the peer's end of
// the stream has come, which may still be unread. What has arrived can be read in any case; gVisor's Abort would drop it.
func (s *stream) peerHasLeft() {
	c := tcpConfig{userTimeout: lastSegments}
	switch tcp.EndpointState(s.ep.State()) {
	case tcp.StateEstablished, tcp.StateFinWait1, tcp.StateFinWait2:
		c.idle, c.interval, c.probes = lastSegments, lastSegments, 1
	}
	c.apply(s.ep)
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
