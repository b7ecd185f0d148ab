package iwarp_test

import (
	"context"
	"flag"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/iwarp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/responder"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	config "github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/stack/netstack"
)

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newEnv is a node of ours that answers, and the way to it, on a pipe.
func newEnv(t *testing.T, cfg config.Config) *iwarp.Env {
	t.Helper()
	lan := new(pipe.Switch)
	host := must(netstack.New(lan.Port(), netstack.Addr("10.0.0.1/24")))(t)
	dev := must(rdmatransport.Open(host, rdmatransport.IWARP(cfg)))(t)
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- responder.Serve(ctx, l, dev, "secret") }()
	port := lan.Port()
	own := must(netstack.New(port, netstack.Addr("10.0.0.2/24")))(t)
	c := must(control.Dial(l.Addr().String(), "secret", 30*time.Second))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		host.Close()
		own.Close()
	})
	return &iwarp.Env{Network: own, Control: c, Addr: netip.MustParseAddr("10.0.0.2"), Target: netip.MustParseAddr("10.0.0.1"), MSS: port.MTU() - 40, Wait: 20 * time.Second}
}

// once has TestOurs run each case as it is, and none with another outcome: a test takes rules out of the engine, and this must fail.
var once = flag.Bool("once", false, "TestOurs: no mutated replies, and no patience")

// TestOurs: our node keeps to each statement, as it is or set up as the case needs it. Then each case fails if anything that it
// compares is another, and if the message that it looks at last is lost.
func TestOurs(t *testing.T) {
	var cases [][]suite.Case // of each set-up
	for _, cfg := range []config.Config{{}, {NoCRC: true, Markers: true, Revision: 1}, {NoPeerToPeer: true}} {
		env := newEnv(t, cfg)
		if *once {
			env.Wait, env.Quiet = 10*time.Second, 20*time.Millisecond
		}
		cases = append(cases, iwarp.Cases(env))
	}
	mutations := 0
	for i, c := range cases[0] {
		t.Run(c.ID, func(t *testing.T) {
			r := c.Judge(nil)
			for _, other := range cases[1:] {
				if r.Verdict == suite.Skip {
					c = other[i]
					r = c.Judge(nil)
				}
			}
			if r.Verdict != suite.Pass {
				t.Fatalf("%s: %s: %s", c.Statement, r.Verdict, r.Reason)
			}
			if len(r.Checks) == 0 {
				t.Fatal("it compares nothing")
			}
			if *once {
				return
			}
			var all []suite.Mutation
			last := 0
			for i, check := range r.Checks {
				all = append(all, suite.Mutation{Check: check, Number: i + 1})
				last = max(last, check.Reply)
			}
			if last > 0 {
				all = append(all, suite.Mutation{Check: suite.Check{Reply: last}, Drop: true})
			}
			for _, m := range all {
				if r := c.Judge(&m); r.Verdict != suite.Fail {
					t.Errorf("%+v: %s", m, r.Verdict)
				}
				mutations++
			}
		})
	}
	t.Logf("%d cases, %d mutations", len(iwarp.Cases(nil)), mutations)
}

// TestDistinct: no two cases have the same ID or the same statement, and each has a source.
func TestDistinct(t *testing.T) {
	ids, statements := map[string]bool{}, map[string]bool{}
	for _, c := range iwarp.Cases(nil) {
		if ids[c.ID] || statements[c.Statement] || c.Source == "" || c.Statement == "" {
			t.Errorf("%s: %q, source %q", c.ID, c.Statement, c.Source)
		}
		ids[c.ID], statements[c.Statement] = true, true
	}
}

// TestWithoutEngines: the tester is not made of what it tests. Of our packages it knows links, a TCP, and the headers of the wire
// protocols.
func TestWithoutEngines(t *testing.T) {
	const module = "github.com/softrnic/softrnic/"
	out := must(exec.Command("go", "list", "-deps", ".", "../peer", "../suite", "../control").Output())(t)
	for dep := range strings.FieldsSeq(string(out)) {
		own, ok := strings.CutPrefix(dep, module)
		allowed := strings.HasPrefix(own, "link") || strings.HasPrefix(own, "stack") || own == "rdmatransport/roce/wire" || own == "rdmatransport/crc" ||
			own == "rdmatransport/internal/prefetch" ||
			strings.HasPrefix(own, "rdmatransport/iwarp/") || strings.HasPrefix(own, "cmd/softrnic/internal/conform/")
		if ok && !allowed {
			t.Errorf("the tester is linked with %s", own)
		}
	}
}
