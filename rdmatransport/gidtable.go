package rdmatransport

import (
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// maxAddrs is the number of an interface's addresses with GIDs.
const maxAddrs = roce.V1Index

// gidTblLen is the number of entries in a port's GID table. With RoCE v1 it is the range of the
// 8-bit sgid_index of an address vector; without, the second half of them would always be empty,
// and programs read them all.
func gidTblLen(nic stack.NIC) int {
	if nic.Frames() == nil {
		return maxAddrs
	}
	return 2 * maxAddrs
}

// GIDTable implements verbs.Provider. Each address has a RoCEv2 entry, with the same index as in
// Linux's rxe, which has no other entries, and a RoCE v1 entry 128 indices later. Hardware
// alternates the two, with v1 first. But commands that work with -g 1 on rxe should also work here.
// RoCE v1 needs Ethernet frames, which not every network stack supports.
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

// gids returns the addresses that fit the GID table; the zero Addr is an empty entry. A removed
// interface has none.
func gids(nic stack.NIC) []netip.Addr {
	if nic.State() == stack.LinkRemoved {
		return nil
	}
	addrs := nic.GIDs()
	return addrs[:min(len(addrs), maxAddrs)]
}
