// Package cable is a link whose cable can be pulled, and whose MTU can be lowered, while it is in
// use.
package cable

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Link is a link with a cable to another. While the cable is pulled, frames are lost in both
// directions, and the state is link.NoCarrier.
type Link struct {
	inner  link.Link
	poller link.Poller // inner, or nil
	down   atomic.Bool
	mtu    atomic.Int64 // 0: inner's

	mu    sync.Mutex // held during calls of watch
	watch func()
}

var (
	_ link.Link       = (*Link)(nil)
	_ link.Poller     = (*Link)(nil)
	_ link.Carrier    = (*Link)(nil)
	_ link.Departures = (*Link)(nil)
	_ link.Clocked    = (*Link)(nil)
)

// New returns a link to inner, whose cable is plugged in.
func New(inner link.Link) *Link {
	l := &Link{inner: inner}
	l.poller, _ = inner.(link.Poller)
	link.Watch(inner, l.changed)
	return l
}

// SetDown pulls the cable, or plugs it in again.
func (l *Link) SetDown(down bool) {
	if l.down.Swap(down) != down {
		l.changed()
	}
}

// minMTU is the smallest MTU of IPv4 hosts, in bytes (RFC 791).
const minMTU = 576

// SetMTU sets the largest IP packet in bytes: at most that of the other link. Longer frames that
// arrive are still received, as most cards do.
func (l *Link) SetMTU(n int) error {
	if most := l.inner.MTU(); n < minMTU || n > most {
		return fmt.Errorf("%s: MTU %d is not in %d–%d", l.Name(), n, minMTU, most)
	}
	l.mtu.Store(int64(n))
	l.changed()
	return nil
}

func (l *Link) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch()
	}
}

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.inner.Attach(func(frames []link.Frame) {
		if !l.down.Load() {
			recv(frames)
		}
	})
}

// Write implements link.Link.
func (l *Link) Write(frames []link.Frame) (int, error) {
	if l.down.Load() {
		return len(frames), nil
	}
	return l.inner.Write(frames)
}

// Poll implements link.Poller.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}

// Name is the other link's name.
func (l *Link) Name() string { return l.inner.Name() }

// MAC is the other link's address.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// MTU is that of SetMTU, or the other link's if that is smaller.
func (l *Link) MTU() int {
	if n := int(l.mtu.Load()); n != 0 {
		return min(n, l.inner.MTU())
	}
	return l.inner.MTU()
}

// Offloads implements link.Link.
func (l *Link) Offloads() link.Offloads { return l.inner.Offloads() }

// Close closes the other link.
func (l *Link) Close() error { return l.inner.Close() }

// State implements link.Carrier.
func (l *Link) State() link.State {
	if s := link.StateOf(l.inner); s != link.Up || !l.down.Load() {
		return s
	}
	return link.NoCarrier
}

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) {
	l.mu.Lock()
	l.watch = f
	l.mu.Unlock()
}

// Clock implements link.Clocked.
func (l *Link) Clock() clock.Clock { return link.ClockOf(l.inner) }

// WatchDepartures implements link.Departures.
func (l *Link) WatchDepartures(f func(mac [6]byte)) { link.WatchDepartures(l.inner, f) }
