package kernel

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/rtnetlink"
	"github.com/softrnic/softrnic/stack"
)

// watch hears from the kernel how an interface is, and which addresses it has. Where the kernel tells of no changes, as in a
// gVisor sandbox, all stays as it was when the host was made.
type watch struct {
	nic    *nic
	size   atomic.Int64
	is     atomic.Uint32
	index  int
	kernel *rtnetlink.Listener
	warned sync.Once
}

func newWatch(n *nic, iface *net.Interface) (*watch, error) {
	kernel, err := rtnetlink.Listen() // before the present state is read, so that no change is missed
	if err != nil {
		return nil, fmt.Errorf("%s: %w", iface.Name, err)
	}
	w := &watch{nic: n, index: iface.Index, kernel: kernel}
	if err := w.read(); err != nil {
		kernel.Close()
		return nil, fmt.Errorf("%s: %w", iface.Name, err)
	}
	return w, nil
}

// read finds out how the interface is.
func (w *watch) read() error {
	at, err := w.kernel.Link(w.index)
	if err == nil {
		w.take(at, false)
	}
	return err
}

// run takes in what changes, until close.
func (w *watch) run() {
	w.kernel.Run(rtnetlink.Events{
		Link: func(at *netlink.LinkAttrs, removed bool) {
			if at.Index == w.index {
				w.take(at, removed)
				w.nic.changed()
			}
		},
		Addrs: func(index int) {
			if index == w.index {
				w.nic.readdress()
			}
		},
		Missed: func() {
			w.warned.Do(func() {
				w.nic.log.Warn("changes of the interface were missed, as netlink's queue was full: it was read again", "interface", w.nic.name)
			})
			if _, gone := w.read().(netlink.LinkNotFoundError); gone {
				w.is.Store(uint32(stack.LinkRemoved))
			}
			w.nic.changed()
			w.nic.readdress()
		},
	})
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

func (w *watch) mtu() int               { return int(w.size.Load()) }
func (w *watch) state() stack.LinkState { return stack.LinkState(w.is.Load()) }
func (w *watch) close()                 { w.kernel.Close() }
