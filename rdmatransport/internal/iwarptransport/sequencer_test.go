package iwarptransport_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestOrderOfRequests checks that connections which a program requests one after another are
// reported to the peer in that order, repeatedly. Time is virtual: on a busy machine, a late one
// would be overtaken.
func TestOrderOfRequests(t *testing.T) { synctest.Test(t, testOrderOfRequests) }

func testOrderOfRequests(t *testing.T) {
	const conns, rounds = 16, 20
	lan := &network{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nodes := [2]*node{newNode(t, lan, nodeAddr, 4096, iwarp.Config{}), newNode(t, lan, peerAddr, 4096, iwarp.Config{})}
	var ch [2]*rdmacm.EventChannel
	for i, n := range nodes {
		var err error
		ch[i], err = rdmacm.CreateEventChannel(n.dev)
		must(t, err)
	}
	take := func(i int, want rdmacm.EventType) *rdmacm.Event {
		t.Helper()
		e, err := ch[i].GetEvent(ctx)
		must(t, err)
		if e.Type != want {
			t.Fatalf("%v, want %v", e.Type, want)
		}
		must(t, e.Ack())
		return e
	}
	at := netip.MustParseAddrPort(nodeAddr + nodePort)
	l, err := ch[0].CreateID(rdmacm.TCP, nil)
	must(t, err)
	must(t, l.SetTransports(verbs.IWARP))
	must(t, l.Bind(at))
	must(t, l.Listen(conns))
	for range rounds {
		var ids []*rdmacm.ID
		var qps []*dialledID
		for range conns {
			id, err := ch[1].CreateID(rdmacm.TCP, nil)
			must(t, err)
			must(t, id.SetTransports(verbs.IWARP))
			must(t, id.ResolveAddr(netip.AddrPort{}, at, time.Second))
			take(1, rdmacm.AddrResolved)
			must(t, id.ResolveRoute())
			take(1, rdmacm.RouteResolved)
			ids = append(ids, id)
		}
		for i, id := range ids {
			x := &dialledID{}
			must(t, x.createQP(nodes[1]))
			must(t, id.UseQP(x.qp))
			qps = append(qps, x)
			must(t, id.Connect(&rdmacm.ConnParam{PrivateData: []byte{byte(i)}}))
		}
		var came []byte
		for range conns {
			e := take(0, rdmacm.ConnectRequest)
			came = append(came, e.Param.PrivateData[0])
			must(t, e.ID.Reject(nil))
			must(t, e.ID.Close())
		}
		for i, c := range came {
			if int(c) != i {
				t.Fatal(fmt.Sprint("they arrived as ", came))
			}
		}
		for range conns {
			take(1, rdmacm.Rejected)
		}
		for i, id := range ids {
			must(t, id.Close())
			must(t, qps[i].qp.Close())
		}
	}
	must(t, l.Close())
	for i := range ch {
		must(t, ch[i].Close())
	}
}
