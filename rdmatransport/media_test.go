package rdmatransport_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// medium is a stack on a link.
type medium struct{ stacktest.Medium }

// direct copies messages from memory to memory.
var direct = medium{stacktest.Direct}

// TestMedia checks that tests that do not run over the media are in the list, with a reason.
func TestMedia(t *testing.T) { stacktest.CheckList(t, "overMedia", "overAll") }

// overMedia runs a test over the selected media, in parallel with other tests.
func overMedia(t *testing.T, f func(t *testing.T, m medium)) {
	stacktest.Over(t, func(t *testing.T, m stacktest.Medium) { f(t, medium{m}) })
}

// overAll runs a test over the selected media and both transports, in parallel with other tests.
func overAll(t *testing.T, f func(t *testing.T, m medium, transport verbs.Transport)) {
	overMedia(t, func(t *testing.T, m medium) {
		both(t, func(t *testing.T, transport verbs.Transport) { f(t, m, transport) })
	})
}

// stations creates two stations on a network of their own, until the end of the test.
func (m medium) stations(t *testing.T, cfg *rdmatransport.Config) (a, b *station) {
	t.Helper()
	hostA, hostB := m.hosts(t)
	return stationOf(t, hostA.Host, hostA.Addr, cfg), stationOf(t, hostB.Host, hostB.Addr, cfg)
}

// hosts creates two hosts on a network of their own.
func (m medium) hosts(t *testing.T) (a, b stacktest.End) {
	t.Helper()
	return m.Hosts(t)
}

func stationOf(t testing.TB, h stacktest.Host, addr netip.Addr, cfg *rdmatransport.Config) *station {
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

// settle orders this goroutine's accesses to memory with those of a peer through qp, before and
// after. The race detector does not see that data over the kernel or shared memory was sent before
// it was received.
func settle(t *testing.T, qp *verbs.QP) {
	t.Helper()
	if _, _, err := qp.Query(); err != nil { // takes the QP's lock, as reception does
		t.Fatal(err)
	}
}

// eventually reports whether a condition becomes true within twenty seconds.
func eventually(is func() bool) bool {
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
