package iwarptransport

// In-process path: the two ends of a connection find each other.

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/stack"
)

// endpoints holds connections of this process that have a QP. Their peer is not known yet, and may
// be in this process.
var endpoints = struct {
	mu       sync.Mutex // innermost lock
	unpaired map[endpoint]*conn
}{unpaired: map[endpoint]*conn{}}

// pair connects the two ends of a connection if both are in this process.
func (c *conn) pair() {
	far := c.stream.LocalNIC()
	nics := c.e.net.NICs()
	if far == nil || c.port < 1 || int(c.port) > len(nics) {
		return
	}
	here := endpoint{nics[c.port-1], addrPort(c.stream.LocalAddr()), addrPort(c.stream.RemoteAddr())}
	there := endpoint{far, here.remote, here.local}
	endpoints.mu.Lock()
	defer endpoints.mu.Unlock()
	other := endpoints.unpaired[there]
	if other == nil {
		c.unpaired = &here
		endpoints.unpaired[here] = c
		return
	}
	delete(endpoints.unpaired, there)
	other.unpaired = nil
	c.peerConn.Store(other)
	other.peerConn.Store(c)
}

// unpair reverts pair.
func (c *conn) unpair() {
	endpoints.mu.Lock()
	if c.unpaired != nil && endpoints.unpaired[*c.unpaired] == c {
		delete(endpoints.unpaired, *c.unpaired)
	}
	c.unpaired = nil
	endpoints.mu.Unlock()
	if other := c.peerConn.Swap(nil); other != nil {
		other.peerConn.CompareAndSwap(c, nil)
	}
}

// endpoint is one end of a TCP connection. nic is the NIC that has the local address.
type endpoint struct {
	nic           stack.NIC
	local, remote netip.AddrPort
}
