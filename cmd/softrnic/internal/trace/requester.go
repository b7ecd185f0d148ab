package trace

import (
	"fmt"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

const (
	// leastTimeout is the shortest time after which a retransmission is attributed to a timeout or
	// a probe. Retransmission timers of RNICs are longer.
	leastTimeout = int64(100 * time.Microsecond)
	// slowTimeout is that for packets followed by answers, and for acknowledged packets.
	slowTimeout = int64(4 * time.Millisecond)
	// maxJump is the least gap in PSNs that is taken for a new connection.
	maxJump = 1 << 20
)

// sent is a captured request packet. An acknowledged one is kept until its slot is reused.
type sent struct {
	number  int   // number of its first copy
	first   int64 // its time
	time    int64 // time of its last copy
	psn     uint32
	span    uint32 // number of its PSNs, for a READ those of the response; 0: not known
	message uint32
	place   uint32
	last    int // number of its last copy
	op      wire.Opcode
	ackReq  bool
	again   bool   // it was retransmitted
	own     bool   // there was an acknowledgement of this PSN
	times   uint32 // number of its retransmissions
}

// awaited is a request with a response, until the response is complete.
type awaited struct {
	number  int
	time    int64
	psn     uint32
	span    uint32 // 0: not known
	length  uint32
	next    uint32 // the PSN of the next response packet
	reached uint32 // the highest next
	restart uint32 // the first PSN of the response to a retransmitted request
	op      wire.Opcode
	again   bool
	runs    int // number of times that the response may be restarted
}

// gap is a range of PSNs that were not captured.
type gap struct {
	from, to uint32 // inclusive
	number   int    // number of the packet after it
	epoch    uint32
}

// ask is a reason for retransmissions.
type ask struct {
	why    string
	psn    uint32
	number int
	time   int64
	until  int64  // RNR: when its wait ends
	from   int64  // not before: the earliest time of it and of earlier ones for the PSN
	mayEnd bool   // it, or one before it, is an RNR NAK, after which a requester may give up
	open   bool   // retransmission has not begun
	served bool   // the requested packet was captured
	same   uint32 // NAKs of this PSN with this syndrome, with it
	nak    bool
	began  int64 // time of the first retransmission, unless open
}

// maxAsks is the number of latest asks that are kept.
const maxAsks = 64

// ask records a reason for retransmissions.
func (q *requester) ask(k ask) {
	q.epoch++
	if len(q.asks) == maxAsks {
		q.asks = slices.Delete(q.asks, 0, 1)
	}
	q.asks = append(q.asks, k)
}

// hasNAKOf reports whether one of the latest asks is a NAK of a PSN.
func (q *requester) hasNAKOf(psn uint32) bool {
	return slices.ContainsFunc(q.asks, func(k ask) bool { return k.nak && k.psn == psn })
}

// due returns the first open ask for exactly a PSN.
func (q *requester) due(psn uint32, now int64) (k ask, is bool) {
	for i := range q.asks {
		if k := &q.asks[i]; k.psn == psn && k.open {
			k.open, k.began = false, now
			return *k, true
		}
	}
	return k, false
}

// owed reports whether a packet was retransmitted less often than it, or an earlier one, was asked
// for. Its sender retransmits it once for each ask. With reordering, the retransmissions for
// several asks are mixed.
func (q *requester) owed(s *sent, psn uint32) bool {
	if len(q.asks) == maxAsks && s.first <= q.asks[0].time {
		return true // as far as known
	}
	n := uint32(0)
	for _, k := range q.asks {
		// A packet that was new when retransmission began may have been sent before: an ask is
		// captured before the sender gets it.
		if wire.PSNDiff(psn, k.psn) >= 0 && (k.open || k.began > s.first-slowTimeout) {
			n++
		}
	}
	return s.times < n
}

// ref is a packet for a later finding.
type ref struct {
	number int
	psn    uint32
}

// requester is the state of a flow's requests. PSNs before una are acknowledged. next is the PSN of
// the next new packet.
type requester struct {
	began     bool
	bySetUp   bool // CM gave the first PSN
	midst     bool // the first packet does not begin a message
	una, next uint32
	first     uint32
	outrun    ref   // the acknowledgement of next, which the capture has before it
	outranAt  int64 // its time
	ring      []sent
	lastRead  int // index in waiting + 1 of the last READ, if its span is not known
	mtu       int

	message   uint32
	place     uint32
	inMessage bool
	lost      bool // the beginning of the message was not captured
	writing   bool
	left      int64 // remaining bytes of a WRITE; −1: not known

	missing []gap
	waiting []awaited
	unread  []gap // PSNs of skipped responses
	reread  []gap // and of skipped retransmitted responses
	leap    gap   // the last gap among retransmissions that are no longer kept
	skipped []gap // PSNs skipped among retransmissions

	epoch     uint32 // number of asks
	asked     ask    // the last ask
	asks      []ask  // the latest asks
	resuming  bool   // the last packet was a retransmission
	probed    int64  // the time of the last packet that came again after a timeout, if it is the last packet
	early     bool   // the last packet is the last one before first
	resume    uint32 // the PSN after it
	run       int    // the packet with which retransmission began
	why       string
	replays   int // retransmitted packets without an answer
	stale     int // retransmissions of acknowledged packets
	again     int // acknowledgements of those
	againPSN  uint32
	heard     int64 // time of the last answer
	timeout   int64 // by CM; 0: not known
	lastNAK   uint32
	hasNAK    bool
	done      uint32 // messages before una
	base      uint32 // MSN before the first message
	msnKnown  bool
	midway    []ref // starts of retransmission whose earlier PSNs were not acknowledged separately
	overruns  []ref // responses sent more often than requested
	own       int   // packets that requested an acknowledgement and got their own
	shared    int   // packets that shared the acknowledgement of a later one
	sharedRef []ref
}

// at returns the kept packet with a PSN, or nil.
func (q *requester) at(psn uint32) *sent {
	if len(q.ring) == 0 {
		return nil
	}
	if s := &q.ring[psn&uint32(len(q.ring)-1)]; s.number != 0 && s.psn == psn {
		return s
	}
	return nil
}

// remember makes room for a packet and adds it.
func (a *analysis) remember(q *requester, s sent) *sent {
	if len(q.ring) == 0 {
		q.ring = make([]sent, firstRing)
	}
	// The ring grows until no later packet shares the packet's slot.
	for n := len(q.ring); n < maxRing && a.remembered < maxRemembered; n *= 2 {
		old := &q.ring[s.psn&uint32(n-1)]
		if old.number == 0 || wire.PSNDiff(old.psn, q.una) < 0 || old.psn == s.psn {
			break
		}
		a.remembered += n
		ring := make([]sent, 2*n)
		for _, o := range q.ring {
			if o.number != 0 {
				ring[o.psn&uint32(2*n-1)] = o
			}
		}
		q.ring = ring
	}
	p := &q.ring[s.psn&uint32(len(q.ring)-1)]
	*p = s
	return p
}

// request analyses a request packet of RC, XRC or UC.
func (a *analysis) request(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	if !q.began {
		if !q.bySetUp {
			q.first, q.next, q.una = p.PSN, p.PSN, p.PSN
			q.lost = !p.Opcode.Info().First()
			q.midst = q.lost
		}
		q.began = true
	}
	a.settle(q, p.PSN)
	ahead := wire.PSNDiff(p.PSN, q.next)
	if ahead >= maxJump || ahead <= -maxJump {
		a.report(doubtful, w, f.number, "PSN %d is %d away from the expected %d: taken for a new connection of this QP", p.PSN, ahead,
			q.next)
		a.finish(w)
		a.remembered -= max(len(q.ring)-firstRing, 0)
		*q = requester{began: true, first: p.PSN, next: p.PSN, una: p.PSN, lost: !p.Opcode.Info().First(), mtu: q.mtu, timeout: q.timeout}
		ahead = 0
	}
	if ahead < 0 {
		a.repeated(w, f, p)
		a.sent(w, f, p)
		return
	}
	a.caughtUp(w, p.PSN, f.time, true)
	if ahead > 0 {
		a.gapBefore(w, f, p)
	} else if q.resuming && wire.PSNDiff(q.una, q.resume) <= 0 && !a.probe(q, f, p) { // else an answer shows that no more is to be repeated
		a.leftOut(q, f, p, p.PSN)
	}
	q.resuming, q.early = false, false
	a.inOrder(w, f, p)
	a.sent(w, f, p)
}

// outrunWithin is how long a bridge may take between forwarding a packet and showing it to a
// capture on the bridge itself: Linux does it in that order, and another processor may bring the
// answer.
const outrunWithin = int64(10 * time.Millisecond)

// caughtUp is called with the next new packet, or at the end. It judges an acknowledgement that the
// capture has before the packet.
func (a *analysis) caughtUp(w *flow, psn uint32, now int64, is bool) {
	q := &w.req
	o := q.outrun
	if o.number == 0 {
		return
	}
	q.outrun = ref{}
	if is && psn == o.psn && a.within(now-q.outranAt, outrunWithin) {
		a.overtaken(w, o.number, "acknowledges PSN %d before the capture has it", psn)
		return
	}
	a.report(wrong, w, o.number, "answers PSN %d, which was not sent: the next is %d", o.psn, o.psn)
}

// gapBefore records that PSNs are missing before a new packet.
func (a *analysis) gapBefore(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	to := wire.PSNAdd(p.PSN, 1<<24-1)
	a.ev.missing = psns(q.next, to)
	w.stats.Gaps++
	if len(q.missing) < maxMissing {
		q.missing = append(q.missing, gap{q.next, to, f.number, q.epoch})
	} else {
		a.report(wrong, w, f.number, "%s missing before this packet", psns(q.next, to))
	}
	q.lost, q.inMessage = !p.Opcode.Info().First(), false
	q.msnKnown = false
	q.next = p.PSN
}

func psns(from, to uint32) string {
	if from == to {
		return fmt.Sprintf("PSN %d is", from)
	}
	return fmt.Sprintf("PSNs %d to %d are", from, to)
}

// settle derives the span of the last READ, if not known, from the PSN after it.
func (a *analysis) settle(q *requester, psn uint32) {
	if q.lastRead == 0 {
		return
	}
	if q.lastRead > len(q.waiting) {
		q.lastRead = 0
		return
	}
	r := &q.waiting[q.lastRead-1]
	if r.span == 0 {
		d := wire.PSNDiff(psn, r.psn)
		if d <= 0 {
			return
		}
		for mtu := 256; mtu <= 4096; mtu *= 2 {
			if n := packets(r.length, mtu); n == uint32(d) {
				if n > 1 {
					q.mtu = mtu
				}
				a.span(q, r, n)
			}
		}
	}
	q.lastRead = 0
}

// packets returns the number of packets of a message of n bytes.
func packets(n uint32, mtu int) uint32 {
	return max((n+uint32(mtu)-1)/uint32(mtu), 1)
}

// span records the number of PSNs of a READ.
func (a *analysis) span(q *requester, r *awaited, n uint32) {
	r.span = n
	if s := q.at(r.psn); s != nil {
		s.span = n
	}
	if end := wire.PSNAdd(r.psn, n); wire.PSNDiff(end, q.next) > 0 {
		q.next = end
	}
}

// inOrder analyses a packet with the next PSN.
func (a *analysis) inOrder(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	info := p.Opcode.Info()
	a.place(w, f, p)
	span := uint32(1)
	if info.Read() {
		if span = 0; q.mtu != 0 {
			span = packets(p.RETH.Length, q.mtu)
		} else if p.RETH.Length <= 256 {
			span = 1
		}
	}
	a.remember(q, sent{number: f.number, first: f.time, time: f.time, psn: p.PSN, span: span, message: q.message, place: q.place,
		last: f.number, op: p.Opcode, ackReq: p.AckReq})
	q.next = wire.PSNAdd(p.PSN, max(span, 1))
	if w.transport == wire.UC {
		q.una = q.next
	} else if info.Answered() {
		q.makeRoom()
		q.waiting = append(q.waiting, awaited{number: f.number, time: f.time, psn: p.PSN, span: span, length: p.RETH.Length, op: p.Opcode})
		q.lastRead = 0
		if span == 0 {
			q.lastRead = len(q.waiting)
		}
	}
	a.ev.message, a.ev.place = q.message, q.place
	w.stats.Bytes += uint64(len(p.Payload))
	if info.Last() {
		w.stats.Messages++
	}
}

// place checks that a packet may follow the previous one in its message, and its length (IBTA Vol 1
// §9.7.2.1, §9.8).
func (a *analysis) place(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	info := p.Opcode.Info()
	n := len(p.Payload)
	if info.First() {
		if q.inMessage && !q.lost {
			a.report(wrong, w, f.number, "%v begins a message, but message %d has not ended", p.Opcode, q.message)
		}
		q.message++
		q.place, q.inMessage, q.lost, q.writing, q.left = 1, true, false, info.Write(), -1
		if info.Write() {
			q.left = int64(p.RETH.Length)
		}
	} else {
		q.place++
		switch {
		case q.lost:
			q.writing, q.left, q.inMessage = info.Write(), -1, true
		case !q.inMessage:
			a.report(wrong, w, f.number, "%v continues a message, but none has begun", p.Opcode)
			q.writing, q.left, q.inMessage = info.Write(), -1, true
		case q.writing != info.Write():
			a.report(wrong, w, f.number, "%v does not continue message %d, which is another operation", p.Opcode, q.message)
			q.writing, q.left = info.Write(), -1
		}
	}
	if info.HasPayload() {
		switch {
		case !info.Last() && q.mtu == 0 && !isMTU(n):
			a.report(wrong, w, f.number, "%d bytes in a packet that is not its message's last: that is no path MTU", n)
		case !info.Last() && q.mtu == 0:
			q.mtu = n
		case !info.Last() && n != q.mtu, q.mtu != 0 && n > q.mtu:
			a.report(wrong, w, f.number, "%d bytes of payload; the path MTU is %d", n, q.mtu)
		case info.Last() && !info.First() && n == 0:
			a.report(wrong, w, f.number, "the last packet of a message of several is empty")
		}
	}
	if q.left >= 0 && info.Write() {
		q.left -= int64(n)
		if info.Last() && q.left != 0 || q.left < 0 {
			a.report(wrong, w, f.number, "a WRITE whose RETH says another length than its packets have: %d bytes more", q.left)
			q.left = -1
		}
	}
	if info.Last() {
		q.inMessage, q.lost = false, false
	}
}

func since(ns int64) time.Duration {
	d := time.Duration(ns)
	switch {
	case d > time.Second:
		return d.Round(time.Millisecond)
	case d > 100*time.Microsecond:
		return d.Round(time.Microsecond)
	case d > 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond)
	}
	return d
}
