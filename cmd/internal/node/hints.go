package node

import (
	"log/slog"
	"net"
	"net/netip"
)

// warnKernelAddr warns of an address that this machine's kernel also has. The kernel answers for
// it, and packets of this machine to it never leave the machine.
func (f *Flags) warnKernelAddr(log *slog.Logger) {
	if !f.Link.ofKernel() || len(f.Addr) == 0 {
		return
	}
	ifces, err := net.Interfaces()
	if err != nil {
		return // nothing to compare with
	}
	for _, ifce := range ifces {
		addrs, err := ifce.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			own, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(own.IP)
			for _, given := range f.Addr {
				if given.Addr() == ip.Unmap() {
					log.Warn("--addr is this machine's own address, for which its kernel answers: the node is another host, so use "+
						"it another address of the network",
						"addr", given.Addr(), "interface", ifce.Name)
				}
			}
		}
	}
}

// HintWithoutAddr warns if a server has only a link-local address, which its clients cannot know.
func (f *Flags) HintWithoutAddr(n *Node) {
	if len(f.Addr) == 0 && f.Medium() != "pipe" && f.Medium() != "kernel" && f.Medium() != "shm" && f.Medium() != secureMedium {
		n.Log.Warn("without --addr the node has only a link-local address: for others to reach it, use an address of the network, such "+
			"as --addr 10.0.0.9/24",
			"addr", n.Host.NICs()[0].GIDs()[0])
	}
}
