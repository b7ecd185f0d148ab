package node

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/shm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// shmNetwork is the network of default addresses on a shared memory segment. A node without --addr
// gets the first free one.
var shmNetwork = netip.MustParsePrefix("10.83.0.0/24")

// shmHosts is the number of addresses in shmNetwork.
const shmHosts = 254

// shmAddr returns address i of shmNetwork, from 0 on.
func shmAddr(i int) netip.Addr {
	a := shmNetwork.Addr().As4()
	a[3] = byte(i + 1)
	return netip.AddrFrom4(a)
}

// openShm joins a segment and claims the node's addresses there, so that no two nodes have the same
// address.
func (f *Flags) openShm(e *cli.Env, n *Node, mac net.HardwareAddr) (link.Link, error) {
	cfg := &shm.Config{Logger: n.Log}
	for _, a := range f.Addr {
		cfg.Claims = append(cfg.Claims, a.Addr().String())
	}
	if len(f.Addr) == 0 {
		mac = nil // Pick has it
		cfg.Pick = func(i int) (string, net.HardwareAddr, bool) {
			if i >= shmHosts {
				return "", nil, false
			}
			a := shmAddr(i)
			if f.MAC != nil {
				return a.String(), net.HardwareAddr(f.MAC), true
			}
			return a.String(), macFor(a), true
		}
	}
	l, err := f.Link.openShm(mac, f.MTU, cfg)
	if err != nil {
		return nil, err
	}
	n.Segment = l
	if len(f.Addr) == 0 {
		n.chosen = netip.PrefixFrom(shmAddr(l.Picked()), shmNetwork.Bits())
		fmt.Fprintf(e.Stderr, "The address of this node is %v.\n", n.chosen.Addr())
	}
	return l, nil
}
