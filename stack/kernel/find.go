package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// Reasons for choosing an interface.
const (
	whyNamed     = "named"
	whyDefault   = "of the default route"
	whyGlobal    = "the first with a global address; no default route uses one with a global address"
	whyLinkLocal = "the first with an address; no interface has a global one"
	whyLoopback  = "the loopback; no other interface is up with an address"
)

// candidate is an interface that is up and has addresses.
type candidate struct {
	iface *net.Interface
	have  []netip.Prefix
	why   string // reason for choosing it
}

// ranks are the reasons for choosing an interface, the best first.
var ranks = []string{whyDefault, whyGlobal, whyLinkLocal, whyLoopback}

// find returns the interface, the addresses of the host, and the reason for choosing the interface.
func (c *config) find() (iface *net.Interface, chosen []netip.Prefix, why string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, nil, "", err
	}
	var machine []netip.Prefix
	for i := range all {
		iface := &all[i]
		have, err := prefixesOf(iface)
		if err != nil {
			return nil, nil, "", fmt.Errorf("%s: %w", iface.Name, err)
		}
		machine = append(machine, have...)
		switch {
		case c.name == iface.Name:
			chosen, err := c.choose(have)
			if err != nil {
				return nil, nil, "", fmt.Errorf("%s: %w", iface.Name, err)
			}
			return iface, chosen, whyNamed, nil
		case c.name == "" && len(c.addrs) > 0 && owns(have, c.addrs[0]).IsValid():
			chosen, err := c.choose(have)
			if err != nil {
				return nil, nil, "", fmt.Errorf("%s, which has %v: %w", iface.Name, c.addrs[0], err)
			}
			return iface, chosen, fmt.Sprintf("it has %v", c.addrs[0]), nil
		}
	}
	switch {
	case c.name != "":
		return nil, nil, "", fmt.Errorf("there is no interface %s: %w", c.name, syscall.ENODEV)
	case len(c.addrs) > 0:
		return nil, nil, "", fmt.Errorf("%v is not an address of this machine, which has %v: %w",
			c.addrs[0], machine, syscall.EADDRNOTAVAIL)
	}
	ranked := rank(all, prefixesOf, defaultInterfaces())
	if len(ranked) == 0 {
		return nil, nil, "", fmt.Errorf("no interface is up and has an address: %w", syscall.ENODEV)
	}
	return ranked[0].iface, ranked[0].have, ranked[0].why, nil
}

// rank returns the interfaces that are up and have an address, the best first. defaults are the
// names of the interfaces of default routes, the best route first.
func rank(all []net.Interface, prefixes func(*net.Interface) ([]netip.Prefix, error), defaults []string) (ranked []candidate) {
	for i := range all {
		iface := &all[i]
		have, err := prefixes(iface)
		if err != nil || iface.Flags&net.FlagUp == 0 || len(have) == 0 {
			continue
		}
		global := slices.ContainsFunc(have, func(p netip.Prefix) bool {
			return !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsLoopback()
		})
		why := whyLinkLocal
		switch {
		case iface.Flags&net.FlagLoopback != 0:
			why = whyLoopback
		case global && slices.Contains(defaults, iface.Name):
			why = whyDefault
		case global:
			why = whyGlobal
		}
		ranked = append(ranked, candidate{iface, have, why})
	}
	slices.SortStableFunc(ranked, func(a, b candidate) int {
		if a.why == whyDefault && b.why == whyDefault {
			return slices.Index(defaults, a.iface.Name) - slices.Index(defaults, b.iface.Name)
		}
		return slices.Index(ranks, a.why) - slices.Index(ranks, b.why)
	})
	return ranked
}

// Interfaces returns the names of the interfaces that hosts can use: those that are up and have a
// global address. If there are none, it returns the interface that New would choose. New's choice
// comes first.
func Interfaces() (names []string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	for i, c := range rank(all, prefixesOf, defaultInterfaces()) {
		if i == 0 || c.why == whyDefault || c.why == whyGlobal {
			names = append(names, c.iface.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("kernel: no interface is up and has an address: %w", syscall.ENODEV)
	}
	return names, nil
}
