package wireguard

import (
	"fmt"
	"net/netip"
	"slices"
)

// routes is WireGuard's cryptokey routing: the peer of each address. It never changes.
type routes struct {
	peers        map[netip.Prefix]*peer
	bits4, bits6 []int // prefix lengths in use, the longest first
}

var everything = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// allowed returns the addresses of a peer.
func (c *Config) allowed(p *PeerConfig) []netip.Prefix {
	list := []netip.Prefix{netip.PrefixFrom(p.PublicKey.Addr(), 128), netip.PrefixFrom(p.PublicKey.LinkLocal(), 128)}
	for _, a := range p.AllowedIPs {
		list = append(list, a.Masked())
	}
	if len(c.Peers) == 1 && len(p.AllowedIPs) == 0 {
		list = append(list, everything...)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// newRoutes returns an error if two peers have the same addresses.
func newRoutes(peers []*peer) (*routes, error) {
	r := &routes{peers: map[netip.Prefix]*peer{}}
	for _, p := range peers {
		for _, a := range p.allowed {
			if other := r.peers[a]; other != nil {
				return nil, fmt.Errorf("%s and %s have both %v: an address belongs to one peer", other.title(), p.title(), a)
			}
			r.peers[a] = p
			bits := &r.bits6
			if a.Addr().Is4() {
				bits = &r.bits4
			}
			if !slices.Contains(*bits, a.Bits()) {
				*bits = append(*bits, a.Bits())
			}
		}
	}
	for _, bits := range [][]int{r.bits4, r.bits6} {
		slices.SortFunc(bits, func(a, b int) int { return b - a })
	}
	return r, nil
}

// find returns the peer with an address, or nil.
func (r *routes) find(a netip.Addr) *peer {
	bits := r.bits6
	if a.Is4() {
		bits = r.bits4
	}
	for _, n := range bits {
		p, err := a.Prefix(n)
		if err != nil {
			return nil
		}
		if found := r.peers[p]; found != nil {
			return found
		}
	}
	return nil
}
