package rdmatransport_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/internal/stack/stacktest"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// medium is a stack and what is below it.
type medium struct{ stacktest.Medium }

// direct has messages copied from memory to memory.
var direct = medium{stacktest.Direct}

// TestMedia: what does not run over the media is in the list, with a reason.
func TestMedia(t *testing.T) { stacktest.CheckList(t, "overMedia", "overAll") }

// overMedia runs a test over the media of the run, beside other tests.
func overMedia(t *testing.T, f func(t *testing.T, m medium)) {
	stacktest.Over(t, func(t *testing.T, m stacktest.Medium) { f(t, medium{m}) })
}

// overAll runs a test over the media of the run and with both transports, beside other tests.
func overAll(t *testing.T, f func(t *testing.T, m medium, transport verbs.Transport)) {
	overMedia(t, func(t *testing.T, m medium) {
		both(t, func(t *testing.T, transport verbs.Transport) { f(t, m, transport) })
	})
}

// stations makes two stations on a network of their own, until the end of the test.
func (m medium) stations(t *testing.T, cfg *rdmatransport.Config) (a, b *station) {
	t.Helper()
	hostA, hostB := m.hosts(t)
	return stationOf(t, hostA.Host, hostA.Addr, cfg), stationOf(t, hostB.Host, hostB.Addr, cfg)
}

// hosts makes two hosts on a network of their own.
func (m medium) hosts(t *testing.T) (a, b stacktest.End) {
	t.Helper()
	return m.Hosts(t, rdmatransport.NewClassifier)
}

func stationOf(t *testing.T, h stacktest.Host, addr netip.Addr, cfg *rdmatransport.Config) *station {
	t.Helper()
	s := &station{t: t, addr: addr, network: h}
	s.host, _ = h.(*netstack.Host)
	s.dev = must(rdmatransport.Open(h, cfg))(t)
	s.pd = must(s.dev.AllocPD())(t)
	t.Cleanup(func() {
		s.pd.Close()
		s.dev.Close()
		h.Close()
	})
	return s
}

// settle orders what this goroutine does with memory that a peer reaches through qp, before and
// after: the race detector does not see that what came through the kernel, or through shared
// memory, was sent before it came.
func settle(t *testing.T, qp *verbs.QP) {
	t.Helper()
	if _, _, err := qp.Query(0); err != nil { // takes the QP's lock, as reception does
		t.Fatal(err)
	}
}

// eventually tells whether a condition comes true within twenty seconds.
func eventually(is func() bool) bool {
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
