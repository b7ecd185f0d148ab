package rocev2_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/conformtest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/rocev2"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/netstack"
)

// newEnv returns an environment whose target is our node, on a pipe.
func newEnv(t *testing.T) *rocev2.Env {
	t.Helper()
	lan := new(pipe.Switch)
	host := conformtest.Must(netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	dev := conformtest.Must(rdmatransport.Open(host, &rdmatransport.Config{RoCE: roce.Config{DCQCN: &roce.DCQCN{}}}))(t)
	c, end := conformtest.Connect(t, dev)
	p := conformtest.Must(peer.New(lan.Port(), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"), nil))(t)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
		host.Close()
		p.Close()
	})
	if err := p.Find(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	quiet := time.Millisecond // shorter than any retransmission timeout
	if *conformtest.Once {
		quiet = 20 * time.Millisecond
	}
	return &rocev2.Env{Peer: p, Control: c, Wait: 20 * time.Second, Quiet: quiet}
}

// TestOurs: our node conforms to each statement. Each case then fails if any compared value is
// altered, or if the last reply is lost. Time is virtual.
func TestOurs(t *testing.T) {
	var mutations atomic.Int64
	all := rocev2.Cases(nil)
	t.Cleanup(func() { t.Logf("%d cases, %d mutations", len(all), mutations.Load()) })
	for i, c := range all {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { mutations.Add(int64(ours(t, i))) })
		})
	}
}

func ours(t *testing.T, i int) (mutations int) {
	env := newEnv(t)
	c := rocev2.Cases(env)[i]
	r := c.Judge(nil)
	if r.Verdict != suite.Pass {
		t.Fatalf("%s: %s: %s", c.Statement, r.Verdict, r.Reason)
	}
	return conformtest.Mutate(t, &r, func(m *suite.Mutation) error {
		r := c.Judge(m)
		if m.Drop && r.Verdict == suite.Skip {
			return nil // this case cannot tell a lost reply from a target that need not answer
		}
		return conformtest.Failed(r)
	})
}

func TestDistinct(t *testing.T) { conformtest.Distinct(t, rocev2.Cases(nil)) }

// TestWithoutEngines: of our packages, the tester imports only links, IP's checksum, and the
// transports' headers.
func TestWithoutEngines(t *testing.T) {
	conformtest.WithoutEngines(t, func(own string) bool {
		return strings.HasPrefix(own, "link") || own == "rdmatransport/wire" || own == "rdmatransport/internal/crc" ||
			own == "rdmatransport/mad" || own == "link/checksum"
	})
}
