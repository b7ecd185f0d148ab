package node

import (
	"net/netip"
	"slices"
)

// OnMachinesStack reports whether the node uses the machine's own sockets and addresses.
func (n *Node) OnMachinesStack() bool { return n.medium == "kernel" }

// OnlyNodesReach reports whether an address belongs to a link between programs, which the machine's
// own stack cannot reach.
func (n *Node) OnlyNodesReach(a netip.Addr) bool {
	return slices.Contains([]string{"pipe", "shm", "stream", secureMedium}, n.medium) &&
		slices.ContainsFunc(n.networks, func(p netip.Prefix) bool { return p.Contains(a) })
}
