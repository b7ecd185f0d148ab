//go:build !linux

package kernel

import (
	"net"

	"github.com/softrnic/softrnic/stack"
)

// watch is the state of an interface when the host was created. Only Linux follows changes.
type watch struct {
	size int
	is   stack.LinkState
}

func newWatch(_ *nic, iface *net.Interface) (*watch, error) {
	w := &watch{size: iface.MTU, is: stack.LinkUp}
	switch {
	case iface.Flags&net.FlagUp == 0:
		w.is = stack.LinkDisabled
	case iface.Flags&net.FlagRunning == 0:
		w.is = stack.LinkNoCarrier
	}
	return w, nil
}

func (w *watch) run()                   {}
func (w *watch) mtu() int               { return w.size }
func (w *watch) state() stack.LinkState { return w.is }
func (w *watch) close()                 {}
