package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Sizes of the demo: each side registers demoBuffer bytes (or one message, if that is more), and at most demoWindow
// messages are outstanding.
const (
	demoBuffer = 8 << 20
	demoWindow = 128
	demoPort   = 7471
)

// demoPair is two nodes, A the requester and B the responder, with their QPs connected.
type demoPair struct {
	a, b *demoEnd
	mtu  verbs.MTU
	// accepting is B's listener for iWARP, which is connected when it is first used.
	accepting *rdmacm.Listener
}

// demoEnd is one of the two: a node, and what a program makes on its device.
type demoEnd struct {
	node *node
	pd   *verbs.PD
	mr   *verbs.MR
	cq   *waiter
	qp   *verbs.QP    // RoCEv2
	conn *rdmacm.Conn // iWARP
	gid  verbs.GIDEntry
}

// on is the QP of a transport. Both have the same PD and CQ.
func (end *demoEnd) on(t verbs.Transport) *verbs.QP {
	if t == verbs.IWARP {
		return end.conn.QP()
	}
	return end.qp
}

// demoPairs are two pairs: on a link that moves frames only, and on one that leaves the nodes the direct way.
type demoPairs struct{ wire, direct *demoPair }

func newDemoPairs(e *env, c *demoCmd) (*demoPairs, error) {
	wire, err := newDemoPair(e, c, false)
	if err != nil {
		return nil, err
	}
	direct, err := newDemoPair(e, c, true)
	if err != nil {
		return nil, errors.Join(err, wire.Close())
	}
	return &demoPairs{wire, direct}, nil
}

func (p *demoPairs) of(way demoWay) *demoPair {
	if way.direct {
		return p.direct
	}
	return p.wire
}

// Close undoes newDemoPairs.
func (p *demoPairs) Close() error { return errors.Join(p.wire.Close(), p.direct.Close()) }

func newDemoPair(e *env, c *demoCmd, direct bool) (p *demoPair, err error) {
	p = &demoPair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	var opts []pipe.Option
	flags := linkFlags{MTU: c.MTU, Log: c.Log}
	flagsOfA := flags
	if !direct {
		opts = append(opts, pipe.FramesOnly())
		flagsOfA = c.linkFlags
	}
	on, err := e.onPipe(c.MTU, opts...)
	if err != nil {
		return nil, err
	}
	buffer := demoBuffer
	for _, n := range c.Size {
		buffer = max(buffer, n)
	}
	if p.a, err = newDemoEnd(on, "10.0.0.1/24", flagsOfA, buffer); err != nil {
		return p, err
	}
	if p.b, err = newDemoEnd(on, "10.0.0.2/24", flags, buffer); err != nil {
		return p, err
	}
	port, err := p.a.node.dev.QueryPort(1)
	if err != nil {
		return p, err
	}
	p.mtu = port.ActiveMTU
	// A program of two processes would send these over a socket.
	if err := p.a.connect(p.b.gid.GID, p.b.qp.Num(), p.mtu); err != nil {
		return p, err
	}
	return p, p.b.connect(p.a.gid.GID, p.a.qp.Num(), p.mtu)
}

// demoCap is the size of the QPs: one more request than messages, see demoRun.batch.
var demoCap = verbs.QPCap{MaxSendWR: demoWindow + 1, MaxRecvWR: demoWindow, MaxSendSGE: 1, MaxRecvSGE: 1}

// connectIWARP connects the two over iWARP, if they are not.
func (p *demoPair) connectIWARP(ctx context.Context) (err error) {
	if p.accepting != nil {
		return nil
	}
	config := func(end *demoEnd) *rdmacm.Config {
		return &rdmacm.Config{Transport: verbs.IWARP, PD: end.pd, SendCQ: end.cq.cq, RecvCQ: end.cq.cq, Cap: demoCap}
	}
	to := net.JoinHostPort(p.b.gid.GID.Addr().String(), strconv.Itoa(demoPort))
	if p.accepting, err = rdmacm.Listen(p.b.node.dev, to, config(p.b)); err != nil {
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
	p.a.conn, err = rdmacm.Dial(ctx, p.a.node.dev, to, config(p.a))
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-accepted)
}

func newDemoEnd(e *env, addr string, flags linkFlags, buffer int) (end *demoEnd, err error) {
	end = &demoEnd{}
	f := nodeFlags{Addr: []cidr{{netip.MustParsePrefix(addr)}}, linkFlags: flags}
	if end.node, err = f.open(e); err != nil {
		return end, err
	}
	if end.gid, err = end.node.gid(1, netip.Addr{}); err != nil {
		return end, err
	}
	if end.pd, err = end.node.dev.AllocPD(); err != nil {
		return end, err
	}
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if end.mr, err = end.pd.RegMR(make([]byte, buffer), access); err != nil {
		return end, err
	}
	if end.cq, err = newWaiter(end.node.dev, 2*demoWindow, waitAdaptive); err != nil {
		return end, err
	}
	if end.qp, err = end.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: end.cq.cq, RecvCQ: end.cq.cq,
		Cap: demoCap,
	}); err != nil {
		return end, err
	}
	return end, end.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags)
}

// connect brings the QP to RTS. Both sides start at PSN 0.
func (end *demoEnd) connect(gid verbs.GID, qpn uint32, mtu verbs.MTU) error {
	device := end.node.dev.QueryDevice()
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
		Timeout:  14, // 67 ms: as ibv_rc_pingpong has it
		RetryCnt: 7, RNRRetry: 7,
		MaxRDAtomic: uint8(min(device.MaxQPInitRDAtom, 128)),
	}, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|
		verbs.QPAttrMaxQPRDAtomic)
}

// Close undoes newDemoPair, however far that got.
func (p *demoPair) Close() error {
	var err error
	if p.accepting != nil {
		err = p.accepting.Close()
	}
	return errors.Join(err, p.a.Close(), p.b.Close())
}

// Close undoes newDemoEnd, however far that got.
func (end *demoEnd) Close() error {
	if end == nil {
		return nil
	}
	var errs []error
	if end.conn != nil {
		errs = append(errs, end.conn.Close())
	}
	if end.qp != nil {
		errs = append(errs, end.qp.Destroy())
	}
	if end.cq != nil {
		errs = append(errs, end.cq.Close())
	}
	if end.mr != nil {
		errs = append(errs, end.mr.Dereg())
	}
	if end.pd != nil {
		errs = append(errs, end.pd.Dealloc())
	}
	if end.node != nil {
		errs = append(errs, end.node.Close())
	}
	return errors.Join(errs...)
}
