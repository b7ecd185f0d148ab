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

// watch follows the kernel's notifications about an interface and its addresses. Without
// notifications, as in a gVisor sandbox, it reports no changes.
type watch struct {
	nic    *nic
	size   atomic.Int64
	is     atomic.Uint32
	index  int
	kernel *rtnetlink.Listener
	warned sync.Once
}

func newWatch(n *nic, iface *net.Interface) (*watch, error) {
	kernel, err := rtnetlink.Listen() // before the state is read, so that no change is missed
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

// read reads the state of the interface.
func (w *watch) read() error {
	at, err := w.kernel.Link(w.index)
	if err == nil {
		w.update(at, false)
	}
	return err
}

// run processes notifications until close.
func (w *watch) run() {
	w.kernel.Run(rtnetlink.Events{
		Link: func(at *netlink.LinkAttrs, removed bool) {
			if at.Index == w.index {
				w.update(at, removed)
				w.nic.stateChanged()
			}
		},
		Addrs: func(index int) {
			if index == w.index {
				w.nic.updateAddrs()
			}
		},
		Missed: func() {
			w.warned.Do(func() {
				w.nic.log.Warn("netlink's queue was full and notifications were lost: the interface was read again",
					"interface", w.nic.name)
			})
			if _, gone := w.read().(netlink.LinkNotFoundError); gone {
				w.is.Store(uint32(stack.LinkRemoved))
			}
			w.nic.stateChanged()
			w.nic.updateAddrs()
		},
	})
}

func (w *watch) update(at *netlink.LinkAttrs, removed bool) {
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
