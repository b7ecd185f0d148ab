//go:build !linux

package kernel

import (
	"net"
	"net/netip"
)

// defaultInterfaces returns the names of the interfaces from which the kernel would send to
// documentation addresses (RFC 5737, RFC 3849). Nothing is sent.
func defaultInterfaces() (names []string) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, to := range []string{"203.0.113.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		for i := range all {
			have, err := prefixesOf(&all[i])
			if err == nil && owns(have, from.WithZone("")) != (netip.Prefix{}) {
				names = append(names, all[i].Name)
			}
		}
	}
	return names
}
