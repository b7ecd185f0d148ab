package responder

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/verbs"
)

// queuePair is a QP with its own completion queue and region.
type queuePair struct {
	dev      *verbs.Device
	qp       *verbs.QP
	cq       *verbs.CQ
	mr       *verbs.MR
	buf      []byte // guard bytes, the region, guard bytes
	qpAccess verbs.Access
	qkey     uint32
	pd       *verbs.PD   // its own, or nil
	cm       *connection // after listen or dial
}

var (
	types  = map[string]verbs.QPType{"RC": verbs.RC, "UC": verbs.UC, "UD": verbs.UD}
	rights = map[string]verbs.Access{"remote_write": verbs.AccessRemoteWrite, "remote_read": verbs.AccessRemoteRead,
		"remote_atomic": verbs.AccessRemoteAtomic}
	transports = map[string]verbs.Transport{"": verbs.RoCEv2, "rocev2": verbs.RoCEv2, "iwarp": verbs.IWARP}
	opcodes    = map[string]verbs.WROpcode{"SEND": verbs.Send, "SEND_WITH_IMM": verbs.SendWithImm, "SEND_WITH_INV": verbs.SendWithInv,
		"RDMA_WRITE":          verbs.RDMAWrite,
		"RDMA_WRITE_WITH_IMM": verbs.RDMAWriteWithImm, "RDMA_READ": verbs.RDMARead, "CMP_SWAP": verbs.AtomicCmpAndSwp,
		"FETCH_ADD": verbs.AtomicFetchAndAdd}
)

// depth is the size of a QP's queues and of its CQ.
const depth = 256

func access(names []string) (a verbs.Access, err error) {
	for _, n := range names {
		if rights[n] == 0 {
			return 0, fmt.Errorf("access %q: unknown", n)
		}
		a |= rights[n]
	}
	return a, nil
}

func newQueuePair(dev *verbs.Device, pd *verbs.PD, c *control.Create) (_ *queuePair, err error) {
	kind, ok := types[c.Type]
	if !ok {
		return nil, fmt.Errorf("type %q: RC, UC or UD", c.Type)
	}
	transport, ok := transports[c.Transport]
	if !ok {
		return nil, fmt.Errorf("transport %q: rocev2 or iwarp", c.Transport)
	}
	q := &queuePair{dev: dev, qkey: c.QKey, buf: bytes.Repeat([]byte{guardByte}, c.Memory+2*guardLen)}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.destroy())
		}
	}()
	clear(q.buf[guardLen : guardLen+c.Memory])
	if c.OwnPD {
		if q.pd, err = dev.AllocPD(); err != nil {
			return nil, err
		}
		pd = q.pd
	}
	mrAccess, err := access(c.MRAccess)
	if err != nil {
		return nil, err
	}
	if q.qpAccess, err = access(c.QPAccess); err != nil {
		return nil, err
	}
	if q.mr, err = pd.RegMR(q.buf[guardLen:guardLen+c.Memory], mrAccess|verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if q.cq, err = dev.CreateCQ(2*depth, nil); err != nil {
		return nil, err
	}
	q.qp, err = pd.CreateQP(&verbs.QPInitAttr{Type: kind, Transport: transport, SendCQ: q.cq, RecvCQ: q.cq,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil || transport == verbs.IWARP { // rdma_cm changes the state of QPs over iWARP
		return q, err
	}
	attr, mask := &verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: q.qpAccess, QKey: q.qkey},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort
	if kind == verbs.UD {
		mask |= verbs.QPAttrQKey
	} else {
		mask |= verbs.QPAttrAccessFlags
	}
	return q, q.qp.Modify(attr, mask)
}

// connect moves the QP to RTR and RTS.
func (q *queuePair) connect(c *control.Connect) error {
	if c == nil {
		return errors.New("connect: missing")
	}
	if q.qp.Transport() != verbs.RoCEv2 {
		return errors.New("connect: a QP over iWARP is connected by listen or dial")
	}
	if q.qp.Type() == verbs.UD {
		if err := q.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState); err != nil {
			return err
		}
		return q.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: c.SQPSN}, verbs.QPAttrState|verbs.QPAttrSQPSN)
	}
	index, err := gidIndex(q.dev, c.LocalAddr)
	if err != nil {
		return err
	}
	peer, err := netip.ParseAddr(c.PeerAddr)
	if err != nil {
		return fmt.Errorf("peer_addr: %w", err)
	}
	mtu := verbs.MTUFor(c.MTU)
	if mtu.Bytes() != c.MTU {
		return fmt.Errorf("mtu %d: 256, 512, 1024, 2048 or 4096", c.MTU)
	}
	attr := &verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: mtu, DestQPNum: c.PeerQPN, RQPSN: c.RQPSN,
		MaxDestRDAtomic: c.MaxDestRD, MinRNRTimer: c.MinRNR,
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1,
			GRH: verbs.GRH{DGID: verbs.GIDFromAddr(peer), SGIDIndex: index, HopLimit: 64}}}
	mask := verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	if q.qp.Type() == verbs.RC {
		mask |= verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	}
	if err := q.qp.Modify(attr, mask); err != nil || c.OnlyRecv {
		return err
	}
	attr = &verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: c.SQPSN, Timeout: c.Timeout, RetryCnt: c.Retry, RNRRetry: c.RNRRetry,
		MaxRDAtomic: c.MaxRD}
	mask = verbs.QPAttrState | verbs.QPAttrSQPSN
	if q.qp.Type() == verbs.RC {
		mask |= verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic
	}
	return q.qp.Modify(attr, mask)
}

// access handles requests that name a part of the region.
func (q *queuePair) access(r *control.Request) (reply control.Reply, err error) {
	n := r.Length
	if r.Op == control.Write {
		n = len(r.Data)
	}
	if r.Offset < 0 || n < 0 || r.Offset > q.mr.Length() || n > q.mr.Length()-r.Offset {
		return reply, fmt.Errorf("offset %d, length %d: the region has %d bytes", r.Offset, n, q.mr.Length())
	}
	q.settle()
	sg := []verbs.SGE{q.mr.SGE(r.Offset, n)}
	switch r.Op {
	case control.Read:
		reply.Data = slices.Clone(q.mr.Buf()[r.Offset : r.Offset+n])
	case control.Write:
		copy(q.mr.Buf()[r.Offset:], r.Data)
		q.settle()
	case control.PostRecv:
		err = q.qp.PostRecv(&verbs.RecvWR{WRID: r.WRID, SGList: sg})
	case control.PostSend:
		s := r.Send
		if s == nil {
			return reply, errors.New("send: missing")
		}
		opcode, ok := opcodes[s.Opcode]
		if !ok {
			return reply, fmt.Errorf("opcode %q: unknown", s.Opcode)
		}
		flags := verbs.SendSignaled
		if s.Solicited {
			flags |= verbs.SendSolicited
		}
		if s.Fence {
			flags |= verbs.SendFence
		}
		err = q.qp.PostSend(&verbs.SendWR{WRID: r.WRID, Opcode: opcode, Flags: flags, SGList: sg, ImmData: s.Imm,
			InvalidateRKey: s.Invalidate,
			RemoteAddr:     s.RemoteAddr, RKey: s.RKey, CompareAdd: s.CompareAdd, Swap: s.Swap})
	}
	return reply, err
}

// settle takes the QP's lock, as reception does. Earlier writes of peers are then visible, also to
// the race detector.
func (q *queuePair) settle() { _, _, _ = q.qp.Query() }

// pause is the interval of polls of the CQ.
const pause = 200 * time.Microsecond

// poll waits for completions.
func (q *queuePair) poll(wait time.Duration) ([]control.Completion, error) {
	var wcs [16]verbs.WC
	for end := time.Now().Add(wait); ; time.Sleep(pause) {
		n, err := q.cq.Poll(wcs[:])
		if err != nil {
			return nil, err
		}
		if n == 0 && time.Now().Before(end) {
			continue
		}
		done := make([]control.Completion, n)
		for i, wc := range wcs[:n] {
			done[i] = control.Completion{WRID: wc.WRID, Status: wc.Status.String()}
			if wc.Status == verbs.WCSuccess {
				done[i].Opcode, done[i].ByteLen, done[i].SrcQP = wc.Opcode.String(), wc.ByteLen, wc.SrcQP
				if wc.Flags&verbs.WCWithImm != 0 {
					done[i].Imm, done[i].WithImm = wc.ImmData, true
				}
				if wc.Flags&verbs.WCWithInv != 0 {
					done[i].Inv, done[i].WithInv = wc.InvalidatedRKey, true
				}
			}
		}
		return done, nil
	}
}

// destroy destroys the QP's objects, even if creation has failed.
func (q *queuePair) destroy() (err error) {
	if q.cm != nil {
		err = q.cm.destroy()
	}
	err = errors.Join(err, cli.Close(q.qp), cli.Close(q.cq))
	if closed := cli.Close(q.mr); !errors.Is(closed, verbs.ErrClosed) {
		err = errors.Join(err, closed)
	}
	return errors.Join(err, cli.Close(q.pd))
}
