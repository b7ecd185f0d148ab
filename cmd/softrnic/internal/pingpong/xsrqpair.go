package pingpong

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// xsrq is one side of an XRC ping-pong. It has a send QP and a receive QP for each peer, and one
// SRQ.
type xsrq struct {
	*xsrqCommand
	node             *node.Node
	pd               *verbs.PD
	mr               *verbs.MR // places: one to send from, and one for each receive
	cq               *completion.Waiter
	xrcd             *verbs.XRCD
	srq              *verbs.SRQ
	sendQPs, recvQPs []*verbs.QP
	gid              verbs.GIDEntry
	remote           []xrcDest
	callers          callers

	sent []int // messages to each peer
	due  []int // peers that wait for a message
	busy int   // outstanding messages
}

// xsrqDepth is the most outstanding messages. There are few, as a peer waits for each answer.
const xsrqDepth = 512

// xsrqSend is the work request ID of a send. That of a receive is its place, from 1 on.
const xsrqSend = 0

func newXSRQ(n *node.Node, c *xsrqCommand) (x *xsrq, err error) {
	x = &xsrq{xsrqCommand: c, node: n, sent: make([]int, c.Clients)}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	if x.pd, err = n.Dev.AllocPD(); err != nil {
		return x, err
	}
	if x.mr, err = x.pd.RegMR(make([]byte, (c.Clients+1)*c.Size), verbs.AccessLocalWrite); err != nil {
		return x, err
	}
	how := completion.Adaptive
	if c.Events {
		how = completion.Event
	}
	if x.cq, err = completion.NewWaiter(n.Dev, c.Clients+xsrqDepth, how); err != nil {
		return x, err
	}
	if x.xrcd, err = n.Dev.OpenXRCD(nil, 0); err != nil {
		return x, err
	}
	if x.srq, err = x.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: c.Clients, MaxSGE: 1}, XRCD: x.xrcd,
		CQ: x.cq.CQ}); err != nil {
		return x, err
	}
	for range c.Clients {
		if err := x.createQPs(); err != nil {
			return x, err
		}
	}
	for i := range c.Clients {
		if err := x.postRecv(uint64(i + 1)); err != nil {
			return x, err
		}
	}
	return x, nil
}

// createQPs creates the QPs for one peer.
func (x *xsrq) createQPs() error {
	const mask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags
	r, err := x.xrcd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv})
	if err != nil {
		return err
	}
	x.recvQPs = append(x.recvQPs, r)
	if err := r.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: x.IBPort,
		QPAccessFlags: verbs.AccessRemoteWrite | verbs.AccessRemoteRead}, mask); err != nil {
		return err
	}
	s, err := x.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCSend, SendCQ: x.cq.CQ, Cap: verbs.QPCap{MaxSendWR: xsrqDepth, MaxSendSGE: 1}})
	if err != nil {
		return err
	}
	x.sendQPs = append(x.sendQPs, s)
	return s.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: x.IBPort}, mask)
}

// connect moves the QPs for the next peer to RTS.
func (x *xsrq) connect(local, remote xrcDest) error {
	i := len(x.remote)
	x.remote = append(x.remote, remote)
	const toRTR = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	attr := verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: verbs.MTUFor(x.PathMTU), DestQPNum: remote.sendQPN, RQPSN: remote.psn, MinRNRTimer: rnrTimer,
		AHAttr: verbs.AHAttr{IsGlobal: true, DLID: remote.lid, SL: x.SL, PortNum: x.IBPort,
			GRH: verbs.GRH{DGID: remote.gid, SGIDIndex: uint8(x.gid.Index)}},
	}
	r, s := x.recvQPs[i], x.sendQPs[i]
	if err := r.Modify(&attr, toRTR|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer); err != nil {
		return err
	}
	attr.DestQPNum = remote.recvQPN
	if err := s.Modify(&attr, toRTR); err != nil {
		return err
	}
	const toRTS = verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrSQPSN
	attr = verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 14, SQPSN: local.psn, RetryCnt: 7, RNRRetry: 7}
	if err := r.Modify(&attr, toRTS); err != nil {
		return err
	}
	return s.Modify(&attr, toRTS|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrMaxQPRDAtomic)
}

// play answers each message of each peer until it has received NumTests from each. The server sends
// the first one.
func (x *xsrq) play(ctx context.Context, _ *cli.Env) error {
	// A client also receives on the QPs of other clients, which are not in this process.
	index := make(map[uint32]int, x.Clients)
	for i, qp := range x.recvQPs {
		index[qp.Num()] = i
		if x.Server == "" {
			x.due = append(x.due, i)
		}
	}
	if err := x.send(); err != nil {
		return err
	}
	var wcs [16]verbs.WC
	for received := 0; received < x.Clients*x.NumTests || x.busy > 0; {
		n, err := x.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if wcs[i].WRID == xsrqSend {
				x.busy--
				continue
			}
			received++
			if err := x.postRecv(wcs[i].WRID); err != nil {
				return err
			}
			if from := index[wcs[i].QPNum]; x.sent[from] < x.NumTests {
				x.due = append(x.due, from)
			}
		}
		if err := x.send(); err != nil {
			return err
		}
	}
	return nil
}

// send sends due messages while the send queues have room. The QPs take turns in sending to a peer.
func (x *xsrq) send() error {
	for ; len(x.due) > 0 && x.busy < xsrqDepth; x.due = x.due[1:] {
		to := x.due[0]
		qp := x.sendQPs[(to+x.sent[to])%x.Clients]
		if err := qp.PostSend(&verbs.SendWR{WRID: xsrqSend, Opcode: verbs.Send, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{x.mr.SGE(0, x.Size)}, RemoteSRQN: x.remote[to].srqn}); err != nil {
			return err
		}
		x.sent[to]++
		x.busy++
	}
	return nil
}

func (x *xsrq) postRecv(place uint64) error {
	return x.srq.PostRecv(&verbs.RecvWR{WRID: place, SGList: []verbs.SGE{x.mr.SGE(int(place)*x.Size, x.Size)}})
}

// hangUp closes the connections, so that no call waits for the peers.
func (x *xsrq) hangUp() { x.callers.close() }

// Close closes the objects of newXSRQ and connect, even if they have failed midway.
func (x *xsrq) Close() error {
	x.hangUp()
	var errs []error
	for _, qp := range append(x.sendQPs, x.recvQPs...) {
		errs = append(errs, qp.Close())
	}
	errs = append(errs, cli.Close(x.srq), cli.Close(x.xrcd), cli.Close(x.cq), cli.Close(x.mr), cli.Close(x.pd))
	return errors.Join(errs...)
}

// callers are connections that are closed together.
type callers struct {
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func (c *callers) add(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.Join(context.Canceled, conn.Close())
	}
	c.conns = append(c.conns, conn)
	return nil
}

func (c *callers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}
