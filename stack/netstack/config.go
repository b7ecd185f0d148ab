package netstack

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Config configures a [Host]. The zero Config is a host with its IPv6 link-local address only.
type Config struct {
	// Addrs are the addresses of the first NIC with their prefix lengths, for example "10.0.0.1/24"
	// or "2001:db8::1/64". The IPv6 link-local address made from the MAC always exists.
	Addrs []string
	// Gateways are the routers for destinations outside the first NIC's networks, at most one for
	// each IP version.
	Gateways []string
	// NICs are further interfaces.
	NICs []NICConfig
	// TCP configures the TCP connections.
	TCP TCPConfig
	// Logger is the log; nil discards it.
	Logger *slog.Logger
}

// NICConfig has the options of an interface of a host besides the first one.
type NICConfig struct {
	Link     link.Link
	Addrs    []string // as Config.Addrs
	Gateways []string // as Config.Gateways
}

type nicConfig struct {
	link     link.Link
	addrs    []netip.Prefix
	gateways []netip.Addr
}

// config is a Config that has been checked.
type config struct {
	nics []*nicConfig
	log  *slog.Logger
	tcp  TCPConfig

	clock clock.Clock // of all links
}

// check returns the configuration of a host whose first NIC is on l. Even with an error, the result
// has the links of all NICs.
func (cfg *Config) check(l link.Link) (*config, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	c := &config{log: cfg.Logger, tcp: cfg.TCP}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, n := range slices.Concat([]NICConfig{{Link: l}}, cfg.NICs) {
		c.nics = append(c.nics, &nicConfig{link: n.Link})
	}
	if err := c.nics[0].set("", cfg.Addrs, cfg.Gateways); err != nil {
		return c, err
	}
	c.clock = link.ClockOf(l)
	for i, n := range cfg.NICs {
		if err := c.nics[i+1].set(fmt.Sprintf("NICs[%d].", i), n.Addrs, n.Gateways); err != nil {
			return c, err
		}
		if link.ClockOf(n.Link) != c.clock {
			return c, fmt.Errorf("NICs[%d].Link %s: its clock is not that of the first link, %s", i, n.Link.Name(), l.Name())
		}
	}
	return c, c.tcp.check()
}

// set checks the settings of a NIC, whose fields' names begin with field.
func (c *nicConfig) set(field string, addrs, gateways []string) error {
	if c.link == nil {
		return fmt.Errorf("%sLink is nil: must be a link.Link, such as a *pipe.Port", field)
	}
	if mac := c.link.MAC(); len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("%sLink %s: it has the MAC address %q: want six bytes, not a group address", field, c.link.Name(), mac)
	}
	for i, s := range addrs {
		p, err := parseCIDR(s)
		if err != nil {
			return fmt.Errorf("%sAddrs[%d] %q: %w", field, i, s, err)
		}
		c.addrs = append(c.addrs, p)
	}
	for i, s := range gateways {
		a, err := netip.ParseAddr(s)
		if err != nil || !isHostAddr(a) || a.IsLoopback() {
			return fmt.Errorf("%sGateways[%d] %q: want the IP address of a router, such as 10.0.0.254", field, i, s)
		}
		a = a.Unmap().WithZone("")
		for _, g := range c.gateways {
			if g.Is4() == a.Is4() {
				return fmt.Errorf("%sGateways[%d] %q: %v is the gateway already; only one is allowed for each of IPv4 and IPv6", field, i,
					s, g)
			}
		}
		c.gateways = append(c.gateways, a)
	}
	return nil
}

func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, errors.New("want an IP address with its prefix length, such as 10.0.0.1/24 or 2001:db8::1/64")
	}
	a := p.Addr()
	switch {
	case a.Is4In6():
		return p, fmt.Errorf("write an IPv4 address as IPv4: %v", a.Unmap())
	case !isHostAddr(a) || a.IsLoopback():
		return p, errors.New("want the address of a host, not an unspecified, loopback, multicast or broadcast one")
	case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == lastAddr(p)):
		return p, fmt.Errorf("%v is a network or broadcast address: want a host", a)
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
