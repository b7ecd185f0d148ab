package kernel

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// watch hears from the kernel (RTNLGRP_LINK) how an interface is, and (RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR) which addresses it has.
type watch struct {
	nic     *nic
	size    atomic.Int64
	is      atomic.Uint32
	index   int
	updates chan netlink.LinkUpdate
	addrs   chan netlink.AddrUpdate
	ended   chan struct{} // closed by close
}

func newWatch(n *nic, iface *net.Interface) (*watch, error) {
	w := &watch{nic: n, index: iface.Index, updates: make(chan netlink.LinkUpdate), addrs: make(chan netlink.AddrUpdate), ended: make(chan struct{})}
	// Subscribed first, so that nothing is missed between the two. A sandbox, as gVisor's, may not have that: nothing changes
	// there, or is not heard of.
	if netlink.LinkSubscribe(w.updates, w.ended) != nil {
		close(w.updates)
	}
	if netlink.AddrSubscribe(w.addrs, w.ended) != nil {
		close(w.addrs)
	}
	link, err := netlink.LinkByIndex(iface.Index)
	if err != nil {
		w.close()
		go w.run()
		return nil, fmt.Errorf("%s: %w", iface.Name, err)
	}
	w.take(link.Attrs(), false)
	return w, nil
}

// run takes in what changes, until close.
func (w *watch) run() {
	var addresses sync.WaitGroup
	addresses.Go(func() {
		for u := range w.addrs {
			if u.LinkIndex == w.index && !w.isClosed() {
				w.nic.readdress()
			}
		}
	})
	defer addresses.Wait()
	for u := range w.updates {
		if w.isClosed() {
			continue
		}
		if u.IfInfomsg.Family != unix.AF_UNSPEC || int(u.Index) != w.index {
			continue // of a bridge, about its ports; or of another interface
		}
		w.take(u.Link.Attrs(), u.Header.Type == unix.RTM_DELLINK)
		w.nic.changed()
	}
}

func (w *watch) take(at *netlink.LinkAttrs, removed bool) {
	state := stack.LinkUp
	switch {
	case removed:
		state = stack.LinkRemoved
	case at.RawFlags&unix.IFF_UP == 0:
		state = stack.LinkDisabled
	case at.RawFlags&unix.IFF_RUNNING == 0:
		state = stack.LinkNoCarrier
	}
	w.size.Store(int64(at.MTU))
	w.is.Store(uint32(state))
}

func (w *watch) isClosed() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

func (w *watch) mtu() int               { return int(w.size.Load()) }
func (w *watch) state() stack.LinkState { return stack.LinkState(w.is.Load()) }
func (w *watch) close()                 { close(w.ended) }
