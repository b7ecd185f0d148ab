//go:build linux

package ifstate

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// Watcher hears of changes from the kernel (RTNLGRP_LINK). It implements link.Carrier.
type Watcher struct {
	farSide       bool
	index, master int            // the interface's, and that of the bridge that it is in, or 0
	flags         map[int]uint32 // of all interfaces that were heard of, by index: one of them may be the bridge
	removed       bool           // the interface was deleted, or moved to another network namespace

	state atomic.Uint32
	mtu   atomic.Int64
	quit  chan struct{}

	mu     sync.Mutex // held while f runs
	f      func()
	closed bool
}

// updateBytes is the receive buffer for the kernel's messages, large enough not to overflow: a change whose message is lost
// would never be noticed.
const updateBytes = 1 << 20

// New watches the interface of this name in the network namespace of the calling thread. farSide says that the interface is
// the other end of the link's cable, as with TAP, and not the link itself. If it, or the bridge that it is in, is down, the
// link then has no carrier, but is not disabled.
func New(name string, farSide bool) (*Watcher, error) {
	w := &Watcher{farSide: farSide, flags: map[int]uint32{}, quit: make(chan struct{})}
	updates := make(chan netlink.LinkUpdate)
	err := netlink.LinkSubscribeWithOptions(updates, w.quit, netlink.LinkSubscribeOptions{ReceiveBufferSize: updateBytes})
	if err != nil {
		return nil, fmt.Errorf("%s: subscribe to changes of interfaces: %w", name, err)
	}
	if err := w.begin(name); err != nil {
		w.Close()
		go func() {
			for range updates {
			}
		}()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go w.run(updates)
	return w, nil
}

// begin finds out the present state, before changes are watched.
func (w *Watcher) begin(name string) error {
	have, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	w.index = have.Attrs().Index
	if master := have.Attrs().MasterIndex; master != 0 {
		br, err := netlink.LinkByIndex(master)
		if err != nil {
			return err
		}
		w.flags[master] = br.Attrs().RawFlags
	}
	w.take(have.Attrs())
	return nil
}

func (w *Watcher) run(updates <-chan netlink.LinkUpdate) {
	for u := range updates {
		if u.IfInfomsg.Family != unix.AF_UNSPEC {
			continue // of a bridge, about its ports
		}
		state, mtu := w.State(), w.MTU()
		switch at := u.Link.Attrs(); {
		case u.Header.Type == unix.RTM_DELLINK:
			delete(w.flags, at.Index)
			w.removed = w.removed || at.Index == w.index
		case at.Index == w.index:
			w.take(at)
		default:
			w.flags[at.Index] = at.RawFlags
		}
		w.judge()
		if state != w.State() || mtu != w.MTU() {
			w.tell()
		}
	}
}

// take takes in what the kernel says of the interface.
func (w *Watcher) take(at *netlink.LinkAttrs) {
	w.mtu.Store(int64(at.MTU))
	w.flags[w.index], w.master = at.RawFlags, at.MasterIndex
	w.judge()
}

// judge finds the state from the flags of the interface and of the bridge that it is in.
func (w *Watcher) judge() {
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

func (w *Watcher) tell() {
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

// MTU is the interface's.
func (w *Watcher) MTU() int { return int(w.mtu.Load()) }

// Close ends the watch, and waits for a call of the watching function that is running. It may be called more than once.
func (w *Watcher) Close() {
	w.mu.Lock()
	was := w.closed
	w.closed = true
	w.mu.Unlock()
	if !was {
		close(w.quit)
	}
}
