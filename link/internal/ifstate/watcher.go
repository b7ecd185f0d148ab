//go:build linux

package ifstate

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/rtnetlink"
)

// Watcher follows the kernel's notifications about an interface. It implements link.Carrier.
type Watcher struct {
	farSide       bool
	index, master int // indices of the interface and of its bridge; 0: no bridge
	// The flags of all interfaces that notifications have named, by index. One of them may be the
	// bridge.
	flags   map[int]uint32
	removed bool // the interface was deleted, or moved to another network namespace
	kernel  *rtnetlink.Listener

	state atomic.Uint32
	mtu   atomic.Int64

	mu     sync.Mutex // held while f runs
	f      func()
	closed bool
}

// New watches the interface of this name in the network namespace of the calling thread. farSide
// says that the interface is the other end of the link's cable, as with TAP, and not the link
// itself. If the interface or its bridge is down, the link has no carrier with farSide, and is
// disabled without it. Without the kernel's notifications, state and MTU never change.
func New(name string, farSide bool) (*Watcher, error) {
	kernel, err := rtnetlink.Listen() // before the state is read, so that no change is missed
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := &Watcher{farSide: farSide, flags: map[int]uint32{}, kernel: kernel}
	at, err := kernel.LinkByName(name)
	if err == nil {
		w.index = at.Index
		err = w.read()
	}
	if err != nil {
		kernel.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go kernel.Run(rtnetlink.Events{
		Link: func(at *netlink.LinkAttrs, removed bool) {
			w.apply(func() {
				switch {
				case removed:
					delete(w.flags, at.Index)
					w.removed = w.removed || at.Index == w.index
				case at.Index == w.index:
					w.update(at)
				default:
					w.flags[at.Index] = at.RawFlags
				}
			})
		},
		Addrs: func(int) {},
		Missed: func() {
			w.apply(func() {
				if _, gone := w.read().(netlink.LinkNotFoundError); gone {
					w.removed = true
				}
			})
		},
	})
	return w, nil
}

// read asks the kernel for the state of the interface and of its bridge.
func (w *Watcher) read() error {
	at, err := w.kernel.Link(w.index)
	if err != nil {
		return err
	}
	clear(w.flags)
	if at.MasterIndex != 0 {
		// An error means that the bridge is being deleted. A notification follows.
		if bridge, err := w.kernel.Link(at.MasterIndex); err == nil {
			w.flags[bridge.Index] = bridge.RawFlags
		}
	}
	w.update(at)
	w.setState()
	return nil
}

// update stores the kernel's attributes of the interface.
func (w *Watcher) update(at *netlink.LinkAttrs) {
	w.mtu.Store(int64(at.MTU))
	w.flags[w.index], w.master = at.RawFlags, at.MasterIndex
}

// apply calls f, which processes a notification. If f has changed the state or the MTU, apply calls
// the watching function.
func (w *Watcher) apply(f func()) {
	state, mtu := w.State(), w.MTU()
	f()
	w.setState()
	if state != w.State() || mtu != w.MTU() {
		w.notify()
	}
}

// setState derives the state from the flags of the interface and of its bridge.
func (w *Watcher) setState() {
	flags, state := w.flags[w.index], link.Up
	bridge, known := w.flags[w.master]
	switch {
	case w.removed:
		state = link.Removed
	case flags&unix.IFF_UP == 0 && !w.farSide:
		state = link.Disabled
	case flags&unix.IFF_UP == 0, flags&unix.IFF_RUNNING == 0, w.farSide && known && bridge&unix.IFF_UP == 0:
		state = link.NoCarrier
	}
	w.state.Store(uint32(state))
}

func (w *Watcher) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f != nil && !w.closed {
		w.f()
	}
}

// State implements link.Carrier.
func (w *Watcher) State() link.State { return link.State(w.state.Load()) }

// Watch implements link.Carrier.
func (w *Watcher) Watch(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f = f
}

// MTU returns the interface's MTU.
func (w *Watcher) MTU() int { return int(w.mtu.Load()) }

// Close ends the watch. It waits until a running call of the watching function has returned. It may
// be called more than once.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.kernel.Close()
}
