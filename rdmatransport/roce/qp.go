package roce

// On the path: the QP's state, shared by requester and responder, and how verbs' transitions set it up.

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/timers"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// defaultPKey is the only partition there is on Ethernet: full member of the default one.
const defaultPKey = 0xffff

// qp is the provider's half of a reliable connection. All of it is guarded by the QP's lock.
type qp struct {
	e    *Engine
	h    verbs.QPHandle
	num  uint32
	port uint8
	init verbs.QPInitAttr

	path      stack.Path
	local     netip.Addr
	remote    netip.Addr
	out       stack.Sender // what this hold of the lock has to send; nil until something has
	dest      uint32       // the peer's QP number
	mtu       uint32       // path MTU in bytes of payload
	destroyed bool

	timer timers.Timer
	stats stats

	req  requester
	resp responder
}

// CreateQP makes a QP in state RESET and draws its number.
func (e *Engine) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	if attr.Type != verbs.RC {
		return nil, 0, fmt.Errorf("QP type %v over RoCEv2: %w", attr.Type, verbs.ErrNotSupported)
	}
	q := &qp{e: e, h: h, init: *attr}
	q.timer.Init(q.expired)
	slots := 1 << bits.Len(uint(max(attr.Cap.MaxSendWR, 1)-1))
	q.req.sent = make([]sentWR, slots)
	num, err := e.qps.Insert(q)
	if err != nil {
		return nil, 0, fmt.Errorf("create QP: %w: %w", verbs.ErrNoMemory, err)
	}
	q.num = num
	return q, num, nil
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrPort != 0 {
		if int(attr.PortNum) > len(q.e.nics) {
			return fmt.Errorf("port %d: %w", attr.PortNum, verbs.ErrInvalid)
		}
		q.port = attr.PortNum
	}
	if mask&verbs.QPAttrAV != 0 {
		if err := q.connect(attr); err != nil {
			return err
		}
	}
	switch {
	case to == verbs.StateReset:
		q.reset()
	case to == verbs.StateErr:
		q.quiet()
		q.e.timers.Stop(&q.timer)
	case from == verbs.StateInit && to == verbs.StateRTR:
		q.dest = attr.DestQPNum
		q.resp = responder{
			psn: attr.RQPSN, ackPSN: wire.PSNAdd(attr.RQPSN, 1<<24-1), depth: int(attr.MaxDestRDAtomic),
		}
	case from == verbs.StateRTR && to == verbs.StateRTS:
		q.req.begin(attr.SQPSN, q.mtu)
	}
	return nil
}

// connect opens the path of an address vector.
func (q *qp) connect(attr *verbs.QPAttr) error {
	nic := q.e.nics[q.port-1]
	gids := nic.GIDs()
	grh := &attr.AHAttr.GRH
	if int(grh.SGIDIndex) >= len(gids) {
		return fmt.Errorf("SGID index %d: port %d has %d GIDs: %w", grh.SGIDIndex, q.port, len(gids), verbs.ErrInvalid)
	}
	path, err := nic.Datagrams().Path(stack.PathAttr{
		Src:          gids[grh.SGIDIndex],
		Dst:          grh.DGID.Addr(),
		SrcPort:      sourcePort(q.num, attr.DestQPNum),
		TrafficClass: grh.TrafficClass,
		HopLimit:     grh.HopLimit,
		FlowLabel:    grh.FlowLabel,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	mtu := uint32(attr.PathMTU.Bytes())
	if room := path.MTU(); int(mtu)+headerRoom > room {
		path.Close()
		return fmt.Errorf("path MTU %d needs UDP datagrams of %d bytes, the interface takes %d: %w",
			mtu, mtu+headerRoom, room, verbs.ErrInvalid)
	}
	if q.path != nil {
		q.path.Close()
	}
	q.path, q.mtu = path, mtu
	q.local, q.remote = path.Attr().Src, path.Attr().Dst
	return nil
}

// sourcePort gives each connection a UDP source port of its own, as IBTA annex A17 asks for the sake of hashing
// routers and receive queues. 49152 and up.
func sourcePort(qpn, dest uint32) uint16 {
	h := fnv.New32a()
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], qpn)
	binary.BigEndian.PutUint32(b[4:], dest)
	h.Write(b[:])
	s := h.Sum32()
	return 0xc000 | uint16(s^s>>16)&0x3fff
}

// reset forgets everything but the QP's number and its port.
func (q *qp) reset() {
	q.e.timers.Stop(&q.timer)
	if q.path != nil {
		q.path.Close()
		q.path = nil
	}
	sent := q.req.sent
	q.req = requester{sent: sent}
	q.resp = responder{}
}

// Query implements verbs.ProviderQP.
func (q *qp) Query(attr *verbs.QPAttr) {
	attr.SQPSN = q.req.next
	attr.RQPSN = q.resp.psn
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend() {
	q.transmit()
	q.flush()
}

// PostRecv implements verbs.ProviderQP. A peer that was told RNR asks again by itself.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP.
func (q *qp) Destroy() {
	q.e.qps.Delete(q.num)
	q.reset()
	q.e.timers.Remove(&q.timer)
	q.destroyed = true
	q.e.Counters.fold(q.stats)
}

// leave ends a hold of the lock that brought packets: what they made due is sent, and the QP unlocked.
func (q *qp) leave() {
	if s := q.h.State(); !q.destroyed && (s == verbs.StateRTR || s == verbs.StateRTS) {
		q.respond()
		if s == verbs.StateRTS {
			q.transmit()
		}
	}
	q.flush()
	q.h.Unlock()
}

// fail moves the QP to the error state. The work request that failed is completed already.
func (q *qp) fail() {
	q.quiet()
	q.h.Fail()
}

// quiet forgets what the timer was to be set for.
func (q *qp) quiet() { q.req.timeout, q.req.rnrWait, q.resp.resume = 0, 0, 0 }

// flush sends what this hold of the lock has gathered, and sets the timer.
func (q *qp) flush() {
	q.arm()
	if q.out != nil {
		q.out.Flush()
		q.out = nil
	}
}

// expired runs when the QP's timer does.
func (q *qp) expired() {
	q.h.Lock()
	s := q.h.State()
	if q.destroyed || s != verbs.StateRTR && s != verbs.StateRTS {
		q.h.Unlock()
		return
	}
	now := q.e.now()
	if r := &q.resp; r.resume != 0 && now >= r.resume {
		r.resume = 0
	}
	if s == verbs.StateRTS {
		q.checkTimeouts(now)
	}
	q.leave()
}

// arm sets the timer for the first thing that is due. Deadlines that only move away cost no lock.
func (q *qp) arm() {
	due := q.resp.resume
	for _, t := range [...]time.Duration{q.req.timeout, q.req.rnrWait} {
		if t != 0 && (due == 0 || t < due) {
			due = t
		}
	}
	if due == 0 {
		q.e.timers.Stop(&q.timer)
	} else {
		q.e.timers.Arm(&q.timer, q.e.start.Add(due))
	}
}

// datagram starts a packet of the given payload length to the peer and returns its parts, or nils where the link
// cannot take it.
func (q *qp) datagram(p *wire.Packet, payload int) (header, b []byte) {
	p.PKey = defaultPKey
	p.DestQP = q.dest
	p.Pad = wire.PadLen(payload)
	if q.out == nil {
		q.out = q.e.nics[q.port-1].Datagrams().Sender()
	}
	header, b = q.out.Datagram(q.path, p.HeaderLen()+payload+int(p.Pad)+wire.ICRCLen)
	if b == nil {
		q.e.Counters.SendErrors.Add(1)
		return nil, nil
	}
	clear(b[len(b)-wire.ICRCLen-int(p.Pad) : len(b)-wire.ICRCLen])
	return header, b[:len(b):len(b)]
}

// seal finishes a packet whose payload is in place.
func (q *qp) seal(header, b []byte) {
	wire.PutICRC(header, b)
	q.stats.sentPkts++
}
