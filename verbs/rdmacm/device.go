package rdmacm

import (
	"cmp"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// This file raises two events of an ID that come from its device: AddrChange, when the ID's local
// address is removed from the device, and DeviceRemoval. An ID watches a device after Bind to an
// address, AddrResolved or its ConnectRequest. A listener on all addresses watches all devices of
// its channel.
//
// As in Linux, a port that loses its carrier raises no event, because the carrier may return. A
// peer's new MAC address raises no event either: packets of this device are sent to the new
// address. Linux reports UNREACHABLE.

// devices has the IDs that watch each device of this process.
var devices = deviceTable{of: make(map[*verbs.Device]*deviceIDs)}

type deviceTable struct {
	mu sync.Mutex // after the IDs' locks
	of map[*verbs.Device]*deviceIDs
}

// deviceIDs has the IDs that watch one device.
type deviceIDs struct {
	dev  *verbs.Device
	stop func() // ends the calls of handleEvent

	// protected by deviceTable.mu
	ids   map[*ID]uint64 // their places in the order in which they began to watch
	began uint64         // how many have
	gone  bool           // EventDeviceFatal was raised

	notifying sync.Mutex // held while the IDs handle an event; taken before their locks
}

// watch makes an ID watch a device; repeated calls have no effect. It fails with ENODEV if the
// device has failed or is closed. The ID is locked.
func (t *deviceTable) watch(op string, d *verbs.Device, id *ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s == nil {
		s = &deviceIDs{dev: d, ids: make(map[*ID]uint64)}
		var err error
		if s.stop, err = d.Watch(s.handleEvent); err != nil {
			return &verbs.Error{Op: op, Err: err}
		}
		t.of[d] = s
	}
	if s.gone {
		return errDeviceGone(op)
	}
	if _, watches := s.ids[id]; !watches {
		s.began++
		s.ids[id] = s.began
	}
	return nil
}

// unwatch undoes watch.
func (t *deviceTable) unwatch(id *ID, d *verbs.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s == nil {
		return
	}
	if delete(s.ids, id); len(s.ids) == 0 {
		s.stop()
		delete(t.of, d)
	}
}

// idsOf returns the IDs that watch a device.
func (t *deviceTable) idsOf(d *verbs.Device) []*ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.of[d]; s != nil {
		return s.inOrder()
	}
	return nil
}

// inOrder returns the IDs, always in the same order, as simulations need it. deviceTable.mu is
// held.
func (s *deviceIDs) inOrder() []*ID {
	return slices.SortedFunc(maps.Keys(s.ids), func(a, b *ID) int { return cmp.Compare(s.ids[a], s.ids[b]) })
}

// errDeviceGone returns the error of a call after DeviceRemoval.
func errDeviceGone(op string) error {
	return verbs.Errorf(syscall.ENODEV, op, "the ID's device has failed or is closed")
}

// handleEvent handles an event of the device.
func (s *deviceIDs) handleEvent(t verbs.AsyncEventType, _ uint8) {
	if t != verbs.EventGIDChange && t != verbs.EventDeviceFatal {
		return
	}
	s.notifying.Lock() // handles concurrent events in the order in which they read the addresses
	defer s.notifying.Unlock()
	var at map[netip.Addr]uint8
	if t == verbs.EventGIDChange {
		at = addresses(s.dev)
	}
	devices.mu.Lock()
	s.gone = s.gone || t == verbs.EventDeviceFatal
	ids := s.inOrder()
	devices.mu.Unlock()
	for _, id := range ids {
		if t == verbs.EventDeviceFatal {
			id.deviceGone(s.dev)
		} else {
			id.addressesChanged(s.dev, at)
		}
	}
}

// addresses returns the addresses of a device with their ports.
func addresses(d *verbs.Device) map[netip.Addr]uint8 {
	at := make(map[netip.Addr]uint8)
	for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
		table, err := d.Provider().GIDTable(port)
		if err != nil {
			continue
		}
		for _, g := range table {
			at[canonical(g.GID.Addr())] = port
		}
	}
	return at
}

// addressesChanged raises AddrChange if the ID's local address has been removed from its port. at
// has the ports of the device's addresses.
func (id *ID) addressesChanged(d *verbs.Device, at map[netip.Addr]uint8) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.dev != d || id.state == closed || id.state == deviceRemoved {
		return
	}
	port, ok := at[id.local().Addr()]
	lost := !ok || port != id.route.PortNum
	if lost && !id.addrLost && !id.addrChangeQueued.Load() {
		id.addrChangeQueued.Store(true) // before take can clear it
		id.ch.add(&Event{Type: AddrChange, ID: id})
	}
	id.addrLost = lost
}

// deviceGone handles EventDeviceFatal of a device. A listener on further devices continues; any
// other ID is removed.
func (id *ID) deviceGone(d *verbs.Device) {
	id.mu.Lock()
	if id.state == closed || id.state == deviceRemoved {
		id.mu.Unlock()
		return
	}
	var closers []io.Closer
	if id.extra != nil {
		id.extra.listeners = slices.DeleteFunc(id.extra.listeners, func(l deviceListener) bool {
			if l.dev == d {
				closers = append(closers, l.Closer)
			}
			return l.dev == d
		})
	}
	if len(id.listeners()) == 0 {
		closers = append(closers, id.remove()...)
	}
	id.mu.Unlock()
	for _, c := range closers {
		_ = c.Close() // an error does not matter, because the device has failed or is closed
	}
}

// remove ends the ID's connection, flushes its QP and raises DeviceRemoval. If possible, it sends a
// message to the peer. The caller must close the returned objects after unlocking the ID.
func (id *ID) remove() (closers []io.Closer) {
	id.state = deviceRemoved
	if id.cancel != nil {
		id.cancel()
	}
	if id.conn != nil {
		id.conn.Close()
	}
	id.detachGroups()
	for _, m := range id.groups() {
		closers = append(closers, m.Closer)
	}
	if id.extra != nil {
		id.extra.groups = nil
	}
	// The device flushes too, but later: a program may poll for its work requests when it gets the
	// event.
	id.failQP()
	id.signals.end()
	id.ch.add(&Event{Type: DeviceRemoval, ID: id})
	return closers
}
