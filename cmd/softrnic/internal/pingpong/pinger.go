package pingpong

import (
	"errors"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// Work request IDs, which are also the bits of a QP's pending completions. The ID of a receive has
// the number of its place above these bits.
const (
	pingRecv = 1 << iota
	pingSend

	pingPlace = 2 // bits
	pingKinds = 1<<pingPlace - 1
)

// rnrTimer is the MinRNRTimer of the ibv_…_pingpong programs, a code for 640 µs.
const rnrTimer = 12

// pingQKey is the Q_Key of ibv_ud_pingpong.
const pingQKey = 0x11111111

// kind has the parameters in which the ping-pongs differ.
type kind struct {
	qpType  verbs.QPType
	pathMTU int // 0 for UD
	numQP   int
	shared  bool // one shared receive queue
	dests   int  // number of addresses sent to the peer, which may exceed the number of QPs
	filler  byte // value of all bytes in the buffer, except the first of each page with -c
}

// header returns the number of bytes before the message in the buffer.
func (k *kind) header() int {
	if k.qpType == verbs.UD {
		return verbs.GRHLen
	}
	return 0
}

// pinger is one side of a ping-pong.
type pinger struct {
	*flags
	kind
	node   *node.Node
	pd     *verbs.PD
	mr     *verbs.MR // places; the first one is for sending
	free   []int     // places to receive into
	first  int       // the place of the first receive
	cq     *completion.Waiter
	srq    *verbs.SRQ // or nil
	qps    []*verbs.QP
	gid    verbs.GIDEntry
	local  []dest
	remote []dest
	ah     *verbs.AH // UD
}

func newPinger(n *node.Node, c *flags, k kind) (p *pinger, err error) {
	p = &pinger{flags: c, kind: k, node: n, local: make([]dest, k.dests)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if k.qpType == verbs.UD {
		port, err := n.Dev.QueryPort(c.IBPort)
		if err != nil {
			return p, err
		}
		if most := port.ActiveMTU.Bytes(); c.Size > most {
			return p, cli.Usagef("--size %d: a datagram is at most the port's path MTU of %d", c.Size, most)
		}
	}
	if p.pd, err = n.Dev.AllocPD(); err != nil {
		return p, err
	}
	// QPs that share a receive queue fill its buffers at the same time. Each has its own buffer,
	// behind the send buffer.
	places := 1
	if k.shared {
		places += c.RxDepth
		p.first = 1
	}
	for i := range c.RxDepth {
		p.free = append(p.free, min(i+1, places-1))
	}
	buf := make([]byte, places*p.place())
	for i := range buf {
		buf[i] = k.filler
	}
	if p.mr, err = p.pd.RegMR(buf, verbs.AccessLocalWrite); err != nil {
		return p, err
	}
	how := completion.Adaptive
	if c.Events {
		how = completion.Event
	}
	if p.cq, err = completion.NewWaiter(n.Dev, c.RxDepth+k.numQP, how); err != nil {
		return p, err
	}
	if k.shared {
		if p.srq, err = p.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: c.RxDepth, MaxSGE: 1}}); err != nil {
			return p, err
		}
	}
	for range k.numQP {
		qp, err := p.pd.CreateQP(&verbs.QPInitAttr{
			Type: k.qpType, SendCQ: p.cq.CQ, RecvCQ: p.cq.CQ, SRQ: p.srq,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: c.RxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		if err != nil {
			return p, err
		}
		p.qps = append(p.qps, qp)
		if err := p.modify(qp, verbs.QPAttr{QPState: verbs.StateInit, PortNum: c.IBPort, QKey: pingQKey},
			verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags|verbs.QPAttrQKey); err != nil {
			return p, err
		}
	}
	return p, p.postRecvs(c.RxDepth)
}

// Close closes the objects of newPinger and connect, even if they have failed midway.
func (p *pinger) Close() error {
	return errors.Join(p.destroyQPs(), cli.Close(p.srq), cli.Close(p.ah), cli.Close(p.cq), cli.Close(p.mr), cli.Close(p.pd))
}

func (p *pinger) destroyQPs() error {
	var errs []error
	for _, qp := range p.qps {
		errs = append(errs, qp.Close())
	}
	p.qps = nil
	return errors.Join(errs...)
}

// takes has the attributes of each QP type.
var takes = map[verbs.QPType]verbs.QPAttrMask{
	verbs.RC: ^verbs.QPAttrQKey,
	verbs.UC: ^(verbs.QPAttrQKey | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer | verbs.QPAttrTimeout |
		verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic),
	verbs.UD: verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey | verbs.QPAttrSQPSN,
}

// modify moves a QP to a state, with the attributes that its type has.
func (p *pinger) modify(qp *verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	return qp.Modify(&attr, verbs.QPAttrState|mask&takes[p.qpType])
}

var errNoGID = errors.New("the peer named no GID, and RoCE needs one: start it with -g INDEX (its ibv_devinfo -v lists them)")

// connect moves the QPs to RTS.
func (p *pinger) connect(remote []dest) error {
	p.remote = remote
	for i, qp := range p.qps {
		r := &remote[i]
		if r.gid == (verbs.GID{}) {
			return errNoGID
		}
		way := verbs.AHAttr{IsGlobal: true, DLID: r.lid, SL: p.SL, PortNum: p.IBPort,
			GRH: verbs.GRH{DGID: r.gid, SGIDIndex: uint8(p.gid.Index)}}
		if err := p.modify(qp, verbs.QPAttr{
			QPState: verbs.StateRTR, PathMTU: verbs.MTUFor(p.pathMTU), DestQPNum: r.qpn, RQPSN: r.psn,
			MaxDestRDAtomic: 1, MinRNRTimer: rnrTimer, AHAttr: way,
		}, verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|
			verbs.QPAttrMinRNRTimer); err != nil {
			return err
		}
		if err := p.modify(qp, verbs.QPAttr{
			QPState: verbs.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: p.local[i].psn, MaxRDAtomic: 1,
		}, verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|
			verbs.QPAttrMaxQPRDAtomic); err != nil {
			return err
		}
		if p.qpType == verbs.UD {
			var err error
			if p.ah, err = p.pd.CreateAH(&way); err != nil {
				return err
			}
		}
	}
	return nil
}

// place returns the size of a place in bytes: header and message.
func (p *pinger) place() int { return p.header() + p.Size }

// message returns the message in a place.
func (p *pinger) message(place int) []byte { return p.mr.Buf()[place*p.place()+p.header():][:p.Size] }

// received frees the place of a completed receive.
func (p *pinger) received(wc *verbs.WC) { p.free = append(p.free, int(wc.WRID>>pingPlace)) }

// postSend sends size bytes on the i-th QP.
func (p *pinger) postSend(i, size int) error {
	return p.qps[i].PostSend(&verbs.SendWR{WRID: pingSend, Opcode: verbs.Send, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.mr.SGE(p.header(), size)}, AH: p.ah, RemoteQPN: p.remote[i].qpn, RemoteQKey: pingQKey})
}

func (p *pinger) postRecvs(n int) error {
	post := p.qps[0].PostRecv
	if p.srq != nil {
		post = p.srq.PostRecv
	}
	for range n {
		at := p.free[0]
		wr := verbs.RecvWR{WRID: pingRecv | uint64(at)<<pingPlace, SGList: []verbs.SGE{p.mr.SGE(at*p.place(), p.place())}}
		if err := post(&wr); err != nil {
			return err
		}
		p.free = p.free[1:]
	}
	return nil
}
