package rdmacm_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestCloseDuringGetRequest closes a listener while requests arrive and are taken. Close must
// succeed and end the waiting GetRequest, at whatever point of GetRequest it runs. The test runs in
// real time, so that the scheduler chooses this point.
func TestCloseDuringGetRequest(t *testing.T) {
	const rounds, clients = 10_000, 4
	a, b, _ := pair(t)
	from := b.Provider().(rdmacm.Provider)
	route, err := from.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr(v4A))
	must(t, err)
	taken := 0
	for round := range rounds {
		l, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort(v4A+":7471")))
		must(t, l.Listen(clients))
		first := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			for n := 0; ; n++ {
				r, err := l.GetRequest(context.Background())
				if err != nil {
					ended <- err
					return
				}
				if taken++; n == 0 {
					close(first)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		var conns []rdmacm.ProviderConn
		for range clients {
			c, err := from.Connect(&rdmacm.ConnectAttr{Route: route, PortSpace: rdmacm.TCP, PeerPort: 7471},
				func(*rdmacm.ConnEvent) {})
			must(t, err)
			conns = append(conns, c)
		}
		<-first
		if err := l.Close(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		select {
		case err := <-ended:
			wantErr(t, err, verbs.ErrClosed)
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: GetRequest still waits after Close", round)
		}
		for _, c := range conns {
			c.Close()
		}
	}
	t.Logf("%d of %d requests were taken", taken, rounds*clients)
}
