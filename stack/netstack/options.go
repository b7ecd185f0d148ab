package netstack

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/softrnic/softrnic/link"
)

// Option configures a [Host]. Addr and Gateway apply to the NIC of New's link, or to the enclosing
// AddNIC option's.
type Option func(*config) error

type config struct {
	nics []*nicConfig
	cur  *nicConfig // the NIC for Addr and Gateway
	log  *slog.Logger
	tcp  tcpConfig
}

type nicConfig struct {
	link     link.Link
	addrs    []netip.Prefix
	gateways []netip.Addr
}

// Addr gives the NIC an address with its prefix length, for example "10.0.0.1/24" or
// "2001:db8::1/64". It may be repeated. The IPv6 link-local address made from the MAC always
// exists.
func Addr(cidr string) Option {
	return func(c *config) error {
		p, err := parseCIDR(cidr)
		if err != nil {
			return err
		}
		c.cur.addrs = append(c.cur.addrs, p)
		return nil
	}
}

// Gateway sets the router for destinations outside the NIC's networks, one for each IP version.
func Gateway(ip string) Option {
	return func(c *config) error {
		a, err := netip.ParseAddr(ip)
		if err != nil || !isHostAddr(a) || a.IsLoopback() {
			return fmt.Errorf("gateway %q: want the IP address of a router, such as 10.0.0.254", ip)
		}
		a = a.Unmap().WithZone("")
		for _, g := range c.cur.gateways {
			if g.Is4() == a.Is4() {
				return fmt.Errorf("gateway %v: %v is the gateway already; only one is allowed for each of IPv4 and IPv6", a, g)
			}
		}
		c.cur.gateways = append(c.cur.gateways, a)
		return nil
	}
}

// AddNIC adds an interface on l, with its own Addr and Gateway options.
func AddNIC(l link.Link, opts ...Option) Option {
	return func(c *config) error {
		outer := c.cur
		defer func() { c.cur = outer }()
		return c.addNIC(l, opts)
	}
}

// Logger sets the log; the default discards.
func Logger(log *slog.Logger) Option {
	return func(c *config) error {
		if log != nil {
			c.log = log
		}
		return nil
	}
}

func (c *config) addNIC(l link.Link, opts []Option) error {
	if l == nil {
		return fmt.Errorf("NIC %d: the link is nil", len(c.nics))
	}
	c.cur = &nicConfig{link: l}
	c.nics = append(c.nics, c.cur)
	if mac := l.MAC(); len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("NIC %d: %s has MAC address %q; want six bytes, not a group address", len(c.nics)-1, l.Name(), mac)
	}
	for _, o := range opts {
		if err := o(c); err != nil {
			return err
		}
	}
	return nil
}

func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("address %q: want an IP address with its prefix length, such as 10.0.0.1/24 or 2001:db8::1/64", s)
	}
	a := p.Addr()
	switch {
	case a.Is4In6():
		return p, fmt.Errorf("address %q: write an IPv4 address as IPv4: %v", s, a.Unmap())
	case !isHostAddr(a) || a.IsLoopback():
		return p, fmt.Errorf("address %q: want the address of a host, not an unspecified, loopback, multicast or broadcast one", s)
	case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == lastAddr(p)):
		return p, fmt.Errorf("address %q: %v is a network or broadcast address: want a host", s, a)
	}
	return p, nil
}

// isHostAddr reports whether a can be the address of one host.
func isHostAddr(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != broadcast4
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// lastAddr returns the broadcast address of an IPv4 network.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}
