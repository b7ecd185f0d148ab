package rdmatransport_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmEvent is the next event of an ID, which must be alone in its channel.
func cmEvent(t *testing.T, id *rdmacm.ID) rdmacm.EventType {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e := must(id.Channel().GetEvent(ctx))(t)
	ok(t, e.Ack())
	return e.Type
}

// TestAddrRemoved: both ends of a connection and a listener whose address is taken from the host are told so, and nobody
// else.
func TestAddrRemoved(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := pipe.New()
		a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
		nic := b.host.Interfaces()[0]
		ok(t, nic.AddAddr("10.0.0.3/24"))
		conn, peer := dial(a, b, transport, nil)
		ids := map[string]*rdmacm.SyncID{}
		for _, addr := range []string{"10.0.0.2:1", "10.0.0.3:1", "0.0.0.0:2"} {
			id := must(rdmacm.CreateSyncID(rdmacm.TCP, b.dev))(t)
			defer id.Destroy()
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
		ok(t, nic.AddAddr("10.0.0.2/24")) // the connection is alive again, and Close finds it so
	})
}
