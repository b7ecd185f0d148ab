package netstack

import (
	"fmt"
	"maps"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/softrnic/softrnic/link"
)

// Join implements NIC.
func (n *Interface) Join(group netip.Addr) error {
	return n.member("join", n.host.stack.JoinGroup, group, 1)
}

// Leave implements NIC.
func (n *Interface) Leave(group netip.Addr) error {
	return n.member("leave", n.host.stack.LeaveGroup, group, -1)
}

func (n *Interface) member(what string, change func(tcpip.NetworkProtocolNumber, tcpip.NICID, tcpip.Address) tcpip.Error,
	group netip.Addr, by int) error {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() {
		return fmt.Errorf("%s %v: want a multicast address", what, group)
	}
	n.groupMu.Lock()
	defer n.groupMu.Unlock()
	if err := change(protocolOf(group), n.id, tcpipAddr(group)); err != nil {
		return fmt.Errorf("%s %v on %s: %w", what, group, n.Name(), stackError(err))
	}
	groups := maps.Clone(*n.groups.Load())
	if groups[group] += by; groups[group] == 0 {
		delete(groups, group)
	}
	n.groups.Store(&groups)
	return nil
}

// joined reports whether the interface is in a group.
func (n *Interface) joined(group netip.Addr) bool { return (*n.groups.Load())[group] > 0 }

// groupLink is the destination of a group's datagrams: the interface's link, and the interface
// itself while it is a member.
type groupLink struct {
	link.Link
	nic   *Interface
	group netip.Addr
}

// Write implements link.Link. The host's own copy may be lost like any other.
func (l *groupLink) Write(frames []link.Frame) (int, error) {
	if l.nic.joined(l.group) {
		if loop, err := l.nic.loopback(); err == nil {
			_, _ = loop.Write(frames)
		}
	}
	return l.Link.Write(frames)
}
