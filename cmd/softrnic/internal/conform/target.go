package conform

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/iwarp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/rocev2"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack/netstack"
)

// tester is this end of the link: raw packets for RoCEv2, a separate TCP for iWARP.
type tester struct {
	find  func(wait time.Duration) error // resolves the target on the link
	prove func(*control.Client) error    // fails if the target cannot do what each case begins with
	cases func(*control.Client) []suite.Case
	close func() error
}

// newTester creates a tester on a link. It owns the link if there is no error.
func (c *Command) newTester(l link.Link, packets *recorder) (*tester, error) {
	if c.Transport == "iwarp" {
		return c.newTCPTester(&recordedLink{Link: l, target: c.Target, to: packets})
	}
	p, err := peer.New(l, c.Addr, c.Target, packets.add)
	if err != nil {
		return nil, err
	}
	env := func(ctl *control.Client) *rocev2.Env {
		return &rocev2.Env{Peer: p, Control: ctl, Wait: c.Wait, Quiet: c.Quiet}
	}
	return &tester{
		find: p.Find, close: p.Close,
		prove: func(ctl *control.Client) error { return env(ctl).Prove() },
		cases: func(ctl *control.Client) []suite.Case { return rocev2.Cases(env(ctl)) },
	}, nil
}

func (c *Command) newTCPTester(l link.Link) (*tester, error) {
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{netip.PrefixFrom(c.Addr, commonBits(c.Addr, c.Target)).String()}})
	if err != nil {
		return nil, err
	}
	env := func(ctl *control.Client) *iwarp.Env {
		return &iwarp.Env{Network: host, Addr: c.Addr, Target: c.Target, MSS: l.MTU() - 40, Control: ctl, Wait: c.Wait, Quiet: c.Quiet}
	}
	return &tester{
		close: func() error { host.Close(); return nil },
		find: func(wait time.Duration) error {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			if err := host.NICs()[0].Resolve(ctx, c.Addr, c.Target); err != nil {
				return fmt.Errorf("%v does not answer ARP requests of %v on %s: %w", c.Target, c.Addr, l.Name(), err)
			}
			return nil
		},
		prove: func(ctl *control.Client) error { return env(ctl).Prove() },
		cases: func(ctl *control.Client) []suite.Case { return iwarp.Cases(env(ctl)) },
	}, nil
}

// commonBits returns the prefix length of a subnet with both addresses, at most 24, in which
// neither is the broadcast address.
func commonBits(a, b netip.Addr) int {
	for n := 24; n > 0; n-- {
		if netip.PrefixFrom(a, n).Contains(b) {
			return n
		}
	}
	return 0
}
