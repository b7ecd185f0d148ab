package demo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// Sizes of the demo. Each side registers minBuffer bytes, or one message if that is larger. At most
// window messages are outstanding.
const (
	minBuffer = 8 << 20
	window    = 128
	demoPort  = 7471
)

// pair is two nodes, A the requester and B the responder, with their QPs connected.
type pair struct {
	a, b *side
	mtu  verbs.MTU
	// accepting is B's listener for iWARP. The connection is made when it is first used.
	accepting *rdmacm.Listener
}

// side is one side of a pair: a node, and the objects on its device.
type side struct {
	node *node.Node
	pd   *verbs.PD
	mr   *verbs.MR
	cq   *completion.Waiter
	qp   *verbs.QP    // RoCEv2
	conn *rdmacm.Conn // iWARP
	gid  verbs.GIDEntry
}

// on returns the QP of a transport. Both QPs have the same PD and CQ.
func (end *side) on(t verbs.Transport) *verbs.QP {
	if t == verbs.IWARP {
		return end.conn.QP()
	}
	return end.qp
}

// pairs are two pairs: one on a switch with pipe.FramesOnly, and one with the direct path.
type pairs struct{ wire, direct *pair }

func newPairs(e *cli.Env, c *Command) (*pairs, error) {
	wire, err := newPair(e, c, false)
	if err != nil {
		return nil, err
	}
	direct, err := newPair(e, c, true)
	if err != nil {
		return nil, errors.Join(err, wire.Close())
	}
	return &pairs{wire, direct}, nil
}

func (p *pairs) of(way way) *pair {
	if way.direct {
		return p.direct
	}
	return p.wire
}

// Close closes both pairs.
func (p *pairs) Close() error { return errors.Join(p.wire.Close(), p.direct.Close()) }

func newPair(e *cli.Env, c *Command, direct bool) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	lan := pipe.Config{MTU: c.MTU}
	flags := node.LinkFlags{MTU: c.MTU, Log: c.Log}
	flagsOfA := flags
	if !direct {
		lan.FramesOnly = true
		flagsOfA = c.LinkFlags
	}
	on, err := e.OnPipe(&lan)
	if err != nil {
		return nil, err
	}
	buffer := minBuffer
	for _, n := range c.Size {
		buffer = max(buffer, n)
	}
	if p.a, err = newSide(on, "10.0.0.1/24", flagsOfA, buffer); err != nil {
		return p, err
	}
	if p.b, err = newSide(on, "10.0.0.2/24", flags, buffer); err != nil {
		return p, err
	}
	port, err := p.a.node.Dev.QueryPort(1)
	if err != nil {
		return p, err
	}
	p.mtu = port.ActiveMTU
	// Two processes would exchange these parameters over a socket.
	if err := p.a.connect(p.b.gid.GID, p.b.qp.Num(), p.mtu); err != nil {
		return p, err
	}
	return p, p.b.connect(p.a.gid.GID, p.a.qp.Num(), p.mtu)
}

// qpCap has the sizes of the QPs. There is one request more than messages in a batch, for the READ
// after it (see batches.batch).
var qpCap = verbs.QPCap{MaxSendWR: window + 1, MaxRecvWR: window, MaxSendSGE: 1, MaxRecvSGE: 1}

// connectIWARP connects the two sides over iWARP, unless they are connected.
func (p *pair) connectIWARP(ctx context.Context) (err error) {
	if p.accepting != nil {
		return nil
	}
	config := func(end *side) *rdmacm.Config {
		return &rdmacm.Config{Transport: verbs.IWARP, PD: end.pd, SendCQ: end.cq.CQ, RecvCQ: end.cq.CQ, Cap: qpCap}
	}
	to := net.JoinHostPort(p.b.gid.GID.Addr().String(), strconv.Itoa(demoPort))
	if p.accepting, err = rdmacm.Listen(p.b.node.Dev, to, config(p.b)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		var err error
		p.b.conn, err = p.accepting.Accept(ctx)
		accepted <- err
	}()
	p.a.conn, err = rdmacm.Dial(ctx, p.a.node.Dev, to, config(p.a))
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-accepted)
}

func newSide(e *cli.Env, addr string, flags node.LinkFlags, buffer int) (end *side, err error) {
	end = &side{}
	f := node.Flags{Addr: []node.CIDR{{Prefix: netip.MustParsePrefix(addr)}}, LinkFlags: flags}
	if end.node, err = f.Open(e); err != nil {
		return end, err
	}
	if end.gid, err = end.node.GID(1, netip.Addr{}); err != nil {
		return end, err
	}
	if end.pd, err = end.node.Dev.AllocPD(); err != nil {
		return end, err
	}
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if end.mr, err = end.pd.RegMR(make([]byte, buffer), access); err != nil {
		return end, err
	}
	if end.cq, err = completion.NewWaiter(end.node.Dev, 2*window, completion.Adaptive); err != nil {
		return end, err
	}
	if end.qp, err = end.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: end.cq.CQ, RecvCQ: end.cq.CQ,
		Cap: qpCap,
	}); err != nil {
		return end, err
	}
	return end, end.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags)
}

// connect moves the QP to RTS. Both sides start at PSN 0.
func (end *side) connect(gid verbs.GID, qpn uint32, mtu verbs.MTU) error {
	device := end.node.Dev.QueryDevice()
	if err := end.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: mtu, DestQPNum: qpn, RQPSN: 0,
		MaxDestRDAtomic: uint8(min(device.MaxQPRDAtom, 128)),
		MinRNRTimer:     1, // 10 µs
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1,
			GRH: verbs.GRH{DGID: gid, SGIDIndex: uint8(end.gid.Index)}},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer); err != nil {
		return err
	}
	return end.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTS, SQPSN: 0,
		Timeout:  14, // 67 ms, as in ibv_rc_pingpong
		RetryCnt: 7, RNRRetry: 7,
		MaxRDAtomic: uint8(min(device.MaxQPInitRDAtom, 128)),
	}, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|
		verbs.QPAttrMaxQPRDAtomic)
}

// Close closes the objects of newPair, even if it has failed midway.
func (p *pair) Close() error {
	return errors.Join(cli.Close(p.accepting), cli.Close(p.a), cli.Close(p.b))
}

// Close closes the objects of newSide, even if it has failed midway.
func (end *side) Close() error {
	return errors.Join(cli.Close(end.conn), cli.Close(end.qp), cli.Close(end.cq), cli.Close(end.mr), cli.Close(end.pd), cli.Close(end.node))
}
