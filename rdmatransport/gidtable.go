package rdmatransport

import (
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// maxAddrs is how many addresses of an interface have GIDs.
const maxAddrs = roce.V1Index

// gidTable is the number of entries in a port's GID table: what the 8 bits of an address vector's
// sgid_index can name. Half of them are RoCE v1's.
const gidTable = 2 * maxAddrs

// GIDTable implements verbs.Provider. Each address is there for RoCEv2, at the index that it has
// with Linux's rxe, which has no other, and for RoCE v1 128 indices on. Hardware has the two side
// by side, v1 first; but what works with -g 1 next to rxe should here. RoCE v1 is Ethernet frames,
// which not every network stack has.
func (p *provider) GIDTable(port uint8) ([]verbs.GIDEntry, error) {
	nic, err := p.nic(port)
	if err != nil {
		return nil, err
	}
	addrs := gids(nic)
	table := make([]verbs.GIDEntry, 0, 2*len(addrs))
	for _, k := range [...]struct {
		first int
		t     verbs.GIDType
	}{{0, verbs.GIDTypeRoCEv2}, {roce.V1Index, verbs.GIDTypeRoCEv1}} {
		for i, a := range addrs {
			if a.IsValid() && (k.t != verbs.GIDTypeRoCEv1 || nic.Frames() != nil) {
				table = append(table, verbs.GIDEntry{
					GID: verbs.GIDFromAddr(a), Index: k.first + i, PortNum: port, Type: k.t, NetDev: nic.Name(),
				})
			}
		}
	}
	return table, nil
}

// gids are the addresses that the GID table has room for; the zero Addr is a hole. An interface
// that was removed has none.
func gids(nic stack.NIC) []netip.Addr {
	if nic.State() == stack.LinkRemoved {
		return nil
	}
	addrs := nic.GIDs()
	return addrs[:min(len(addrs), maxAddrs)]
}
