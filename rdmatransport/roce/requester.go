package roce

// On the path: the outgoing half. Work requests become packets here, on the goroutine that posted them or that brought
// the acknowledgement which opened the window. (IBTA Vol 1 §9.7.3, §9.7.5)

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// requester is the state of a QP's send queue on the wire.
//
// PSNs are 24 bits and wrap; work requests are counted from the QP's start: the queue holds those from first on.
type requester struct {
	sent  []sentWR // what is known of each queued request, by number modulo its length (a power of two)
	first uint64   // number of the oldest uncompleted request

	una  uint32 // oldest PSN not yet acknowledged
	next uint32 // PSN that the next new request gets
	max  uint32 // one past the highest PSN ever sent, for telling what can be acknowledged

	curPkt uint32 // packet to send next of the request cur: PSN less its first PSN
	cur    uint64 // number of the request to send from next

	seen   uint64 // number of the request that PostSend sees next
	queued queued

	window    uint32 // packets that may be in flight now
	maxWindow uint32
	batch     uint32 // full packets in one frame of the link
	unasked   uint32 // packets sent since the last request for an acknowledgement
	lastAsk   uint32 // PSN behind that request, or una if it is answered or to be sent again

	credits credits

	incomplete uint32      // started requests that have answers and are not complete, for fences
	rttPSN     uint32      // of the packet whose round trip is measured
	behind     uint32      // PSN behind what was sent as a probe
	rnrPSN     uint32      // see rnrWait
	asked      *readBounds // nil before the first READ
	rec        *recovery   // what is known of each packet in flight, while something is missing

	retries    uint8 // timeouts and NAKs since the last progress or RNR NAK
	rnrRetries uint8
	wentBack   bool // a NAK made us go back to una; no progress and no timeout since

	excused bool // a timeout that came late was not taken for a loss, and no progress since

	selective bool          // the peer marks its packets
	probed    bool          // una was sent as a probe, and what follows it was sent before
	probes    uint8         // sent since the last progress
	probe     time.Duration // when the next is due, or 0
	wait      time.Duration // for an answer before there is a probe; 0 if no round trip was ever measured
	rtt       time.Duration // smoothed; 0 if it was never measured
	rttVar    time.Duration // how far from it they are, smoothed
	rttStart  time.Duration // when the packet was sent whose round trip is measured; 0 if none is

	timeout time.Duration // when una is overdue; 0 if nothing is in flight or no timeout is set
	rnrWait time.Duration // until when nothing from rnrPSN on is sent, as the peer asked, or a UC sender pauses; 0 if not
}

// readBounds is the last PSN of each READ request, atomic and the like (hasAnswer) that is not answered in full, oldest
// first; the first n of them are outstanding, the others were before the requester went back. A READ is repeated with
// the bounds it had: a responder knows it by them.
type readBounds struct {
	last []uint32
	n    int
}

// reads is the bounds of what is not answered in full.
func (r *requester) reads() []uint32 {
	if r.asked == nil {
		return nil
	}
	return r.asked.last
}

// outstanding is how many READs, atomics and the like the peer is to answer.
func (r *requester) outstanding() int {
	if r.asked == nil {
		return 0
	}
	return r.asked.n
}

// sentWR is what the requester remembers of a work request.
type sentWR struct {
	firstPSN, packets uint32 // packets: 0 until its PSNs are assigned
	status            verbs.WCStatus
	local             bool // carried out, if status is success; it has no packets
}

// started tells that the request has its PSNs, or needs none.
func (s *sentWR) started() bool { return s.packets != 0 || s.local }

// begin sets the requester up as the QP enters RTS.
func (r *requester) begin(psn, mtu, batch uint32) {
	clear(r.sent)
	w := window(mtu)
	batch = min(batch, w/2)
	*r = requester{sent: r.sent, una: psn, next: psn, max: psn, lastAsk: psn, window: w, maxWindow: w, batch: batch}
}

// window is how many packets of a path MTU may be under way.
func window(mtu uint32) uint32 { return min(windowBytes/mtu, maxWindow) }

func (r *requester) at(n uint64) *sentWR { return &r.sent[n&uint64(len(r.sent)-1)] }

// idle tells that nothing is in flight.
func (r *requester) idle() bool { return r.una == r.max }

// transmit sends what the window, the peer's resources and fences allow.
func (q *qp) transmit() {
	r := &q.req
	r.seen, r.queued = r.first+uint64(q.h.SendLen()), queued{}
	if !q.sendDirect() {
		return
	}
	if r.rec != nil && !q.repeat() {
		q.failOldest()
		return
	}
	end := r.first + uint64(q.h.SendLen())
	for r.cur < end {
		wr := q.h.Send(int(r.cur - r.first))
		s := r.at(r.cur)
		if q.met && r.cur != r.first && r.curPkt == 0 && s.packets == 0 {
			break // without packets, as soon as those before it are there
		}
		if r.curPkt == 0 && !s.started() && (q.draining() || !q.start(wr, s)) {
			break
		}
		if s.status != verbs.WCSuccess || !q.sendWR(wr, s) {
			if s.status != verbs.WCSuccess {
				q.ask()
			}
			break
		}
		r.cur++
		r.curPkt = 0
		q.popLocal()
	}
	q.failOldest()
}

// start assigns a new request its PSNs, unless a fence or the peer's credits hold it back.
func (q *qp) start(wr *verbs.SendWR, s *sentWR) bool {
	r := &q.req
	if wr.Flags&verbs.SendFence != 0 && r.incomplete > 0 {
		return false
	}
	if isLocal(wr.Opcode) {
		*s = sentWR{firstPSN: r.next, local: true, status: q.carryOut(wr)}
		return true
	}
	if r.una != r.next && !r.credits.allow(wr.Opcode) {
		return false // what came before has asked for an acknowledgement: see followed
	}
	r.credits.begin(wr.Opcode)
	*s = sentWR{firstPSN: r.next, packets: 1}
	if !isAtomic(wr.Opcode) {
		s.packets = max(1, uint32((wr.Length()+uint64(q.mtu)-1)/uint64(q.mtu)))
	}
	if hasAnswer(wr.Opcode) {
		r.incomplete++
		if q.h.Attr().MaxRDAtomic == 0 {
			s.status = verbs.WCLocQPOpErr // it could never be sent
		}
	}
	r.next = wire.PSNAdd(r.next, s.packets)
	return true
}

// room is how many packets the window still takes from the given PSN on.
func (r *requester) room(psn uint32) int32 {
	if r.rec != nil {
		return min(int32(r.window)-r.rec.inFlight, int32(2*r.maxWindow)-wire.PSNDiff(psn, r.una))
	}
	return int32(r.window) - wire.PSNDiff(psn, r.una)
}

// notReady tells that the peer asked to be left alone with a packet for a while.
func (r *requester) notReady(psn uint32) bool {
	return r.rnrWait != 0 && wire.PSNDiff(psn, r.rnrPSN) >= 0
}

// beyond tells that a message goes beyond the peer's credits; only the one that was begun last can.
func (r *requester) beyond(wr *verbs.SendWR, s *sentWR) bool {
	return r.credits.beyond(wr.Opcode) && wire.PSNAdd(s.firstPSN, s.packets) == r.next
}

// alone tells that the first packet of such a message is sent, and what follows it waits for its acknowledgement.
func (r *requester) alone(wr *verbs.SendWR, s *sentWR) bool {
	return r.curPkt > 0 && r.beyond(wr, s) && wire.PSNDiff(r.una, s.firstPSN) <= 0
}

// sendWR sends the rest of a request; false if it had to stop before the end.
func (q *qp) sendWR(wr *verbs.SendWR, s *sentWR) bool {
	r := &q.req
	for r.curPkt < s.packets {
		psn := wire.PSNAdd(s.firstPSN, r.curPkt)
		room := r.room(psn)
		if room <= 0 || r.notReady(psn) || r.credits.given && r.alone(wr, s) {
			return false
		}
		if !q.mayPass() {
			return false
		}
		n := uint32(1)
		switch {
		case !hasAnswer(wr.Opcode) && r.frameStart(r.curPkt) && uint32(room) < r.worth(s, r.curPkt) && r.opens():
			return false // the window opens a part of a frame at a time: this one waits to be sent whole
		case wr.Opcode == verbs.RDMARead:
			if !q.readSlot() {
				return false
			}
			left := s.packets - r.curPkt
			if q.asksLater(uint32(room), left) {
				return false
			}
			n = r.askRead(psn, min(left, uint32(room)))
			q.sendRead(wr, r.curPkt, psn, n)
		case hasAnswer(wr.Opcode):
			if !q.readSlot() {
				return false
			}
			if s.status = q.sendSmall(wr, s, psn); s.status != verbs.WCSuccess {
				return false
			}
			r.askRead(psn, 1)
		default:
			unasked, lastAsk := r.unasked, r.lastAsk
			if s.status = q.sendData(wr, s, r.curPkt, psn, q.wantsAck(wr, s, psn, room)); s.status != verbs.WCSuccess {
				r.unasked, r.lastAsk = unasked, lastAsk
				return false
			}
		}
		r.curPkt += n
		if r.rec != nil {
			r.rec.sent(psn, n, hasAnswer(wr.Opcode))
		} else if r.rttStart == 0 && r.wait != r.leastWait() && psn == r.max {
			r.rttPSN, r.rttStart = psn, q.e.now()
		}
		if past := wire.PSNAdd(psn, n); wire.PSNDiff(past, r.max) > 0 {
			r.max = past
		}
	}
	return true
}

// frameStart tells that a frame begins with the packet of a long message. The first packet is longer than those that
// follow: it has a frame with the second, or what came before.
func (r *requester) frameStart(pkt uint32) bool { return pkt >= 2 && (pkt-2)%r.batch == 0 }

// worth is how many packets make a frame worth sending from a packet of a message on.
func (r *requester) worth(s *sentWR, pkt uint32) uint32 { return min(r.batch, s.packets-pkt, r.window) }

// asksLater tells whether the rest of the current READ, of left packets, waits for more room: while answers come the window
// opens packet by packet, and half of it is asked for at a time, of several READs if need be, whose requests share a
// frame then, and their answers too.
func (q *qp) asksLater(room, left uint32) bool {
	r := &q.req
	if n := r.outstanding(); n == 0 || n != len(r.reads()) || room >= r.window/2 {
		return false
	}
	if q.out == nil { // else there is such a frame
		for n := int(r.cur + 1 - r.first); left <= room && n < q.h.SendLen(); n++ {
			wr := q.h.Send(n)
			if wr.Opcode != verbs.RDMARead || wr.Flags&verbs.SendFence != 0 {
				break
			}
			left += q.packets(uint32(wr.Length()))
		}
	}
	return room < left
}

// wantsAck tells whether packet psn, which is sent next, asks for an acknowledgement. The last message that is posted ends
// with such a request, and each that is repeated; else there is one now and then, at the ends of frames and messages, and
// where the rate, what is posted next, credits or, with none asked for on its way, the window is about to stop the sender.
func (q *qp) wantsAck(wr *verbs.SendWR, s *sentWR, psn uint32, room int32) bool {
	r := &q.req
	r.unasked++
	next, ask := r.curPkt+1, false
	switch {
	case r.curPkt == 0 && r.credits.given && r.beyond(wr, s):
		ask = true
	case q.pace != nil && q.pace.asks(q.mtu, q.e.now()):
		ask = true
	case next == s.packets:
		ask = r.unasked >= r.ackEvery() || room == 1 && !r.ackComes() || !q.followed(s)
	case room == 1:
		ask = !r.ackComes()
	case r.frameStart(next):
		ask = r.unasked >= r.ackEvery() || uint32(room-1) < r.worth(s, next) && !r.ackComes()
	}
	if ask {
		r.noteAsk(psn)
	}
	return ask
}

// ackEvery is how many packets are sent between two requests for an acknowledgement, where more are to follow.
func (r *requester) ackEvery() uint32 {
	n := max(1, r.window/acksPerWindow)
	if n > r.batch {
		n -= n % r.batch
	}
	return n
}

// awaitsAck tells that an acknowledgement was asked for that una does not include yet.
func (r *requester) awaitsAck() bool { return wire.PSNDiff(r.lastAsk, r.una) > 0 }

// ackComes tells that an acknowledgement was asked for, and has not come. While something is missing that means little.
func (r *requester) ackComes() bool { return r.rec == nil && r.awaitsAck() }

// opens tells that something in flight brings an answer: the window becomes larger, or it is seen what is missing.
func (r *requester) opens() bool {
	return r.awaitsAck() && (r.rec == nil || !r.rec.at(r.lastAsk-1).is(arrived))
}

// noteAsk notes that packet psn asks for an acknowledgement.
func (r *requester) noteAsk(psn uint32) { r.unasked, r.lastAsk = 0, wire.PSNAdd(psn, 1) }

// followed tells that nothing but the window can keep the request behind s, the current one, from being sent at once, and
// that it asks for an acknowledgement, or one behind it does.
func (q *qp) followed(s *sentWR) bool {
	r := &q.req
	n := int(r.cur + 1 - r.first)
	repeated := wire.PSNDiff(r.max, wire.PSNAdd(s.firstPSN, r.curPkt)) > 0
	if n >= q.h.SendLen() || repeated || r.rec != nil || q.pace != nil || q.met || q.draining() {
		return false
	}
	wr := q.h.Send(n)
	return !hasAnswer(wr.Opcode) && !isLocal(wr.Opcode) && wr.Flags&verbs.SendFence == 0 && r.credits.allow(wr.Opcode) &&
		r.at(r.cur+1).status == verbs.WCSuccess
}

// ask sends the last packet before the current request again, with a request for the acknowledgement that the current
// one was to ask for and cannot. What comes before a request that has an answer, or is local, has asked.
func (q *qp) ask() {
	r := &q.req
	if r.unasked == 0 || r.cur == r.first {
		return
	}
	wr, s := q.h.Send(int(r.cur-1-r.first)), r.at(r.cur-1)
	if !hasAnswer(wr.Opcode) && !isLocal(wr.Opcode) {
		psn := wire.PSNAdd(s.firstPSN, s.packets-1)
		r.noteAsk(psn)
		q.sendData(wr, s, s.packets-1, psn, true)
	}
}

// readSlot tells whether the peer has room for one more outstanding READ or atomic (max_rd_atomic).
func (q *qp) readSlot() bool { return q.req.outstanding() < int(q.h.Attr().MaxRDAtomic) }

// askRead notes a READ request or atomic at psn that is to have n responses, and returns how many it has: a repeated one
// ends where it ended before.
func (r *requester) askRead(psn, n uint32) uint32 {
	if r.asked == nil {
		r.asked = new(readBounds)
	}
	a := r.asked
	if a.n < len(a.last) {
		n = uint32(wire.PSNDiff(a.last[a.n], psn)) + 1
	} else {
		a.last = append(a.last, wire.PSNAdd(psn, n-1))
	}
	a.n++
	return n
}

// sendData sends packet k of a SEND or WRITE, and has it ask for an acknowledgement or not. The payload is copied from
// the user's memory once, into the frame, and the ICRC taken over that copy: memory that changes in flight cannot make a
// packet invalid.
func (q *qp) sendData(wr *verbs.SendWR, s *sentWR, k, psn uint32, ask bool) verbs.WCStatus {
	off := uint64(k) * uint64(q.mtu)
	n := int(min(wr.Length()-off, uint64(q.mtu)))
	last := k == s.packets-1
	p := wire.Packet{BTH: wire.BTH{
		Opcode: dataOpcode(wr.Opcode, k == 0, last) | wire.Opcode(q.service)<<5,
		PSN:    psn,
		AckReq: ask,
	}}
	info := p.Opcode.Info()
	if info.HasRETH() {
		p.RETH = wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(wr.Length())}
	}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.Imm = wr.ImmData
	p.InvalidateRKey = wr.InvalidateRKey
	// Only what completes a receive request may ask for an event there (IBTA Vol 1 §9.2.3).
	p.Solicited = last && wr.Flags&verbs.SendSolicited != 0 && (info.Send() || info.HasImmDt())
	header, b := q.datagram(&p, n)
	if b == nil {
		return verbs.WCSuccess // as good as lost: the timeout will try again
	}
	h := p.EncodeHeader(b)
	payload := b[h : h+n]
	if data := wr.Inline(); data != nil {
		copy(payload, data[off:])
	} else if status := q.e.regions.Gather(payload, q.h.PD(), wr.SGList, off); status != verbs.WCSuccess {
		q.out.Drop()
		return status
	}
	q.seal(header, b)
	return verbs.WCSuccess
}

// sendRead asks for n packets of a READ from packet k, psn, on. A long READ is asked for in pieces that fit the window: its
// responses then cannot overrun the queues on the way back. Each piece is a READ of its own to the peer.
func (q *qp) sendRead(wr *verbs.SendWR, k, psn, n uint32) {
	off := uint64(k) * uint64(q.mtu)
	length := min(wr.Length()-off, uint64(n)*uint64(q.mtu))
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.RETH = wire.RETH{Addr: wr.RemoteAddr + off, RKey: wr.RKey, Length: uint32(length)}
	q.sendHeader(&p)
}

func (q *qp) sendAtomic(wr *verbs.SendWR, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCCmpSwap, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.AtomicETH = wire.AtomicETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Swap: wr.Swap, Compare: wr.CompareAdd}
	if wr.Opcode == verbs.AtomicFetchAndAdd {
		p.Opcode = wire.RCFetchAdd
		p.AtomicETH.Swap, p.AtomicETH.Compare = wr.CompareAdd, 0
	}
	q.sendHeader(&p)
}

// sendHeader sends a packet without payload.
func (q *qp) sendHeader(p *wire.Packet) {
	if header, b := q.datagram(p, 0); b != nil {
		p.EncodeHeader(b)
		q.seal(header, b)
	}
}

// failOldest fails the QP when the oldest request is one that could not be sent. Until then the requests before it
// may still complete.
func (q *qp) failOldest() {
	r := &q.req
	if r.cur != r.first && r.rec == nil || q.h.SendLen() == 0 {
		return
	}
	if s := r.at(r.first); s.started() && s.status != verbs.WCSuccess {
		q.failSend(s.status)
	}
}

// failSend completes the oldest request with an error and moves the QP to ERR.
func (q *qp) failSend(status verbs.WCStatus) {
	q.pop(status, 0)
	q.fail()
}

// pop completes the oldest request.
func (q *qp) pop(status verbs.WCStatus, byteLen uint32) {
	*q.req.at(q.req.first) = sentWR{}
	q.req.first++
	q.h.CompleteSend(status, byteLen)
}

func isAtomic(op verbs.WROpcode) bool {
	return op == verbs.AtomicCmpAndSwp || op == verbs.AtomicFetchAndAdd
}

// dataOpcode is the opcode of one packet of a SEND or WRITE, in RC; UC has the same with its own upper bits.
func dataOpcode(op verbs.WROpcode, first, last bool) wire.Opcode {
	var o [4]wire.Opcode // middle, first, last, only
	switch op {
	case verbs.Send:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLast, wire.RCSendOnly}
	case verbs.SendWithImm:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLastImm, wire.RCSendOnlyImm}
	case verbs.SendWithInv:
		o = [4]wire.Opcode{wire.RCSendMiddle, wire.RCSendFirst, wire.RCSendLastInv, wire.RCSendOnlyInv}
	case verbs.AtomicWrite:
		return wire.RCAtomicWrite
	case verbs.RDMAWrite:
		o = [4]wire.Opcode{wire.RCWriteMiddle, wire.RCWriteFirst, wire.RCWriteLast, wire.RCWriteOnly}
	case verbs.RDMAWriteWithImm:
		o = [4]wire.Opcode{wire.RCWriteMiddle, wire.RCWriteFirst, wire.RCWriteLastImm, wire.RCWriteOnlyImm}
	}
	i := 0
	if first {
		i |= 1
	}
	if last {
		i |= 2
	}
	return o[i]
}
