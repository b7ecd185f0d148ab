//go:build !linux

package kernel

import (
	"context"
	"net/netip"
)

// awaitNeighbour does not wait: the kernel resolves the neighbour when the first packet is sent,
// and queues packets meanwhile.
func (n *nic) awaitNeighbour(context.Context, netip.Addr, netip.Addr) error { return nil }
