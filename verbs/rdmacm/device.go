package rdmacm

import (
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// This file is about what an ID hears of the device that it is on: AddrChange, when the local address is taken from the
// device, and DeviceRemoval. An ID is on a device from Bind to an address, AddrResolved or its ConnectRequest on, a
// listener on all addresses is on all devices of its channel.
//
// As in Linux, a port that has no carrier raises nothing here: it may come back. A peer's new MAC address raises nothing
// either, where Linux reports UNREACHABLE: packets of this device follow the neighbour's address.

// devices has, for each device of this process that IDs are on, those IDs.
var devices = deviceTable{of: make(map[*verbs.Device]*deviceIDs)}

type deviceTable struct {
	mu sync.Mutex // after the IDs' locks
	of map[*verbs.Device]*deviceIDs
}

type deviceIDs struct {
	dev  *verbs.Device
	stop func() // ends the calls of happened

	// guarded by deviceTable.mu
	ids  map[*ID]struct{}
	gone bool

	telling sync.Mutex // held while the IDs are told of an event; before their locks
}

// enter puts an ID on a device; once more does no harm. ENODEV if the device is gone. The ID is locked.
func (t *deviceTable) enter(op string, d *verbs.Device, id *ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[d]
	if s == nil {
		s = &deviceIDs{dev: d, ids: make(map[*ID]struct{})}
		var err error
		if s.stop, err = d.Watch(s.happened); err != nil {
			return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
		}
		t.of[d] = s
	}
	if s.gone {
		return goneError(op)
	}
	s.ids[id] = struct{}{}
	return nil
}

// leave takes an ID from all devices.
func (t *deviceTable) leave(id *ID, devs []*verbs.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range devs {
		s := t.of[d]
		if s == nil {
			continue
		}
		if delete(s.ids, id); len(s.ids) == 0 {
			s.stop()
			delete(t.of, d)
		}
	}
}

func goneError(op string) error {
	return verbs.Errorf(syscall.ENODEV, op, "the device that the ID is on is gone")
}

// happened is told of an event of the device.
func (s *deviceIDs) happened(t verbs.AsyncEventType, _ uint8) {
	if t != verbs.EventGIDChange && t != verbs.EventDeviceFatal {
		return
	}
	s.telling.Lock() // so that the last one who reads the addresses is the last one who tells of them
	defer s.telling.Unlock()
	var at map[netip.Addr]uint8
	if t == verbs.EventGIDChange {
		at = addresses(s.dev)
	}
	devices.mu.Lock()
	s.gone = s.gone || t == verbs.EventDeviceFatal
	ids := slices.Collect(maps.Keys(s.ids))
	devices.mu.Unlock()
	for _, id := range ids {
		if t == verbs.EventDeviceFatal {
			id.deviceGone(s.dev)
		} else {
			id.addressesChanged(s.dev, at)
		}
	}
}

// addresses are those of a device, with the ports that they are on.
func addresses(d *verbs.Device) map[netip.Addr]uint8 {
	at := make(map[netip.Addr]uint8)
	for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
		table, err := d.GIDTable(port)
		if err != nil {
			continue
		}
		for _, g := range table {
			at[plain(g.GID.Addr())] = port
		}
	}
	return at
}

// addressesChanged raises AddrChange if the ID's own address is no more where it was.
func (id *ID) addressesChanged(d *verbs.Device, at map[netip.Addr]uint8) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.dev != d || id.state == destroyed || id.state == removed {
		return
	}
	port, ok := at[id.local.Addr()]
	lost := !ok || port != id.route.Port
	if lost && !id.addrLost && !id.changing.Swap(true) {
		id.ch.add(&Event{Type: AddrChange, ID: id})
	}
	id.addrLost = lost
}

// deviceGone takes the ID off a device that is gone. Unless it listens on others too, that is its end.
func (id *ID) deviceGone(d *verbs.Device) {
	id.mu.Lock()
	if id.state == destroyed || id.state == removed {
		id.mu.Unlock()
		return
	}
	var closers []io.Closer
	id.listeners = slices.DeleteFunc(id.listeners, func(l deviceListener) bool {
		if l.dev == d {
			closers = append(closers, l.Closer)
		}
		return l.dev == d
	})
	if len(id.listeners) == 0 {
		closers = append(closers, id.remove()...)
	}
	id.mu.Unlock()
	for _, c := range closers {
		_ = c.Close() // it cannot leave anything behind on a device that is gone
	}
}

// remove ends an ID whose device is gone: the peer is told what fits, as far as it can be, and DeviceRemoval is raised. The
// device itself flushes what is posted. remove returns what is to be closed when the ID is not locked any more.
func (id *ID) remove() (closers []io.Closer) {
	id.state = removed
	if id.cancel != nil {
		id.cancel()
	}
	if id.conn != nil {
		id.conn.Close()
	}
	id.detach()
	for _, m := range id.groups {
		closers = append(closers, m.Closer)
	}
	id.groups = nil
	id.end()
	id.ch.add(&Event{Type: DeviceRemoval, ID: id})
	return closers
}
