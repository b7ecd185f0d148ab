package wireguard

import (
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/link"
)

// tunnelMTU returns the MTU of a tunnel to some endpoints: DefaultMTU, or less if packets to one of
// them leave through an interface with an MTU of less than 1500.
func tunnelMTU(endpoints []netip.AddrPort) int {
	mtu := DefaultMTU
	for _, e := range endpoints {
		outer := interfaceMTU(e)
		if outer == 0 {
			continue
		}
		overhead := overhead6
		if e.Addr().Is4() {
			overhead = overhead4
		}
		mtu = min(mtu, outer-overhead)
	}
	return max(mtu, link.MinMTU)
}

// interfaceMTU returns the MTU of the interface through which packets to an address leave, or 0 if
// it is not known. It sends nothing.
func interfaceMTU(to netip.AddrPort) int {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return 0 // there is no route at present
	}
	defer func() { _ = c.Close() }()
	own := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for i := range interfaces {
		addrs, err := interfaces[i].Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == own {
					return interfaces[i].MTU
				}
			}
		}
	}
	return 0
}
