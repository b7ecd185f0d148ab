package netstack

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/softrnic/softrnic/stack"
)

// ListenPacket opens a UDP socket. An unspecified address means all of the host's addresses, and ::
// includes IPv4. For port 0 the host chooses. Errors wrap EADDRINUSE or EADDRNOTAVAIL. UDP port
// 4791 is reserved for RoCE.
func (h *Host) ListenPacket(laddr netip.AddrPort) (net.PacketConn, error) {
	laddr = unmapPort(laddr)
	if !laddr.Addr().IsValid() {
		laddr = netip.AddrPortFrom(netip.IPv6Unspecified(), laddr.Port())
	}
	if laddr.Port() == stack.RoCEPort {
		return nil, fmt.Errorf("listen udp %v: port %d is RoCE's: %w", laddr, stack.RoCEPort, syscall.EADDRINUSE)
	}
	if err := h.checkLocal(laddr.Addr()); err != nil {
		return nil, fmt.Errorf("listen udp %v: %w", laddr, err)
	}
	local, proto := h.fullAddress(laddr)
	if laddr.Addr().IsUnspecified() {
		local = tcpip.FullAddress{Port: laddr.Port()}
	}
	c, err := gonet.DialUDP(h.stack, &local, nil, proto)
	if err != nil {
		return nil, fmt.Errorf("listen udp %v: %w", laddr, withErrno(err))
	}
	return c, nil
}
