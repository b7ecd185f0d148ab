package rdmatransport_test

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmEvent returns the next event of an ID, which must be the only ID of its channel.
func cmEvent(t *testing.T, id *rdmacm.ID) rdmacm.EventType {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e := must(id.Channel().GetEvent(ctx))(t)
	ok(t, e.Ack())
	return e.Type
}

// removable is a link that can be removed.
type removable struct {
	link.Link
	gone    atomic.Bool
	changed func()
}

func (l *removable) State() link.State {
	if l.gone.Load() {
		return link.Removed
	}
	return link.Up
}

func (l *removable) Watch(f func()) { l.changed = f }

func (l *removable) remove() {
	l.gone.Store(true)
	l.changed()
}

// TestLinkRemoved removes the links of a device. The device then has one port less, and IDs with
// that port's address get ADDR_CHANGE. When the last link is removed, the device fails, and all IDs
// get DEVICE_REMOVAL.
func TestLinkRemoved(t *testing.T) {
	lan := new(pipe.Switch)
	links := []*removable{{Link: lan.Port()}, {Link: lan.Port()}}
	host := must(netstack.New(links[0], &netstack.Config{Addrs: []string{"10.0.0.1/24"},
		NICs: []netstack.NICConfig{{Link: links[1], Addrs: []string{"10.1.0.1/24"}}}}))(t)
	defer host.Close()
	dev := must(rdmatransport.Open(host, nil))(t)
	defer dev.Close()
	var ids []*rdmacm.ID
	for _, addr := range []string{"10.0.0.1:1", "10.1.0.1:1"} {
		id := must(rdmacm.CreateSyncID(rdmacm.TCP, dev))(t)
		defer id.Close()
		ok(t, id.Bind(netip.MustParseAddrPort(addr)))
		ids = append(ids, id.ID)
	}
	links[0].remove()
	if e := cmEvent(t, ids[0]); e != rdmacm.AddrChange {
		t.Errorf("%v, want ADDR_CHANGE", e)
	}
	if table := must(dev.GIDTable(1))(t); len(table) != 0 {
		t.Errorf("the port has %v", table)
	}
	other := must(rdmacm.CreateSyncID(rdmacm.TCP, dev))(t)
	defer other.Close()
	if err := other.Bind(netip.MustParseAddrPort("10.0.0.1:2")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("Bind to the address of the removed link: %v", err)
	}
	links[1].remove()
	for _, id := range ids {
		if e := cmEvent(t, id); e != rdmacm.DeviceRemoval {
			t.Errorf("%v, want DEVICE_REMOVAL", e)
		}
	}
}

// TestHostClosed checks that closing a host ends its device, and notifies the peers.
func TestHostClosed(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		conn, peer := dial(a, b, transport, nil)
		ok(t, b.network.Close())
		for _, c := range []*rdmacm.Conn{conn, peer} {
			select {
			case <-c.Done():
			case <-time.After(20 * time.Second):
				t.Error("a connection has not ended")
			}
		}
		if e := cmEvent(t, peer.ID()); e != rdmacm.DeviceRemoval {
			t.Errorf("%v, want DEVICE_REMOVAL", e)
		}
	})
}

// TestAddrRemoved removes an address from the host. Both ends of a connection and a listener with
// that address get an event, and no others do.
func TestAddrRemoved(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
		nic := b.host.Interfaces()[0]
		ok(t, nic.AddAddr("10.0.0.3/24"))
		conn, peer := dial(a, b, transport, nil)
		ids := map[string]*rdmacm.SyncID{}
		for _, addr := range []string{"10.0.0.2:1", "10.0.0.3:1", "0.0.0.0:2"} {
			id := must(rdmacm.CreateSyncID(rdmacm.TCP, b.dev))(t)
			defer id.Close()
			ok(t, id.SetTransports(transport))
			ok(t, id.Bind(netip.MustParseAddrPort(addr)))
			ok(t, id.Listen(1))
			ids[addr] = id
		}
		ok(t, nic.RemoveAddr(b.addr))
		for _, id := range []*rdmacm.ID{peer.ID(), ids["10.0.0.2:1"].ID} {
			if e := cmEvent(t, id); e != rdmacm.AddrChange {
				t.Errorf("%v, want ADDR_CHANGE", e)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, id := range []*rdmacm.ID{conn.ID(), ids["10.0.0.3:1"].ID, ids["0.0.0.0:2"].ID} {
			if e, err := id.Channel().GetEvent(gone); err == nil {
				t.Errorf("%v to an ID at %v", e.Type, id.LocalAddr())
			}
		}
		// The connection works again, so that Close ends it in order.
		ok(t, nic.AddAddr("10.0.0.2/24"))
	})
}

// TestShutdownWithoutLink checks that Shutdown does not wait for peers if all links of the device
// are removed.
func TestShutdownWithoutLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		cable := lan.Port()
		l := &removable{Link: cable}
		a, b := newStation(t, lan, "10.0.0.1/24"), newStationOn(t, l, "10.0.0.2/24", nil)
		dial(a, b, verbs.RoCEv2, nil)
		cable.SetCarrier(false)
		l.remove()
		start := time.Now()
		ok(t, b.dev.Shutdown(t.Context()))
		if took := time.Since(start); took != 0 {
			t.Errorf("Shutdown took %v", took)
		}
	})
}
