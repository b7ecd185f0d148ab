package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/link/rtnetlink"
)

// The kernel is asked for a neighbour after firstLook, then after increasing intervals.
const (
	firstLook = 100 * time.Microsecond
	lastLook  = 50 * time.Millisecond
)

// awaitNeighbour waits until the kernel knows the next hop from src to dst. A kernel that does not
// tell, as in a sandbox, or that sends no probe is not waited for.
func (n *nic) awaitNeighbour(ctx context.Context, src, dst netip.Addr) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		state, err := n.watch.kernel.Neighbour(src, dst, n.index)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return nil
		case err != nil:
			return err
		case state == rtnetlink.Known:
			return nil
		case state == rtnetlink.Unknown && n.seek(src, dst) != nil:
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%v does not answer: %w", dst, context.Cause(ctx))
		}
	}
}

// discardPort is that of the discard service (RFC 863), to which probes go. A datagram to the port
// of RoCE would count as malformed there.
const discardPort = 9

// seek makes the kernel search for the next hop to dst, by a datagram that needs it.
func (n *nic) seek(src, dst netip.Addr) error {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(n.zoned(netip.AddrPortFrom(src, 0))),
		net.UDPAddrFromAddrPort(n.zoned(netip.AddrPortFrom(dst, discardPort))))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte{0})
	return err
}
