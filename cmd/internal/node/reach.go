package node

import (
	"net/netip"
	"slices"
)

// OnMachinesStack reports whether the node uses the machine's own sockets and addresses.
func (n *Node) OnMachinesStack() bool { return n.medium == "kernel" }

// OnlyNodesReach reports whether an address is of a network that the machine's own stack is not on: that of a link between programs.
func (n *Node) OnlyNodesReach(a netip.Addr) bool {
	return slices.Contains([]string{"pipe", "shm", "stream"}, n.medium) &&
		slices.ContainsFunc(n.networks, func(p netip.Prefix) bool { return p.Contains(a) })
}
