package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// pingpongRC is ibv_rc_pingpong: its options, defaults, output, and its bytes on the wire.
type pingpongRC struct {
	Server string `arg:"" optional:"" help:"Address or name of the server. Without it, be the server and wait for a client."`

	Port    uint16 `short:"p" default:"18515" help:"TCP port to meet on. Default: 18515."`
	IBPort  uint8  `short:"i" name:"ib-port" default:"1" help:"Port of the RDMA device. Default: 1."`
	Size    int    `short:"s" default:"4096" placeholder:"BYTES" help:"Message size. Default: 4096."`
	PathMTU int    `short:"m" name:"path-mtu" default:"1024" enum:"256,512,1024,2048,4096" placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096; the same on both sides. Default: 1024."`
	RxDepth int    `short:"r" name:"rx-depth" default:"500" help:"Receives to post at a time. Default: 500."`
	Iters   int    `short:"n" default:"1000" help:"Exchanges. Default: 1000."`
	SL      uint8  `short:"l" name:"sl" default:"0" help:"Service level. Default: 0."`
	Events  bool   `short:"e" help:"Sleep until a completion event, never poll for one."`
	GIDIdx  *uint8 `short:"g" name:"gid-idx" placeholder:"INDEX" help:"GID to use. Default: the first that is of the peer's family."`
	Chk     bool   `short:"c" help:"Validate the received data; the client must be given this too."`

	Transport transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 only, as the QPs meet without rdma_cm."`
	nodeFlags
}

// Help implements kong.HelpProvider.
func (*pingpongRC) Help() string {
	return `Server and client send one message back and forth. Either may be the real ibv_rc_pingpong (from ibverbs-utils), which
needs -g with the index of a GID of the same family. The path MTU must fit both links: 4096 needs an MTU of about 4200.

  softrnic pingpong rc --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24         here
  ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9                                       on the Linux machine`
}

// ping-pong work request IDs, and bits of what is outstanding.
const (
	pingRecv = 1 << iota
	pingSend
)

// filler is what the buffer is full of, but for the first byte of each page that a client with -c sends.
const filler = 0x7b

// Validate implements kong's check after parsing.
func (c *pingpongRC) Validate() error {
	if c.Transport.Transport != verbs.RoCEv2 {
		return fmt.Errorf("--transport iwarp: ibv_rc_pingpong has no iWARP, whose QPs need rdma_cm: use softrnic rping")
	}
	for _, f := range []struct {
		flag    string
		v, most int
	}{{"size", c.Size, 1 << 30}, {"rx-depth", c.RxDepth, 1 << 20}, {"iters", c.Iters, 1 << 40}} {
		if f.v < 1 || f.v > f.most {
			return fmt.Errorf("--%s %d: give 1 to %d", f.flag, f.v, f.most)
		}
	}
	return nil
}

// Run plays.
func (c *pingpongRC) Run(ctx context.Context, e *env) (err error) {
	if c.Link.medium == "pipe" && e.lan == nil {
		return usagef("pingpong needs a peer, and no other program can be on a pipe: give --link tap:NAME or packet:INTERFACE")
	}
	n, err := c.open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	p, err := newPinger(n, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()

	if err := p.meet(ctx, e); err != nil {
		return err
	}
	start := time.Now()
	if err := p.play(ctx); err != nil {
		return err
	}
	usec := float64(time.Since(start).Nanoseconds()) / 1e3
	bytes := int64(c.Size) * int64(c.Iters) * 2
	fmt.Fprintf(e.stdout, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec/1e6, float64(bytes)*8/usec)
	fmt.Fprintf(e.stdout, "%d iters in %.2f seconds = %.2f usec/iter\n", c.Iters, usec/1e6, usec/float64(c.Iters))
	if c.Chk {
		return checkPages(p.mr.Buf(), os.Getpagesize())
	}
	return nil
}

// pinger is one side of a ping-pong.
type pinger struct {
	*pingpongRC
	node  *node
	pd    *verbs.PD
	mr    *verbs.MR // sent from and received into
	cq    *waiter
	qp    *verbs.QP
	local dest
	gid   verbs.GIDEntry
}

func newPinger(n *node, c *pingpongRC) (p *pinger, err error) {
	p = &pinger{pingpongRC: c, node: n}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.pd, err = n.dev.AllocPD(); err != nil {
		return p, err
	}
	buf := make([]byte, c.Size)
	for i := range buf {
		buf[i] = filler
	}
	if p.mr, err = p.pd.RegMR(buf, verbs.AccessLocalWrite); err != nil {
		return p, err
	}
	if p.cq, err = newWaiter(n.dev, c.RxDepth+1); err != nil {
		return p, err
	}
	p.cq.eventsOnly = c.Events
	if p.qp, err = p.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: p.cq.cq, RecvCQ: p.cq.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: c.RxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	}); err != nil {
		return p, err
	}
	if err = p.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: c.IBPort},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags); err != nil {
		return p, err
	}
	return p, p.postRecvs(c.RxDepth)
}

// Close undoes newPinger, however far that got.
func (p *pinger) Close() error {
	var errs []error
	if p.qp != nil {
		errs = append(errs, p.qp.Destroy())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.mr != nil {
		errs = append(errs, p.mr.Dereg())
	}
	if p.pd != nil {
		errs = append(errs, p.pd.Dealloc())
	}
	return errors.Join(errs...)
}

// meet exchanges addresses with the peer and connects the QP.
func (p *pinger) meet(ctx context.Context, e *env) error {
	announce := func() { fmt.Fprintf(e.stdout, "  local address:  %v\n", p.local) }
	if p.Server == "" {
		if err := p.choose(netip.Addr{}); err != nil {
			return err
		}
		// Whoever sees the announcement may connect.
		l, err := p.node.host.ListenStream(netip.AddrPortFrom(netip.Addr{}, p.Port))
		if err != nil {
			return err
		}
		announce()
		return serverExchange(ctx, l, func(remote dest) (dest, error) {
			if remote.gid.Addr().Is4() != p.local.gid.Addr().Is4() && p.GIDIdx == nil {
				if err := p.choose(remote.gid.Addr()); err != nil {
					return dest{}, err
				}
				announce()
			}
			fmt.Fprintf(e.stdout, "  remote address: %v\n", remote)
			return p.local, p.connect(remote)
		})
	}
	server, err := p.node.resolve(ctx, p.Server)
	if err != nil {
		return err
	}
	if err := p.choose(server); err != nil {
		return err
	}
	announce()
	remote, err := p.node.clientExchange(ctx, netip.AddrPortFrom(server, p.Port), p.local)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "  remote address: %v\n", remote)
	return p.connect(remote)
}

// choose sets the local address for a peer at to.
func (p *pinger) choose(to netip.Addr) (err error) {
	if p.GIDIdx != nil {
		p.gid, err = p.node.dev.QueryGID(p.IBPort, int(*p.GIDIdx))
	} else {
		p.gid, err = p.node.gid(p.IBPort, to)
	}
	if err != nil {
		return err
	}
	p.local = dest{qpn: p.qp.Num(), psn: rand.Uint32N(1 << 24), gid: p.gid.GID}
	return nil
}

// connect brings the QP to RTS.
func (p *pinger) connect(remote dest) error {
	if remote.gid == (verbs.GID{}) {
		return errors.New("the peer named no GID, and RoCE needs one: start it with -g INDEX (its ibv_devinfo -v lists them)")
	}
	attr := verbs.QPAttr{
		QPState:         verbs.StateRTR,
		PathMTU:         verbs.MTUFor(p.PathMTU),
		DestQPNum:       remote.qpn,
		RQPSN:           remote.psn,
		MaxDestRDAtomic: 1,
		MinRNRTimer:     12,
		AHAttr: verbs.AHAttr{IsGlobal: true, DLID: remote.lid, SL: p.SL, PortNum: p.IBPort,
			GRH: verbs.GRH{DGID: remote.gid, SGIDIndex: uint8(p.gid.Index)}},
	}
	if err := p.qp.Modify(&attr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer); err != nil {
		return err
	}
	attr = verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: p.local.psn, MaxRDAtomic: 1}
	return p.qp.Modify(&attr, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxQPRDAtomic)
}

// play bounces the message until both directions have carried it --iters times.
func (p *pinger) play(ctx context.Context) error {
	pending, receives := pingRecv, p.RxDepth
	if p.Server != "" { // the client serves
		if p.Chk {
			markPages(p.mr.Buf(), os.Getpagesize())
		}
		if err := p.postSend(); err != nil {
			return err
		}
		pending |= pingSend
	}
	var wcs [2]verbs.WC
	for sent, received := 0, 0; sent < p.Iters || received < p.Iters; {
		n, err := p.cq.wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			switch pending &^= int(wcs[i].WRID); wcs[i].WRID {
			case pingSend:
				sent++
			case pingRecv:
				received++
				if receives--; receives <= 1 {
					if err := p.postRecvs(p.RxDepth - receives); err != nil {
						return err
					}
					receives = p.RxDepth
				}
			}
			if sent < p.Iters && pending == 0 {
				if err := p.postSend(); err != nil {
					return err
				}
				pending = pingRecv | pingSend
			}
		}
	}
	return nil
}

func (p *pinger) postSend() error {
	return p.qp.PostSend(&verbs.SendWR{ID: pingSend, Opcode: verbs.Send, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.mr.SGE(0, p.Size)}})
}

func (p *pinger) postRecvs(n int) error {
	wr := verbs.RecvWR{ID: pingRecv, SGList: []verbs.SGE{p.mr.SGE(0, p.Size)}}
	for range n {
		if err := p.qp.PostRecv(&wr); err != nil {
			return err
		}
	}
	return nil
}

// markPages makes the first byte of each page 0, as a client with -c does before it sends.
func markPages(buf []byte, pageSize int) {
	for i := 0; i < len(buf); i += pageSize {
		buf[i] = 0
	}
}

// checkPages finds the first page that is not as markPages and the filler left it.
func checkPages(buf []byte, pageSize int) error {
	for i, b := range buf {
		want := byte(filler)
		if i%pageSize == 0 {
			want = 0
		}
		if b != want {
			return fmt.Errorf("invalid data in page %d: byte %d is %#02x, want %#02x", i/pageSize, i, b, want)
		}
	}
	return nil
}
