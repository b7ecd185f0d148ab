package rdmatransport_test

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestListenFamilies checks two listeners with one port, one for each IP version
// (RDMA_OPTION_ID_AFONLY) and both transports. Each gets the requests of its version.
func TestListenFamilies(t *testing.T) { overMedia(t, listenFamilies) }

func listenFamilies(t *testing.T, m medium) {
	hostA, hostB := m.hosts(t)
	sides := [2]*station{stationOf(t, hostA.Host, hostA.Addr, nil), stationOf(t, hostB.Host, hostB.Addr, nil)}
	const port = "7471"
	both := &rdmacm.Config{Transports: []verbs.Transport{verbs.RoCEv2, verbs.IWARP}, AFOnly: true}
	four := must(rdmacm.Listen(sides[1].dev, "0.0.0.0:"+port, both))(t)
	defer four.Close()
	six := must(rdmacm.Listen(sides[1].dev, "[::]:"+port, both))(t)
	defer six.Close()
	for _, transport := range both.Transports {
		for to, l := range map[string]*rdmacm.Listener{hostB.Addr.String() + ":" + port: four,
			"[" + hostB.Addr6.String() + "]:" + port: six} {
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
