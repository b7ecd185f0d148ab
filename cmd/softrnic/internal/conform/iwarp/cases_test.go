package iwarp_test

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/conformtest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/iwarp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	config "github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/stack/netstack"
)

// newEnv returns an environment whose target is our node, on a pipe.
func newEnv(t *testing.T, cfg config.Config) *iwarp.Env {
	t.Helper()
	lan := new(pipe.Switch)
	host := conformtest.Must(netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	dev := conformtest.Must(rdmatransport.Open(host, &rdmatransport.Config{IWARP: cfg}))(t)
	port := lan.Port()
	own := conformtest.Must(netstack.New(port, &netstack.Config{Addrs: []string{"10.0.0.2/24"}}))(t)
	c, end := conformtest.Connect(t, dev)
	wait, quiet := patience()
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
		host.Close()
		own.Close()
	})
	return &iwarp.Env{Network: own, Control: c, Addr: netip.MustParseAddr("10.0.0.2"), Target: netip.MustParseAddr("10.0.0.1"),
		MSS:  port.MTU() - 40,
		Wait: wait, Quiet: quiet}
}

// patience returns how long a case waits for a packet that must come and for one that must not
// come. The latter matters if a rule is removed from the engine. Time is real, as gVisor's TCP does
// not run in virtual time.
func patience() (wait, quiet time.Duration) {
	if *conformtest.Once {
		return 10 * time.Second, 20 * time.Millisecond
	}
	return 20 * time.Second, 0
}

// TestOurs: our node, set up as the case needs it, conforms to each statement. Each case then fails
// if any compared value is altered, or if the last message is lost.
func TestOurs(t *testing.T) {
	var mutations atomic.Int64
	all := iwarp.Cases(nil)
	t.Cleanup(func() { t.Logf("%d cases, %d mutations", len(all), mutations.Load()) })
	for i, c := range all {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			mutations.Add(int64(ours(t, i)))
		})
	}
}

func ours(t *testing.T, i int) (mutations int) {
	var c suite.Case
	r := suite.Result{Verdict: suite.Skip}
	for _, cfg := range []config.Config{{}, {NoCRC: true, Markers: true, Revision: 1}, {NoPeerToPeer: true}} {
		if r.Verdict == suite.Skip {
			c = iwarp.Cases(newEnv(t, cfg))[i]
			r = c.Judge(nil)
		}
	}
	if r.Verdict != suite.Pass {
		t.Fatalf("%s: %s: %s", c.Statement, r.Verdict, r.Reason)
	}
	return conformtest.Mutate(t, &r, func(m *suite.Mutation) error { return conformtest.Failed(c.Judge(m)) })
}

func TestDistinct(t *testing.T) { conformtest.Distinct(t, iwarp.Cases(nil)) }

// TestWithoutEngines checks that the tester imports only links, a TCP stack, IP's checksum, and the
// codecs of the wire protocols.
func TestWithoutEngines(t *testing.T) {
	codecs := []string{"internal/crc", "ddp", "mpa", "internal/prefetch", "rdmap", "wire"}
	conformtest.WithoutEngines(t, func(own string) bool {
		name, codec := strings.CutPrefix(own, "rdmatransport/")
		return strings.HasPrefix(own, "link") || strings.HasPrefix(own, "stack") ||
			codec && slices.Contains(codecs, name)
	})
}
