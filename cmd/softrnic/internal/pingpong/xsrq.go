package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// xsrqCommand is ibv_xsrq_pingpong.
type xsrqCommand struct {
	Server string `arg:"" optional:"" help:"Address or name of the server. Without it, the command is the server and waits for clients."`

	Port     uint16 `short:"p" type:"port" default:"18515" help:"TCP port on which both sides exchange their QP numbers. Default: 18515."`
	IBPort   uint8  `short:"i" name:"ib-port" default:"1" help:"Port of the RDMA device. Default: 1."`
	Size     int    `short:"s" default:"4096" placeholder:"BYTES" help:"Message size. Default: 4096."`
	Clients  int    `short:"c" default:"1" help:"Number of clients that the server waits for. Default: 1."`
	NumTests int    `short:"n" name:"num_tests" default:"5" help:"Exchanges with each client. Default: 5."`
	SL       uint8  `short:"l" name:"sl" default:"0" help:"Service level. Default: 0."`
	Events   bool   `short:"e" help:"Sleep until a completion event instead of polling."`
	GIDIdx   *uint8 `short:"g" name:"gid-idx" placeholder:"INDEX" help:"Index of the GID; those of RoCE v1 start at 128. Default: the first GID of the peer's address family."`

	pathMTU
	running.Flags
}

// Help implements kong.HelpProvider.
func (*xsrqCommand) Help() string {
	return help("xsrq", "a message", "-d mlx5_0 -g 3") + `

rxe does not support XRC, so the peer needs another device. The server sends to a client's SRQ through the QPs of all
clients in turn. Several clients must therefore be on one device, and share its XRC domain.` + pathMTUHelp
}

// Validate implements kong's check after parsing.
func (c *xsrqCommand) Validate() error {
	for _, f := range []struct {
		flag    string
		v, most int
	}{{"size", c.Size, 1 << 30}, {"clients", c.Clients, 256}, {"num_tests", c.NumTests, 1 << 30}} {
		if f.v < 1 || f.v > f.most {
			return fmt.Errorf("--%s %d: must be 1 to %d", f.flag, f.v, f.most)
		}
	}
	if c.Server != "" {
		c.Clients = 1
	}
	if most := 1 << 30 / (c.Clients + 1); c.Size > most {
		return fmt.Errorf("--size %d: must be at most %d with --clients %d: each receive has a buffer of its own", c.Size, most, c.Clients)
	}
	return nil
}

// Run runs the ping-pong.
func (c *xsrqCommand) Run(ctx context.Context, e *cli.Env) error {
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error { return c.play(ctx, e, n) })
}

func (c *xsrqCommand) play(ctx context.Context, e *cli.Env, n *node.Node) (err error) {
	if c.Server == "" {
		c.HintWithoutAddr(n)
	}
	x, err := newXSRQ(n, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	defer context.AfterFunc(ctx, x.hangUp)()

	exchange := x.acceptClients
	if c.Server != "" {
		exchange = x.connectServer
	}
	for _, step := range []func(context.Context, *cli.Env) error{exchange, x.play, x.finish} {
		if err := step(ctx, e); err != nil {
			return node.Cause(ctx, err)
		}
	}
	fmt.Fprintln(e.Text(), "success")
	return nil
}

// The programs exchange the addresses of their QPs over TCP. A program that has finished sends END,
// and keeps its QPs until it has received END: the server sends to one client through the QPs of
// another.
//
//	client                                         server
//	  xrcDest ────────────────────────────────────►
//	  ◄──────────────────────────────────── xrcDest
//	each connects its QPs to that: the server then serves the next client, and sends when it has all
//	  "END" ──────────────────────────────────────►
//	  ◄──────────────────────────────────────── "END"    to all, when all have said it
//
// Each message is text with its terminating NUL.

const xrcDestLen = len("0000:000000:000000:000000:000000:00000000000000000000000000000000\x00")

const xrcEnd = "END\x00"

// xrcDest has the numbers of an XRC_RECV QP, an XRC_SEND QP and an XRC SRQ, and their GID.
type xrcDest struct {
	lid              uint16
	recvQPN, sendQPN uint32
	psn              uint32 // the first PSN of sendQPN
	srqn             uint32
	gid              verbs.GID
}

// String formats an xrcDest as ibv_xsrq_pingpong prints it.
func (d xrcDest) String() string {
	return fmt.Sprintf("LID %04x, QPN RECV %06x SEND %06x, PSN %06x, SRQN %06x, GID %s", d.lid, d.recvQPN, d.sendQPN, d.psn, d.srqn,
		netip.AddrFrom16(d.gid))
}

func (d xrcDest) encode() []byte {
	return fmt.Appendf(make([]byte, 0, xrcDestLen), "%04x:%06x:%06x:%06x:%06x:%x\x00", d.lid, d.recvQPN, d.sendQPN, d.psn, d.srqn, d.gid[:])
}

func parseXRCDest(b []byte) (xrcDest, error) {
	var n [4]uint32
	lid, gid, err := parseFields(b, xrcDestLen, n[:])
	if err != nil {
		return xrcDest{}, err
	}
	return xrcDest{lid: lid, recvQPN: n[0], sendQPN: n[1], psn: n[2], srqn: n[3], gid: gid}, nil
}

func readXRCDest(r io.Reader) (xrcDest, error) {
	b := make([]byte, xrcDestLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return xrcDest{}, fmt.Errorf("read the peer's address: %w", err)
	}
	return parseXRCDest(b)
}

// connectServer exchanges addresses with the server and connects to it.
func (x *xsrq) connectServer(ctx context.Context, e *cli.Env) error {
	server, err := x.node.Resolve(ctx, x.Server)
	if err != nil {
		return err
	}
	conn, err := x.node.Host.DialStream(ctx, netip.AddrPort{}, netip.AddrPortFrom(server, x.Port))
	if err != nil {
		return err
	}
	if err := x.callers.add(conn); err != nil {
		return err
	}
	local, err := x.sendDest(e, conn, server)
	if err != nil {
		return err
	}
	return x.receiveDest(e, conn, func(xrcDest) (xrcDest, error) { return local, nil })
}

// acceptClients exchanges addresses with all clients, one after the other.
func (x *xsrq) acceptClients(ctx context.Context, e *cli.Env) error {
	l, err := x.node.ListenStream(netip.AddrPortFrom(netip.Addr{}, x.Port))
	if err != nil {
		return err
	}
	defer l.Close()
	defer node.CloseWhenDone(ctx, l)()
	fmt.Fprintf(e.Text(), "  waiting for %d of %v\n", x.Clients, l.Addr())
	for range x.Clients {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept on %v: %w", l.Addr(), err)
		}
		if err := x.callers.add(conn); err != nil {
			return err
		}
		send := func(remote xrcDest) (xrcDest, error) { return x.sendDest(e, conn, remote.gid.Addr()) }
		if err := x.receiveDest(e, conn, send); err != nil {
			return err
		}
	}
	return nil
}

// sendDest sends the address of the local QPs to the next peer, at IP address to.
func (x *xsrq) sendDest(e *cli.Env, conn net.Conn, to netip.Addr) (local xrcDest, err error) {
	if x.gid, err = chosenGID(x.node, x.IBPort, x.GIDIdx, to); err != nil {
		return local, err
	}
	i := len(x.remote)
	local = xrcDest{recvQPN: x.recvQPs[i].Num(), sendQPN: x.sendQPs[i].Num(), psn: rand.Uint32N(1 << 24), srqn: x.srq.Num(), gid: x.gid.GID}
	fmt.Fprintf(e.Text(), "%8s: %v\n", "local", local)
	if _, err := conn.Write(local.encode()); err != nil {
		return local, fmt.Errorf("send the local address: %w", err)
	}
	return local, nil
}

// receiveDest receives the address of the next peer's QPs and connects to them.
func (x *xsrq) receiveDest(e *cli.Env, conn net.Conn, send func(remote xrcDest) (xrcDest, error)) error {
	remote, err := readXRCDest(conn)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Text(), "%8s: %v\n", "remote", remote)
	if remote.gid == (verbs.GID{}) {
		return errNoGID
	}
	local, err := send(remote)
	if err != nil {
		return err
	}
	return x.connect(local, remote)
}

// finish returns when all peers have finished, as no object may be closed before.
func (x *xsrq) finish(ctx context.Context, e *cli.Env) error {
	sendEnd := func(conn net.Conn) error {
		if _, err := conn.Write([]byte(xrcEnd)); err != nil {
			return fmt.Errorf("send %q: %w", xrcEnd, err)
		}
		return nil
	}
	awaitEnd := func(conn net.Conn) error {
		b := make([]byte, len(xrcEnd))
		if _, err := io.ReadFull(conn, b); err != nil {
			return fmt.Errorf("wait for the peer's %q: %w", xrcEnd, err)
		}
		if string(b) != xrcEnd {
			return fmt.Errorf("the peer ends with %q, not %q", b, xrcEnd)
		}
		return nil
	}
	steps := []func(net.Conn) error{awaitEnd, sendEnd}
	if x.Server != "" {
		steps = []func(net.Conn) error{sendEnd, awaitEnd}
	}
	for _, step := range steps {
		for _, conn := range x.callers.conns {
			if err := step(conn); err != nil {
				return err
			}
		}
	}
	return nil
}
