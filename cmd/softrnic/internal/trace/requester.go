package trace

import (
	"fmt"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

const (
	// leastTimeout is the shortest time after which a repeated packet is taken for a timeout or a probe. Retransmission timers
	// of RNICs are longer.
	leastTimeout = int64(100 * time.Microsecond)
	// slowTimeout is that for packets behind which answers came, or which are acknowledged.
	slowTimeout = int64(4 * time.Millisecond)
	// maxJump is the number of PSNs from which on a gap is taken for a new connection.
	maxJump = 1 << 20
)

// sent is a request packet that was seen. An acknowledged one is remembered until its place is needed.
type sent struct {
	number  int   // of the packet, when it was first seen
	first   int64 // when that was
	time    int64 // when it was last seen
	psn     uint32
	span    uint32 // PSNs that it takes: those of the response, if it is a READ; 0 if that is not known
	message uint32
	place   uint32
	last    int // the packet when it was last seen
	op      wire.Opcode
	ackReq  bool
	again   bool   // it was repeated
	own     bool   // there was an acknowledgement of this PSN
	times   uint32 // how often it came again
}

// awaited is a request that has a response of its own, until the response is complete.
type awaited struct {
	number  int
	time    int64
	psn     uint32
	span    uint32 // 0: not known
	length  uint32
	next    uint32 // of the PSNs of the span, the one whose response comes next
	restart uint32 // where the response begins to a request that was repeated
	op      wire.Opcode
	again   bool
	runs    int // how often the response may begin again
}

// gap is PSNs that were not seen.
type gap struct {
	from, to uint32 // both included
	number   int    // of the packet behind it
	epoch    uint32
}

// ask is why packets are to be repeated.
type ask struct {
	why    string
	psn    uint32
	number int
	time   int64
	until  int64 // RNR: not before
	open   bool  // repeating has not begun yet
	met    bool  // what it asks for has come
	nak    bool
	began  int64 // when repeating began, unless it is open
}

// maxAsks is how many of those that asked last are remembered.
const maxAsks = 64

// ask notes that packets are asked for again.
func (q *requester) ask(k ask) {
	q.epoch++
	if len(q.asks) == maxAsks {
		q.asks = slices.Delete(q.asks, 0, 1)
	}
	q.asks = append(q.asks, k)
}

// due takes the first ask for exactly that PSN that nothing was repeated for yet.
func (q *requester) due(psn uint32, now int64) (k ask, is bool) {
	for i := range q.asks {
		if k := &q.asks[i]; k.psn == psn && k.open {
			k.open, k.began = false, now
			return *k, true
		}
	}
	return k, false
}

// owed says whether a packet has come again less often than it, or one before it, was asked for. Its sender repeats it once for
// each, and where packets are reordered, those that are repeated for one ask are seen among those for another.
func (q *requester) owed(s *sent, psn uint32) bool {
	if len(q.asks) == maxAsks && s.first <= q.asks[0].time {
		return true // as far as is remembered
	}
	n := uint32(0)
	for _, k := range q.asks {
		// What was new when repeating began may have been sent before, and an ask is seen before its receiver has it.
		if wire.PSNDiff(psn, k.psn) >= 0 && (k.open || k.began > s.first-slowTimeout) {
			n++
		}
	}
	return s.times < n
}

// ref is a packet to name later.
type ref struct {
	number int
	psn    uint32
}

// requester is what a flow's requests show. PSNs before una are acknowledged, next is that of the next new packet.
type requester struct {
	began     bool
	bySetUp   bool // CM told the first PSN
	una, next uint32
	first     uint32
	ring      []sent
	lastRead  int // index in waiting + 1 of a READ that came last and whose span is not known
	mtu       int

	message   uint32
	place     uint32
	inMessage bool
	lost      bool // the beginning of the message was not seen
	writing   bool
	left      int64 // bytes of a WRITE that are to come; −1: not known

	missing []gap
	waiting []awaited
	unread  []gap // PSNs whose responses were passed over
	reread  []gap // and those that were, of a response that came again
	leap    gap   // the last that were left out among repeated ones that are no longer remembered
	skipped []gap // PSNs that were left out where others were repeated

	epoch     uint32 // counts what asked for packets again
	asked     ask    // the last that did
	asks      []ask  // the last ones
	resuming  bool   // the last packet was repeated
	resume    uint32 // the PSN behind it
	run       int    // the packet with which repeating began
	why       string
	replays   int // repeated packets that were not answered yet
	stale     int // repeated packets that were acknowledged before they came again
	again     int // and acknowledgements of them
	againPSN  uint32
	heard     int64 // when the last answer came
	timeout   int64 // by CM; 0: not known
	lastNAK   uint32
	hasNAK    bool
	done      uint32 // messages before una
	base      uint32 // MSN before the first message
	msnKnown  bool
	midway    []ref // where repeating began though what is before it was not acknowledged apart
	overruns  []ref // responses that came more often than they were asked for
	own       int   // packets that asked for an acknowledgement and had one of their own
	shared    int   // or had it from that of a later one
	sharedRef []ref
}

// at is what is remembered of the packet with that PSN.
func (q *requester) at(psn uint32) *sent {
	if len(q.ring) == 0 {
		return nil
	}
	if s := &q.ring[psn&uint32(len(q.ring)-1)]; s.number != 0 && s.psn == psn {
		return s
	}
	return nil
}

// remember makes room for a packet.
func (a *analysis) remember(q *requester, s sent) *sent {
	if len(q.ring) == 0 {
		q.ring = make([]sent, firstRing)
	}
	for n := len(q.ring); n < maxRing && a.remembered < maxRemembered; n *= 2 { // until it and a later one have a place each
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

// request looks at a request packet of RC, XRC or UC.
func (a *analysis) request(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	if !q.began {
		if !q.bySetUp {
			q.first, q.next, q.una = p.PSN, p.PSN, p.PSN
			q.lost = !p.Opcode.Info().First()
		}
		q.began = true
	}
	a.settle(q, p.PSN)
	ahead := wire.PSNDiff(p.PSN, q.next)
	if ahead >= maxJump || ahead <= -maxJump {
		a.report(doubtful, w, f.number, "PSN %d is %d away from the expected %d: taken for a new connection of this QP", p.PSN, ahead, q.next)
		a.finish(w)
		a.remembered -= max(len(q.ring)-firstRing, 0)
		*q = requester{began: true, first: p.PSN, next: p.PSN, una: p.PSN, lost: !p.Opcode.Info().First(), mtu: q.mtu, timeout: q.timeout}
		ahead = 0
	}
	if ahead < 0 {
		a.repeated(w, f, p)
		return
	}
	if ahead > 0 {
		a.gapBefore(w, f, p)
	} else if q.resuming {
		a.leftOut(q, f, p, p.PSN)
	}
	q.resuming = false
	a.inOrder(w, f, p)
}

// gapBefore notes that PSNs are missing before a new packet.
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

// settle finds out how many PSNs the READ took that came last, if that is not known, from the PSN behind it.
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

// packets is how many packets a message of n bytes has.
func packets(n uint32, mtu int) uint32 {
	return max((n+uint32(mtu)-1)/uint32(mtu), 1)
}

// span notes how many PSNs a READ takes.
func (a *analysis) span(q *requester, r *awaited, n uint32) {
	r.span = n
	if s := q.at(r.psn); s != nil {
		s.span = n
	}
	if end := wire.PSNAdd(r.psn, n); wire.PSNDiff(end, q.next) > 0 {
		q.next = end
	}
}

// inOrder looks at a packet with the next PSN.
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

// place checks that a packet may follow the one before it in its message, and how long it is (IBTA Vol 1 §9.7.2.1, §9.8).
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
