package nvme

import (
	"net/netip"
	"strconv"
)

// portText returns the port of an address as the TRSVCID of a discovery entry.
func portText(a netip.AddrPort) string { return strconv.Itoa(int(a.Port())) }

// parseAddr returns the address of a TRADDR and a TRSVCID, or an invalid one.
func parseAddr(addr, port string) netip.AddrPort {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.AddrPort{}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(n))
}
