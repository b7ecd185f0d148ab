package rdmatransport_test

import (
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestListenFamilies: two listeners have one port, each for one version of IP (RDMA_OPTION_ID_AFONLY) and both transports, and get
// the requests of their own.
func TestListenFamilies(t *testing.T) {
	addrs := [2][2]string{{"10.0.0.1", "fd00::1"}, {"10.0.0.2", "fd00::2"}}
	lan := new(pipe.Switch)
	var sides [2]*station
	for i, a := range addrs {
		h := must(netstack.New(lan.Port(), netstack.Addr(a[0]+"/24"), netstack.Addr(a[1]+"/64")))(t)
		sides[i] = stationOf(t, h, netip.MustParseAddr(a[0]))
	}
	const port = "7471"
	both := &rdmacm.Config{Transports: []verbs.Transport{verbs.RoCEv2, verbs.IWARP}, AFOnly: true}
	four := must(rdmacm.Listen(sides[1].dev, "0.0.0.0:"+port, both))(t)
	defer four.Close()
	six := must(rdmacm.Listen(sides[1].dev, "[::]:"+port, both))(t)
	defer six.Close()
	for _, transport := range both.Transports {
		for to, l := range map[string]*rdmacm.Listener{"10.0.0.2:" + port: four, "[fd00::2]:" + port: six} {
			accepted := make(chan *rdmacm.Conn)
			go func() {
				c, err := l.Accept(t.Context())
				if err != nil {
					t.Error(err)
				}
				accepted <- c
			}()
			c := must(rdmacm.Dial(t.Context(), sides[0].dev, to, &rdmacm.Config{Transport: transport}))(t)
			if from := <-accepted; from != nil {
				if from.PeerAddr().Addr() != c.LocalAddr().Addr() || from.Transport() != transport {
					t.Errorf("%s over %v: accepted from %v over %v", to, transport, from.PeerAddr(), from.Transport())
				}
				ok(t, from.Close())
			}
			ok(t, c.Close())
		}
	}
}
