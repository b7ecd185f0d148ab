// Package pingpong is `softrnic pingpong`: the ibv_*_pingpong programs of libibverbs, with their
// exchange over TCP.
package pingpong

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// Command groups the ping-pongs by transport service.
type Command struct {
	RC   rc          `cmd:"" name:"rc" set:"size=4096" help:"Over a reliable connection, like ibv_rc_pingpong."`
	UC   uc          `cmd:"" name:"uc" set:"size=4096" help:"Over an unreliable connection, like ibv_uc_pingpong."`
	UD   ud          `cmd:"" name:"ud" set:"size=2048" help:"With datagrams, like ibv_ud_pingpong."`
	SRQ  srq         `cmd:"" name:"srq" set:"size=4096" help:"Over connections that share a receive queue, like ibv_srq_pingpong."`
	XSRQ xsrqCommand `cmd:"" name:"xsrq" help:"Over XRC, whose messages name the receive queue, like ibv_xsrq_pingpong."`
}

// flags are the options and defaults that all ibv_*_pingpong share.
type flags struct {
	Server string `arg:"" optional:"" help:"Address or name of the server. Without it, the command is the server and waits for a client."`

	Port    uint16 `short:"p" type:"port" default:"18515" help:"TCP port on which both sides exchange their QP numbers. Default: 18515."`
	IBPort  uint8  `short:"i" name:"ib-port" default:"1" help:"Port of the RDMA device. Default: 1."`
	Size    int    `short:"s" default:"${size}" placeholder:"BYTES" help:"Message size. Default: ${size}."`
	RxDepth int    `short:"r" name:"rx-depth" default:"500" help:"Receives to post at a time. Default: 500."`
	Iters   int    `short:"n" default:"1000" help:"Exchanges. Default: 1000."`
	SL      uint8  `short:"l" name:"sl" default:"0" help:"Service level. Default: 0."`
	Events  bool   `short:"e" help:"Sleep until a completion event instead of polling."`
	GIDIdx  *uint8 `short:"g" name:"gid-idx" placeholder:"INDEX" help:"Index of the GID; those of RoCE v1 start at 128. Default: the first GID of the peer's address family."`
	Chk     bool   `short:"c" help:"Validate the received data; the client needs this flag too."`

	running.Flags
}

// pathMTU is the option of the connected ping-pongs.
type pathMTU struct {
	PathMTU int `short:"m" name:"path-mtu" default:"1024" enum:"256,512,1024,2048,4096" placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096; the same on both sides. Default: 1024."`
}

const pathMTUHelp = "\n\nThe path MTU must fit both links: 4096 needs an MTU of about 4200."

// help returns the help of the ping-pong of a service. gid has the options with which the original
// program selects a device and GID.
func help(service, what, gid string) string {
	return fmt.Sprintf(`Server and client send %[1]s back and forth. Either may be the real ibv_%[2]s_pingpong (from
ibverbs-utils), which needs -g with the index of a GID of the same address family.

  softrnic pingpong %[2]s --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24         here
  ibv_%[2]s_pingpong %-60[3]son the Linux machine`, what, service, gid+" 10.0.0.9")
}

// rxeGID has the options for rxe in help.
const rxeGID = "-d rxe0 -g 1"

// Validate implements kong's check after parsing.
func (c *flags) Validate() error {
	for _, f := range []struct {
		flag string
		v    int
		most int64
	}{{"size", c.Size, 1 << 30}, {"rx-depth", c.RxDepth, 1 << 20}, {"iters", c.Iters, 1 << 40}} {
		if f.v < 1 || int64(f.v) > f.most {
			return fmt.Errorf("--%s %d: must be 1 to %d", f.flag, f.v, f.most)
		}
	}
	return nil
}

// run runs the ping-pong.
func (c *flags) run(ctx context.Context, e *cli.Env, k kind) error {
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error { return c.pingpong(ctx, e, n, k) })
}

func (c *flags) pingpong(ctx context.Context, e *cli.Env, n *node.Node, k kind) (err error) {
	if c.Server == "" {
		c.HintWithoutAddr(n)
	}
	p, err := newPinger(n, c, k)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()

	if err := p.exchange(ctx, e); err != nil {
		return err
	}
	start := time.Now()
	if err := p.play(ctx); err != nil {
		return err
	}
	usec := float64(time.Since(start).Nanoseconds()) / 1e3
	bytes := int64(c.Size) * int64(c.Iters) * 2
	fmt.Fprintf(e.Text(), "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec/1e6, float64(bytes)*8/usec)
	fmt.Fprintf(e.Text(), "%d iters in %.2f seconds = %.2f usec/iter\n", c.Iters, usec/1e6, usec/float64(c.Iters))
	if c.Chk {
		if err := p.destroyQPs(); err != nil { // the peer may still be sending
			return err
		}
		return checkPages(p.message(p.first), os.Getpagesize(), p.filler)
	}
	return nil
}

// exchange exchanges addresses with the peer and connects the QPs.
func (p *pinger) exchange(ctx context.Context, e *cli.Env) error {
	say := func(whose string, dests []dest) {
		for i := range p.qps {
			fmt.Fprintf(e.Text(), "  %-15s %v\n", whose+" address:", dests[i])
		}
	}
	if p.Server == "" {
		if err := p.choose(netip.Addr{}); err != nil {
			return err
		}
		// A client may connect as soon as this is printed.
		l, err := p.node.ListenStream(netip.AddrPortFrom(netip.Addr{}, p.Port))
		if err != nil {
			return err
		}
		say("local", p.local)
		return serverExchange(ctx, l, len(p.local), func(remote []dest) ([]dest, error) {
			if remote[0].gid.Addr().Is4() != p.local[0].gid.Addr().Is4() && p.GIDIdx == nil {
				if err := p.choose(remote[0].gid.Addr()); err != nil {
					return nil, err
				}
				say("local", p.local)
			}
			say("remote", remote)
			return p.local, p.connect(remote)
		})
	}
	server, err := p.node.Resolve(ctx, p.Server)
	if err != nil {
		return err
	}
	if err := p.choose(server); err != nil {
		return err
	}
	say("local", p.local)
	remote, err := clientExchange(ctx, p.node, netip.AddrPortFrom(server, p.Port), p.local)
	if err != nil {
		return err
	}
	say("remote", remote)
	return p.connect(remote)
}

// choose sets the local addresses for a peer at to.
func (p *pinger) choose(to netip.Addr) (err error) {
	if p.gid, err = chosenGID(p.node, p.IBPort, p.GIDIdx, to); err != nil {
		return err
	}
	for i, qp := range p.qps {
		p.local[i] = dest{qpn: qp.Num(), psn: rand.Uint32N(1 << 24), gid: p.gid.GID}
	}
	return nil
}

// chosenGID returns the GID with an index, or the GID for a peer at to if index is nil.
func chosenGID(n *node.Node, port uint8, index *uint8, to netip.Addr) (verbs.GIDEntry, error) {
	if index != nil {
		return n.Dev.QueryGID(port, int(*index))
	}
	return n.GID(port, to)
}

// play sends the message back and forth, --iters times in each direction on all QPs together.
func (p *pinger) play(ctx context.Context) error {
	if p.Server != "" && p.Chk {
		markPages(p.message(0), os.Getpagesize())
	}
	pending := map[uint32]int{} // pending completions of each QP
	for i, qp := range p.qps {
		pending[qp.Num()] = pingRecv
		if p.Server == "" {
			continue // the client sends first
		}
		if err := p.postSend(i, p.Size); err != nil {
			return err
		}
		pending[qp.Num()] |= pingSend
	}
	index := make(map[uint32]int, len(p.qps))
	for i, qp := range p.qps {
		index[qp.Num()] = i
	}
	var wcs [16]verbs.WC
	receives := p.RxDepth
	for sent, received := 0, 0; sent < p.Iters || received < p.Iters; {
		n, err := p.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			qpn := wcs[i].QPNum
			kind := int(wcs[i].WRID & pingKinds)
			switch pending[qpn] &^= kind; kind {
			case pingSend:
				sent++
			case pingRecv:
				received++
				p.received(&wcs[i])
				if receives--; receives <= len(p.qps) {
					if err := p.postRecvs(p.RxDepth - receives); err != nil {
						return err
					}
					receives = p.RxDepth
				}
			}
			if sent < p.Iters && pending[qpn] == 0 {
				if err := p.postSend(index[qpn], p.Size); err != nil {
					return err
				}
				pending[qpn] = pingRecv | pingSend
			}
		}
	}
	return nil
}

// filler is the byte in the buffers of all ping-pongs except ibv_srq_pingpong.
const filler = 0x7b

// markPages sets the first byte of each page to 0, as a client with -c does before it sends.
func markPages(buf []byte, pageSize int) {
	for i := 0; i < len(buf); i += pageSize {
		buf[i] = 0
	}
}

// checkPages checks that each page is as markPages and the filler left it.
func checkPages(buf []byte, pageSize int, filler byte) error {
	for i, b := range buf {
		want := filler
		if i%pageSize == 0 {
			want = 0
		}
		if b != want {
			return fmt.Errorf("invalid data in page %d: byte %d is %#02x, want %#02x", i/pageSize, i, b, want)
		}
	}
	return nil
}
