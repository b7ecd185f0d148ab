package roce

// On the path: the QP's state, shared by requester and responder, and how verbs' transitions set it up.

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// defaultPKey is the only partition there is on Ethernet: full member of the default one.
const defaultPKey = 0xffff

// qp is the provider's half of a QP. All of it is guarded by the QP's lock.
type qp struct {
	// What a peer in the same process writes to, or reads for each message, shares no cache line with the rest.
	resp      responder
	recvs     uint64
	num       uint32
	dest      uint32 // the peer's QP number
	mtu       uint32 // path MTU in bytes of payload
	port      uint8
	service   wire.Transport
	kind      verbs.QPType
	blockSelf bool // QPInitAttr.BlockSelfMcastLB
	destroyed bool

	met    bool // the QP that near has and this one are each other's
	waits  bool // is among the engine's waiting
	recent bool // something was posted since an application last drove the device

	e    *Engine
	h    verbs.QPHandle
	path stack.Path
	ends *stack.Ends // of path
	near *station    // of a peer in this process: what path leads to

	sending    send.State  // of the reliable services
	unreliable *unreliable // of the others; else nil

	out   stack.Sender // what this hold of the lock has to send; nil until something has
	timer timers.Timer
	stats stats

	pace   *pacer    // nil: no limit
	notify *notifier // nil: congestion is not looked for

	nextWaiting *qp
}

// CreateQP makes a QP in state RESET and draws its number.
func (e *Engine) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	q := &qp{e: e, h: h, kind: attr.Type, blockSelf: attr.BlockSelfMcastLB}
	switch attr.Type {
	case verbs.RC, verbs.XRCSend, verbs.XRCRecv:
		q.service = wire.RC
		if attr.Type != verbs.RC {
			q.service = wire.XRC
		}
		q.sending.Init(max(int(attr.Cap.MaxSendWR), 1), e.clock)
	case verbs.UC:
		q.service, q.unreliable = wire.UC, new(unreliable)
	case verbs.UD:
		q.service, q.unreliable = wire.UD, new(unreliable)
	default:
		return nil, 0, fmt.Errorf("QP type %v over RoCEv2: %w", attr.Type, verbs.ErrNotSupported)
	}
	q.timer.Init(q.expired)
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
		if err := q.connect(attr, mask); err != nil {
			return err
		}
	}
	if to == verbs.StateReset || to == verbs.StateErr {
		q.part()
	}
	if mask&verbs.QPAttrRateLimit != 0 && to == verbs.StateRTS {
		q.limit(attr.RateLimit)
	}
	q.sending.SetLimits(q.limits(attr, mask))
	switch {
	case to == verbs.StateReset:
		q.reset()
	case to == verbs.StateErr:
		q.quiet()
		q.stopTimer()
	case from == verbs.StateSQD && mask&verbs.QPAttrMaxDestRDAtomic != 0:
		q.resp.setDepth(attr.MaxDestRDAtomic)
	case from == verbs.StateInit && to == verbs.StateRTR:
		q.dest = attr.DestQPNum
		q.resp = responder{
			psn: attr.RQPSN, ackPSN: wire.PSNAdd(attr.RQPSN, 1<<24-1), depth: attr.MaxDestRDAtomic,
		}
	case from == verbs.StateRTR && to == verbs.StateRTS && !q.reliable():
		*q.unreliable = unreliable{psn: attr.SQPSN}
	case from == verbs.StateRTR && to == verbs.StateRTS:
		q.sending.Begin(&send.Connection{
			PSN: attr.SQPSN, MTU: q.mtu, Batch: uint32(q.path.Batch(wire.BTHLen + int(q.mtu) + wire.ICRCLen)),
			Congestion: send.Conservation{},
		})
	}
	return nil
}

// limits is what the attributes of a QP bound in sending, with those that mask names changed.
func (q *qp) limits(attr *verbs.QPAttr, mask verbs.QPAttrMask) send.Limits {
	l := q.sending.Limits()
	if mask&verbs.QPAttrTimeout != 0 {
		l.Timeout = ackTimeout(attr.Timeout)
	}
	if mask&verbs.QPAttrRetryCnt != 0 {
		l.Retries = attr.RetryCnt
	}
	if mask&verbs.QPAttrRNRRetry != 0 {
		l.RNR = attr.RNRRetry
	}
	if mask&verbs.QPAttrMaxQPRDAtomic != 0 {
		l.MaxReads = attr.MaxRDAtomic
	}
	return l
}

// ackTimeout is the local ACK timeout of 4.096 µs × 2^n; 0 means none.
func ackTimeout(n uint8) time.Duration {
	if n == 0 {
		return 0
	}
	return max(4096*time.Nanosecond<<n, minTimeout)
}

// connect opens the path of an address vector.
func (q *qp) connect(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	dest, mtu := q.dest, q.mtu
	if mask&verbs.QPAttrDestQPN != 0 {
		dest = attr.DestQPNum
	}
	if mask&verbs.QPAttrPathMTU != 0 {
		mtu = uint32(attr.PathMTU.Bytes())
	}
	nic, ah, srcPort := q.e.nics[q.port-1], attr.AHAttr, sourcePort(q.num, dest)
	notify, err := q.control(nic, &ah, srcPort)
	if err != nil {
		return err
	}
	path, err := openPath(nic, q.port, &ah, srcPort)
	if err != nil {
		notify.close()
		return err
	}
	if room := path.MTU(); int(mtu)+headerRoom > room {
		path.Close()
		notify.close()
		return fmt.Errorf("path MTU %d needs UDP datagrams of %d bytes, the interface takes %d: %w",
			mtu, mtu+headerRoom, room, verbs.ErrInvalid)
	}
	q.closePaths()
	q.path, q.ends, q.notify, q.mtu = path, path.Ends(), notify, mtu
	if notify != nil {
		q.pacer().react = newReaction(q.e.dcqcn)
	}
	return nil
}

// openPath opens the way that an address vector describes. Service levels 0 to 7 are Ethernet's priorities; of the others,
// which are reserved, the lower bits count, as in hardware (IBTA A16.5).
func openPath(nic stack.NIC, port uint8, ah *verbs.AHAttr, srcPort uint16) (stack.Path, error) {
	grh, gids := &ah.GRH, nic.GIDs()
	i := int(grh.SGIDIndex) % V1Index
	if i >= len(gids) || !gids[i].IsValid() {
		return nil, fmt.Errorf("SGID index %d: port %d has no such GID: %w", grh.SGIDIndex, port, verbs.ErrInvalid)
	}
	path, err := nic.Datagrams().Path(stack.PathAttr{
		Src:          gids[i],
		V1:           isV1(grh),
		Dst:          grh.DGID.Addr(),
		SrcPort:      srcPort,
		TrafficClass: grh.TrafficClass,
		Priority:     ah.SL & 7,
		HopLimit:     grh.HopLimit,
		FlowLabel:    grh.FlowLabel,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	return path, nil
}

// isV1 tells whether a GRH's source is a GID of RoCE v1.
func isV1(grh *verbs.GRH) bool { return grh.SGIDIndex >= V1Index }

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

// closePaths forgets where the QP's packets go.
func (q *qp) closePaths() {
	if q.path != nil {
		q.path.Close()
	}
	q.notify.close()
	q.path, q.ends, q.notify, q.near, q.met = nil, nil, nil, nil, false
}

// reset forgets everything but the QP's number and its port.
func (q *qp) reset() {
	q.stopTimer()
	q.closePaths()
	q.pace = nil
	q.dropHeld()
	q.sending.Reset()
	if u := q.unreliable; u != nil {
		*u = unreliable{}
	}
	q.resp = responder{}
}

// Query implements verbs.ProviderQP.
func (q *qp) Query(attr *verbs.QPAttr) {
	attr.SQPSN = q.sending.NextPSN()
	if u := q.unreliable; u != nil {
		attr.SQPSN = u.psn
	}
	attr.RQPSN = q.resp.psn
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend() {
	if q.reliable() && q.gathers() {
		q.recent = true
		q.e.wait(q)
		return
	}
	q.release()
}

// release sends all that may be sent.
func (q *qp) release() {
	s := q.h.State()
	if q.destroyed || !receives(s) {
		return
	}
	if sends(s) {
		q.send()
	}
	if q.reliable() && !q.destroyed && q.h.State() == s { // not if a request could not be sent
		q.respond()
	}
	q.flush()
}

// send sends what is posted, as far as the service lets it.
func (q *qp) send() {
	switch q.service {
	case wire.RC, wire.XRC:
		q.transmit()
	case wire.UC:
		q.sendMessages()
	case wire.UD:
		q.sendDatagrams()
	}
	if q.draining() && !q.begun() {
		q.h.Drained()
	}
}

// reliable tells whether the QP acknowledges what comes, and wants that of its peer.
func (q *qp) reliable() bool { return q.service == wire.RC || q.service == wire.XRC }

// begun tells that a request is under way.
func (q *qp) begun() bool {
	if u := q.unreliable; u != nil {
		return u.packet != 0
	}
	return q.sending.Begun()
}

// draining tells that no new request may be begun.
func (q *qp) draining() bool { return q.h.State() == verbs.StateSQD }

// PostRecv implements verbs.ProviderQP. A peer that was told RNR asks again by itself.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP.
func (q *qp) Destroy() {
	q.part()
	q.e.qps.Delete(q.num)
	q.reset()
	q.e.timers.Remove(&q.timer)
	q.destroyed = true
	q.e.Counters.fold(q.stats, q.recvs)
}

// leave ends a hold of the lock that brought packets: what they made due is sent, and the QP unlocked. Where an
// application drives the device, some of it waits for what that does next.
func (q *qp) leave(polled bool) {
	if s := q.h.State(); !q.destroyed && receives(s) {
		waits := polled && q.ackWaits()
		switch {
		case waits:
			q.e.wait(q)
		case q.reliable():
			q.respond()
		}
		if sends(s) && !(polled && s == verbs.StateRTS && q.keepsWaiting()) {
			q.send()
		}
		if waits && q.out != nil && q.h.State() == s {
			q.respond() // there is company
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

// quiet forgets what the timer was to be set for, and what was kept because of a gap.
func (q *qp) quiet() {
	q.sending.Stop()
	q.resp.resume = 0
	if u := q.unreliable; u != nil {
		u.resume = 0
	}
	if q.pace != nil {
		q.pace.wake = 0
	}
	q.dropHeld()
}

// flush sends what this hold of the lock has gathered, and then sets the timer, which the peer need not wait for.
func (q *qp) flush() {
	if q.out != nil {
		q.out.Flush()
		q.out = nil
	}
	if q.reliable() {
		q.sending.SetAlarm(sends(q.h.State()))
	}
	q.arm()
}

// expired runs when the QP's timer does.
func (q *qp) expired() {
	q.h.Lock()
	s := q.h.State()
	if q.destroyed || !receives(s) {
		q.h.Unlock()
		return
	}
	now := q.e.now()
	if q.due() > now { // what it was set for is no longer due
		q.arm()
		q.h.Unlock()
		return
	}
	if r := &q.resp; r.resume != 0 && now >= r.resume {
		r.resume = 0
	}
	if p := q.pace; p != nil && now >= p.wake {
		p.wake = 0
	}
	if u := q.unreliable; u != nil && u.resume != 0 && now >= u.resume {
		u.resume = 0
	}
	if sends(s) {
		q.act(q.sending.OnAlarm(now))
	}
	q.leave(false)
}

func (q *qp) stopTimer() { q.e.timers.Stop(&q.timer) }

// due is when the first thing is, 0 if nothing is.
func (q *qp) due() time.Duration {
	due := earlier(q.sending.Deadline(), q.resp.resume)
	if u := q.unreliable; u != nil {
		due = earlier(due, u.resume)
	}
	if p := q.pace; p != nil {
		due = earlier(due, p.wake)
	}
	return due
}

// earlier is the earlier of two times, of which 0 is never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// arm sets the timer for the first thing that is due. To move a deadline away costs nothing in the queue; to be called
// early costs the QP's lock, which whoever is sending has.
func (q *qp) arm() {
	switch due := q.due(); {
	case due == q.timer.Due():
	case due == 0:
		q.e.timers.Stop(&q.timer)
	default:
		q.e.timers.ArmAt(&q.timer, due)
	}
}

// datagram starts a packet of the given payload length to the peer and returns its parts, or nils where the link
// cannot take it.
func (q *qp) datagram(p *wire.Packet, payload int) (header, b []byte) {
	p.DestQP = q.dest
	p.Opcode |= wire.Opcode(q.service) << 5
	if q.reliable() {
		p.Reserved7 = q.e.mark
	}
	return q.packet(q.path, p, payload)
}

// packet is datagram on any path, to the QP that p names.
func (q *qp) packet(path stack.Path, p *wire.Packet, payload int) (header, b []byte) {
	p.PKey = defaultPKey
	p.Pad = wire.PadLen(payload)
	if q.out == nil {
		q.out = q.e.nics[q.port-1].Datagrams().Sender()
	}
	header, b = q.out.Datagram(path, p.HeaderLen()+payload+int(p.Pad)+wire.ICRCLen)
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
	if q.pace != nil {
		q.pace.sent(len(header) + len(b))
	}
}
