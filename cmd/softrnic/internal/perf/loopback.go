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

// With --loopback both sides are in this process. Messages can take two paths: in packets, as
// between machines, or direct, from memory to memory (see link.Shared). Two nodes on a switch with
// pipe.FramesOnly exchange packets. Two nodes on any other switch use the direct path, as do two
// QPs of one node.

// oneNode reports whether --loopback connects two QPs of one node.
func (c *Command) oneNode() bool { return c.OneDevice || c.Medium() != "pipe" }

// ways reports whether to measure messages in packets and on the direct path.
func (c *Command) ways() (packets, direct bool) {
	switch {
	case !c.Loopback:
		return true, false
	case c.oneNode():
		return false, true
	case c.Op == opConnect: // rdma_cm always uses packets
		return true, false
	case c.Packets || c.Direct:
		return c.Packets, c.Direct
	}
	return true, c.Capture == "" && c.Impair == nil
}

// checkWays returns the part of Validate for the flags that choose between packets and the direct
// path.
func (c *Command) checkWays() error {
	switch {
	case (c.Packets || c.Direct) && !c.Loopback:
		return errors.New("--packets and --direct need --loopback: programs exchange packets only")
	case c.OneDevice && !c.Loopback:
		return errors.New("--one-device needs --loopback")
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
		return errors.New("the direct path is not a wire protocol: use one --transport, that of its QPs")
	case c.Direct && c.Op == opConnect:
		return errors.New("--direct: connections are made with packets only")
	}
	return nil
}

// loopbackPair has both sides of --loopback, in packets or direct.
type loopbackPair struct {
	*session
	ending []func() error // called in reverse order
}

// add publishes a node for softrnic top. close ends it.
func (p *loopbackPair) add(n *node.Node) {
	stop := status.PublishNode(n, 0, false)
	p.ending = append(p.ending, func() error { stop(); return n.Close() })
}

// loopback measures with both sides in this process.
func (c *Command) loopback(ctx context.Context, e *cli.Env, report *report) (err error) {
	pairs := map[bool]*loopbackPair{} // keyed by direct
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

// pair creates a client connected to its server. p.close ends them, even after an error.
func (c *Command) pair(ctx context.Context, e *cli.Env, direct bool, p *loopbackPair) error {
	lan := pipe.Config{MTU: c.MTU}
	if !direct {
		lan.FramesOnly = true
	}
	on, err := e.OnPipe(&lan)
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
		serverFlags := node.Flags{Link: c.Link, Addr: []node.CIDR{at}, Congestion: c.Congestion, ByDelay: c.ByDelay, Window: c.Window,
			Selective: c.Selective, RxeFlush: c.RxeFlush,
			LongFPDUs: c.LongFPDUs, MPA: c.MPA, Counters: c.Counters, Trace: c.Trace, LinkFlags: node.LinkFlags{MTU: c.MTU, Log: c.Log}}
		if server, err = serverFlags.Open(on); err != nil {
			return err
		}
		p.add(server)
	}
	l, err := server.ListenStream(netip.AddrPortFrom(at.Addr(), c.Port))
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

// close ends the client and server of pair. failed is the caller's error or nil. If there is one,
// it causes errors of the server, which are not returned.
func (p *loopbackPair) close(failed error) error {
	errs := []error{cli.Close(p.session)}
	for i := len(p.ending) - 1; i >= 0; i-- {
		errs = append(errs, p.ending[i]())
	}
	if failed != nil {
		return nil
	}
	return errors.Join(errs...)
}

// neighbour returns the address of another host in the same network.
func neighbour(c node.CIDR) (node.CIDR, error) {
	for _, a := range []netip.Addr{c.Addr().Next(), c.Addr().Prev()} {
		p := netip.PrefixFrom(a, c.Bits())
		if a.IsValid() && c.Contains(a) && !edge(p) {
			return node.CIDR{Prefix: p}, nil
		}
	}
	return node.CIDR{}, fmt.Errorf("--addr %v: the network has no address for the other node: use a shorter prefix, such as /24", c.Prefix)
}

// edge reports whether p is the network address or the broadcast address of an IPv4 network.
func edge(p netip.Prefix) bool {
	return p.Addr().Is4() && p.Bits() < 31 && (p.Addr() == p.Masked().Addr() || !p.Contains(p.Addr().Next()))
}
