// Package vlan is a link that is one VLAN of another link, like Linux's 8021q devices. Sent frames
// get an 802.1Q tag with the VLAN's ID; received frames lose it.
//
// The priority in the tag (PCP) is the priority of the frame's TCI: the service level of RoCE, and
// 0 for everything else.
package vlan

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Link is one VLAN of another link. A program that uses several VLANs of one medium opens a port,
// TAP interface or packet socket for each.
type Link struct {
	inner   link.Link
	poller  link.Poller // inner, or nil
	shared  link.Shared // inner, or nil
	id      uint16
	name    string
	medium  atomic.Value // the shared medium, once inner has shared one
	foreign atomic.Uint64
	scratch sync.Pool // of *transmission
}

var (
	_ link.Link       = (*Link)(nil)
	_ link.Poller     = (*Link)(nil)
	_ link.Shared     = (*Link)(nil)
	_ link.Carrier    = (*Link)(nil)
	_ link.Departures = (*Link)(nil)
	_ link.Clocked    = (*Link)(nil)
)

// MaxID is the largest VLAN ID. The smallest is 1: 0 means no VLAN, and 4095 is reserved (IEEE
// 802.1Q table 9-2).
const MaxID = 4094

// New returns a link for the VLAN id, 1 to MaxID, on inner. It owns inner: closing the link closes
// inner.
func New(inner link.Link, id int) (*Link, error) {
	if id < 1 || id > MaxID {
		return nil, fmt.Errorf("vlan on %s: ID %d: must be 1 to %d", inner.Name(), id, MaxID)
	}
	l := &Link{inner: inner, id: uint16(id), name: fmt.Sprintf("%s.%d", inner.Name(), id)}
	l.poller, _ = inner.(link.Poller)
	l.shared, _ = inner.(link.Shared)
	l.scratch.New = func() any { return new(transmission) }
	return l, nil
}

// Foreign returns the number of frames without a tag or with another VLAN's, which were dropped.
func (l *Link) Foreign() uint64 { return l.foreign.Load() }

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.inner.Attach(func(frames []link.Frame) {
		own := frames[:0]
		for i := range frames {
			if f := &frames[i]; f.TakeTag() && f.TCI&link.VLANMask == l.id {
				own = append(own, *f)
			}
		}
		if n := len(frames) - len(own); n > 0 {
			l.foreign.Add(uint64(n))
		}
		if len(own) > 0 {
			recv(own)
		}
	})
}

// transmission has the buffers of one Write. They are reused.
type transmission struct {
	frames []link.Frame
	heads  []byte   // tagged beginnings of frames
	pieces [][]byte // the remainders of frames
}

// A frame of up to wholeLen bytes in one piece is copied completely with its tag. Of a longer frame
// only the headers are copied. headLen bytes are enough for those of IPv6 and TCP with all options.
const (
	wholeLen = 252
	headLen  = link.EthernetHeaderLen + 40 + 60
)

// Write implements link.Link.
func (l *Link) Write(frames []link.Frame) (int, error) {
	t := l.scratch.Get().(*transmission)
	for i := range frames {
		t.add(frames[i], l.id)
	}
	n, err := l.inner.Write(t.frames)
	clear(t.frames)
	clear(t.pieces)
	t.frames, t.heads, t.pieces = t.frames[:0], t.heads[:0], t.pieces[:0]
	l.scratch.Put(t)
	return n, err
}

// add adds a tag to f. When heads or pieces grow, earlier frames keep the old arrays, whose
// contents do not change.
func (t *transmission) add(f link.Frame, id uint16) {
	n := len(f.Data)
	if n < link.EthernetHeaderLen { // inner returns the error
		t.frames = append(t.frames, f)
		return
	}
	if n > wholeLen {
		n = headLen
		if f.Segmentation != link.NoSegmentation {
			n = max(n, int(f.HeaderLen))
		}
		if f.NeedsChecksum {
			n = max(n, int(f.ChecksumStart)+int(f.ChecksumOffset)+2)
		}
		n = min(n, len(f.Data))
	}
	from, first := len(t.heads), len(t.pieces)
	t.heads = f.AppendTagged(t.heads, n, f.TCI&^link.VLANMask|id)
	if rest := f.Data[n:]; len(rest) > 0 {
		t.pieces = append(append(t.pieces, rest), f.More...)
		f.More = t.pieces[first:len(t.pieces):len(t.pieces)]
	}
	f.SetTagged(t.heads[from:len(t.heads):len(t.heads)])
	t.frames = append(t.frames, f)
}

// Close closes the inner link.
func (l *Link) Close() error { return l.inner.Close() }

// Poll polls the inner link, if it is a Poller.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}

// medium identifies a VLAN of a medium in memory.
type medium struct {
	of any
	id uint16
}

// Medium implements link.Shared. Only links of the same VLAN share a medium.
func (l *Link) Medium() any {
	if l.shared == nil {
		return nil
	}
	of := l.shared.Medium()
	if of == nil {
		return nil
	}
	known := l.medium.Load()
	if m, ok := known.(medium); ok && m.of == of {
		return known
	}
	m := medium{of, l.id}
	l.medium.Store(m)
	return m
}

// Name is the inner link's name and the ID, as Linux names its devices: eth0.5.
func (l *Link) Name() string { return l.name }

// MAC is the inner link's address.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// State implements link.Carrier with the inner link's state.
func (l *Link) State() link.State { return link.StateOf(l.inner) }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { link.Watch(l.inner, f) }

// WatchDepartures implements link.Departures.
func (l *Link) WatchDepartures(f func(mac [6]byte)) { link.WatchDepartures(l.inner, f) }

// Clock implements link.Clocked.
func (l *Link) Clock() clock.Clock { return link.ClockOf(l.inner) }

// MTU is the inner link's MTU: the tag does not count.
func (l *Link) MTU() int { return l.inner.MTU() }

// Offloads are the inner link's offloads.
func (l *Link) Offloads() link.Offloads { return l.inner.Offloads() }
