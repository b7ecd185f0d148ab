package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/status"
)

// With --loopback both sides are in this process, where messages can go two ways: in packets, as between machines, or
// direct, from memory to memory (see link.Shared). Two nodes on a switch made with pipe.FramesOnly exchange packets; two nodes on
// any other switch find each other and go direct. Two QPs of one node always go direct.

// oneNode reports whether --loopback connects two QPs of one node.
func (c *Command) oneNode() bool { return c.OneDevice || c.Link.Medium != "pipe" }

// ways says whether to measure what goes in packets, and what goes direct.
func (c *Command) ways() (packets, direct bool) {
	switch {
	case !c.Loopback:
		return true, false
	case c.oneNode():
		return false, true
	case c.Op == opConnect: // rdma_cm has no other way
		return true, false
	case c.Packets || c.Direct:
		return c.Packets, c.Direct
	}
	return true, c.Capture == "" && c.Impair == nil
}

// checkWays is the part of Validate for the flags that choose between packets and direct.
func (c *Command) checkWays() error {
	switch {
	case (c.Packets || c.Direct) && !c.Loopback:
		return errors.New("--packets and --direct are for --loopback: between programs all goes in packets")
	case c.OneDevice && !c.Loopback:
		return errors.New("--one-device is for --loopback: give that too")
	case !c.Loopback:
		return nil
	case c.Metrics != "":
		return errors.New("--metrics is of one node, and --loopback has several: leave it out")
	case c.oneNode() && c.Op == opConnect:
		return errors.New("connect rate of one node with itself is not measured: leave out --one-device and --link")
	case c.oneNode() && c.Packets:
		return errors.New("--packets: there are none between two QPs of one node: leave out --one-device and --link")
	case c.oneNode() && (c.Capture != "" || c.Impair != nil):
		return errors.New("--capture and --impair: nothing passes the link between two QPs of one node: leave out --one-device and --link")
	case c.Direct && (c.Capture != "" || c.Impair != nil):
		return errors.New("--direct: with --capture or --impair all goes in packets")
	case len(c.Transport) > 1 && (c.oneNode() || c.Direct):
		return errors.New("the direct way is no wire protocol: give one --transport, whose QPs go it")
	case c.Direct && c.Op == opConnect:
		return errors.New("--direct: connections are made with packets only")
	}
	return nil
}

// loopbackPair is both sides of --loopback, in packets or direct.
type loopbackPair struct {
	*session
	ending []func() error // in reverse
}

// add has softrnic top show a node, and close end it.
func (p *loopbackPair) add(n *node.Node) {
	stop := status.PublishNode(n, 0)
	p.ending = append(p.ending, func() error { stop(); return n.Close() })
}

// loopback measures with both sides in this process.
func (c *Command) loopback(ctx context.Context, e *cli.Env, report *report) (err error) {
	pairs := map[bool]*loopbackPair{} // by direct
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.close(err))
		}
	}()
	return c.measure(ctx, e, report, func(p *plan) (*session, error) {
		pair := pairs[p.Direct]
		if pair == nil {
			pair = &loopbackPair{}
			pairs[p.Direct] = pair
			if err := c.pair(ctx, e, p.Direct, pair); err != nil {
				return nil, err
			}
		}
		return pair.session, nil
	})
}

// pair makes a client that is connected to its server. p.close ends what it has made, also if it returns an error.
func (c *Command) pair(ctx context.Context, e *cli.Env, direct bool, p *loopbackPair) error {
	var opts []pipe.Option
	if !direct {
		opts = append(opts, pipe.FramesOnly())
	}
	on, err := e.OnPipe(c.MTU, opts...)
	if err != nil {
		return err
	}
	clientFlags := c.Flags
	if len(c.Addr) == 0 {
		clientFlags.Addr = []node.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.1/24")}}
	}
	client, err := clientFlags.Open(on)
	if err != nil {
		return err
	}
	p.add(client)
	server, at := client, clientFlags.Addr[0]
	if !c.oneNode() {
		if at, err = neighbour(at); err != nil {
			return err
		}
		serverFlags := node.Flags{Link: c.Link, Addr: []node.CIDR{at}, Congestion: c.Congestion, ByDelay: c.ByDelay, Window: c.Window, Selective: c.Selective,
			LongFPDUs: c.LongFPDUs, MPA: c.MPA, Counters: c.Counters, Trace: c.Trace, LinkFlags: node.LinkFlags{MTU: c.MTU, Log: c.Log}}
		if server, err = serverFlags.Open(on); err != nil {
			return err
		}
		p.add(server)
	}
	l, err := server.Host.ListenStream(netip.AddrPortFrom(at.Addr(), c.Port))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { served <- serve(ctx, server, l, nil) }()
	p.ending = append(p.ending, func() error {
		defer cancel()
		if p.session == nil {
			_ = l.Close() // no client connects
		}
		return <-served
	})
	p.session, err = dial(ctx, client, at.Addr(), c.Port)
	return err
}

// close ends all that pair has made. failed is the error that made the caller end, or nil; if there is one, errors of the server
// follow from it and are not returned.
func (p *loopbackPair) close(failed error) error {
	var errs []error
	if p.session != nil {
		errs = append(errs, p.session.Close())
	}
	for i := len(p.ending) - 1; i >= 0; i-- {
		errs = append(errs, p.ending[i]())
	}
	if failed != nil {
		return nil
	}
	return errors.Join(errs...)
}

// neighbour is an address of the same network for another host.
func neighbour(c node.CIDR) (node.CIDR, error) {
	for _, a := range []netip.Addr{c.Addr().Next(), c.Addr().Prev()} {
		p := netip.PrefixFrom(a, c.Bits())
		if a.IsValid() && c.Contains(a) && !edge(p) {
			return node.CIDR{Prefix: p}, nil
		}
	}
	return node.CIDR{}, fmt.Errorf("--addr %v: the network has no address for the other node: give a shorter prefix, such as /24", c.Prefix)
}

// edge reports whether p is the first address of an IPv4 network, which is the network's own, or the last, its broadcast address.
func edge(p netip.Prefix) bool {
	return p.Addr().Is4() && p.Bits() < 31 && (p.Addr() == p.Masked().Addr() || !p.Contains(p.Addr().Next()))
}
