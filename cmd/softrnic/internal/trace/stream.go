package trace

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

const (
	// maxStreams is the most TCP connections that are followed at a time.
	maxStreams = 1 << 12
	// maxEarly is the most out-of-order bytes of one direction, and maxBuffered those of all.
	maxEarly, maxBuffered = 1 << 19, 1 << 26
	// leastTCP is the shortest retransmission timeout of TCP. Linux's timers take at least two
	// ticks of a millisecond. It is also longer than a tick of the timestamp clock.
	leastTCP = int64(2 * time.Millisecond)
	// leastSYN is the shortest one of a SYN, whose timer is a second.
	leastSYN = int64(800 * time.Millisecond)
)

// streamKey identifies a TCP connection. low is the lesser of its ends.
type streamKey struct{ low, high netip.AddrPort }

// stream is a TCP connection.
type stream struct {
	streamKey
	order int
	last  int64
	upper *upper  // nil unless iwarp
	half  [2]half // segments of low, and of high
	iwarp bool
	// segments are those that are counted as TCP, or as left out if there is a rule.
	segments int
	rule     string // that it may be iWARP, and cannot be told; "" otherwise
}

// phase is the decoding state of one direction.
type phase uint8

const (
	awaitsFrame phase = iota // MPA's request or reply
	awaitsReply              // its own frame was captured, the other was not
	framed                   // FPDUs
	midway                   // its beginning, or a part of it, is not in the capture: FPDUs are sought
	unfollowed               // not MPA, or no FPDU was found, or a part cannot be read
)

// early is an out-of-order segment.
type early struct {
	seq    uint32
	b      []byte
	fin    bool // it ends with a FIN
	number int
}

// sentSegment is a captured segment with payload.
type sentSegment struct {
	header tcpHeader
	length int
	number int
	time   int64
}

// half is one direction of a TCP connection.
type half struct {
	began     bool
	unseen    bool   // only acknowledgements show where it is: bytes may be on their way since before the capture
	next      uint32 // sequence number after the bytes captured without a gap
	high      uint32 // highest sequence number
	number    int    // last packet with payload
	time      int64  // when that was
	sentStamp uint32 // and its timestamp
	syn       uint32 // sequence number of the SYN, and its packet
	synAt     int
	fin       bool
	early     []early
	held      int
	holeAt    int64 // when the gap was detected

	acked    bool
	ack      uint32 // last acknowledgement of this side
	window   uint16
	asked    int // number of retransmission requests of this side: duplicate acknowledgements, SACKs
	askedAt  int // asked of the other side when the gap was detected
	stamp    uint32
	stamped  bool
	recent   [8]sentSegment // the last ones
	recentAt int
	ackedBy  int // the last packet with an acknowledgement
	trip     uint32
	tripTime int64 // when the segment of trip was sent; 0: no measurement

	phase    phase
	frame    mpa.Frame
	held0    []byte // bytes of an incomplete frame, or of FPDUs before the reply
	search   search
	checked  uint64 // bytes of CRCs that searches have computed
	receiver mpa.Receiver
	rdma     rdma
	prefix   prefix
	stats    statistics
	first    int64
	lastTime int64
}

func keyOf(f *frame) (k streamKey, side int) {
	src, dst := netip.AddrPortFrom(f.src, f.srcPort), netip.AddrPortFrom(f.dst, f.dstPort)
	if src.Compare(dst) <= 0 {
		return streamKey{src, dst}, 0
	}
	return streamKey{dst, src}, 1
}

func (s *stream) ends(side int) (from, to netip.AddrPort) {
	if side == 0 {
		return s.low, s.high
	}
	return s.high, s.low
}

// segment analyses a TCP segment.
func (a *analysis) segment(f *frame) {
	k, side := keyOf(f)
	s := a.streams[k]
	if s != nil && f.tcp.syn && !a.copied {
		h := &s.half[side]
		otherStart := h.began && f.tcp.seq+1 != h.next
		over := h.fin || s.half[1-side].fin || f.time-s.last > int64(time.Second)
		if otherStart && over { // the ports are reused
			a.endStream(s)
			s = nil
		}
	}
	if s == nil {
		if len(a.streams) >= maxStreams {
			a.makeStreamRoom()
		}
		a.ordered++
		s = &stream{streamKey: k, order: a.ordered}
		a.streams[k] = s
	}
	s.last = f.time
	a.ev.stream = s
	h, o := &s.half[side], &s.half[1-side]
	if h.stats.Packets == 0 {
		h.first = f.time
	}
	h.stats.Packets++
	h.stats.Wire += uint64(f.length) + 40
	h.lastTime = f.time
	if a.detail {
		a.ev.operation, a.ev.class = "", request
	}
	if !a.copied && f.length > 0 {
		a.copyOf(h, f)
	}
	if !a.copied {
		a.times(h, f)
		a.acknowledges(s, side, f)
		a.bytes(s, side, f)
	} else {
		h.stats.Repeated++
	}
	if s.iwarp {
		a.counts.IWARP++
		a.ev.shown = a.ev.operation != "" || f.tcp.fin || f.tcp.rst || a.ev.missing != ""
		if f.tcp.rst {
			a.ev.operation = join(a.ev.operation, "TCP RST")
		} else if f.tcp.fin {
			a.ev.operation = join(a.ev.operation, "TCP FIN")
		}
		if a.ev.operation == "" {
			a.ev.operation = "TCP"
			a.ev.class = control
		}
	} else {
		s.segments++
		a.ev.operation = "TCP"
		if s.rule != "" {
			a.counts.Left++
			a.rules[1].add(s.rule)
		} else {
			a.counts.TCP++
		}
	}
	if f.tcp.rst {
		h.fin, o.fin = true, true
	}
}

func join(s, t string) string {
	if s == "" {
		return t
	}
	return s + ", " + t
}

// copyOf checks whether a segment is a copy of one of its side's last segments. A retransmission
// has a new timestamp (RFC 7323 §4.1), so a segment with an old one is a copy of the network.
func (a *analysis) copyOf(h *half, f *frame) {
	if !f.tcp.stamped {
		return
	}
	for i := range h.recent {
		r := &h.recent[i]
		if r.number == 0 || r.header != f.tcp || r.length != f.length {
			continue
		}
		if old := h.stamped && int32(f.tcp.stamp-h.stamp) < 0; old || !a.within(f.time-r.time, leastTCP) {
			a.report(doubtful, nil, f.number, "repeats packet %d after %v, with the same timestamp: a copy", r.number, since(f.time-r.time))
			a.ev.repeats, a.ev.why = r.number, "its bytes have come"
			a.copied = true
		}
		return
	}
	h.recent[h.recentAt] = sentSegment{f.tcp, f.length, f.number, f.time}
	h.recentAt = (h.recentAt + 1) % len(h.recent)
}

// times checks that the timestamps of one side do not go back (RFC 7323 §4.1).
func (a *analysis) times(h *half, f *frame) {
	if !f.tcp.stamped || f.tcp.rst {
		return
	}
	if d := int32(f.tcp.stamp - h.stamp); h.stamped && d < 0 {
		a.reordered(nil, f.number, "its TCP timestamp is %d before that of packet %d", -d, h.ackedBy)
		return
	}
	h.stamp, h.stamped = f.tcp.stamp, true
}

// acknowledges analyses the acknowledgement of a segment.
func (a *analysis) acknowledges(s *stream, side int, f *frame) {
	h, o := &s.half[side], &s.half[1-side]
	if !f.tcp.acked || f.tcp.rst {
		return
	}
	ack := f.tcp.ack
	if h.acked {
		switch d := int32(ack - h.ack); {
		case d < 0:
			a.reordered(nil, f.number, "acknowledges %d bytes less than packet %d", -d, h.ackedBy)
			return
		case d == 0 && f.length == 0 && !f.tcp.fin && !f.tcp.syn && f.tcp.window == h.window, f.tcp.sack:
			h.asked++
		}
	}
	h.acked, h.ack, h.window, h.ackedBy = true, ack, f.tcp.window, f.number
	if !o.began {
		o.began, o.next, o.high = true, ack, ack
		if !f.tcp.syn { // earlier segments are not in the capture
			o.phase, o.unseen = midway, true
		}
		return
	}
	if o.unseen && int32(ack-o.next) > 0 {
		o.next, o.high = ack, ack
		return
	}
	if o.tripTime != 0 && int32(ack-o.trip) >= 0 {
		o.stats.roundTrip(f.time - o.tripTime)
		o.tripTime = 0
	}
	if int32(ack-o.next) <= 0 {
		return
	}
	if int32(ack-o.high) > 0 || len(o.early) == 0 {
		a.report(wrong, nil, f.number, "acknowledges %d bytes that the capture does not have: from sequence number %d on", ack-o.next,
			o.next)
	} else {
		a.report(wrong, nil, f.number,
			"acknowledges bytes of which %d are missing in front of packet %d, from sequence number %d on: the capture does not have "+
				"all packets", a.hole(o), o.early[0].number, o.next)
	}
	a.skip(s, 1-side, ack)
}

// hole returns the number of bytes missing before the first out-of-order segment.
func (a *analysis) hole(h *half) uint32 {
	if len(h.early) == 0 {
		return 0
	}
	return h.early[0].seq - h.next
}

// skip continues after bytes that are acknowledged and were not captured.
func (a *analysis) skip(s *stream, side int, ack uint32) {
	h := &s.half[side]
	switch {
	case h.phase == framed && !h.receiver.Markers:
		h.receiver.Release()
		h.phase = midway
	case h.phase == midway:
		a.endSearch(h)
		h.phase = midway
	case s.iwarp && h.phase != unfollowed:
		h.phase = unfollowed
		a.report(note, nil, a.ev.number, "what is after the missing bytes is not followed")
	case h.phase != unfollowed:
		h.phase = midway
	}
	for len(h.early) > 0 && int32(h.early[0].seq-ack) <= 0 {
		e := h.early[0]
		if end := e.seq + uint32(len(e.b)); int32(end-h.next) > 0 {
			h.next = end
		}
		a.drop(h)
	}
	if int32(ack-h.next) > 0 {
		h.next = ack
	}
	if int32(h.next-h.high) > 0 {
		h.high = h.next
	}
}

// drop removes the first out-of-order segment.
func (a *analysis) drop(h *half) {
	n := len(h.early[0].b)
	h.held -= n
	a.buffered -= n
	h.early[0].b = nil
	h.early = h.early[1:]
}

// bytes analyses the payload of a segment.
func (a *analysis) bytes(s *stream, side int, f *frame) {
	h, o := &s.half[side], &s.half[1-side]
	n := uint32(f.length)
	seq := f.tcp.seq
	if f.tcp.syn {
		switch {
		case !h.began:
			h.began, h.next, h.high = true, seq+1, seq+1
		case h.synAt == 0 || h.syn != seq:
			a.report(doubtful, nil, f.number, "a SYN within a connection")
		case a.within(f.time-h.time, leastSYN) || f.tcp.stamped && f.tcp.stamp == h.sentStamp:
			a.report(wrong, nil, f.number, "the SYN of packet %d again after %v, and nothing asked for it", h.synAt, since(f.time-h.time))
		}
		h.syn, h.synAt, h.time, h.sentStamp = seq, f.number, f.time, f.tcp.stamp
		return
	}
	if f.tcp.rst {
		if d := int32(seq - h.next); h.began && d > 0 && seq != 0 {
			a.report(doubtful, nil, f.number, "its sequence number is %d behind what was sent: packets are missing", d)
		}
		return
	}
	if !h.began {
		h.began, h.next, h.high, h.phase = true, seq, seq, midway
	}
	d := int32(seq - h.next)
	if n == 0 && !f.tcp.fin {
		if d < -1 {
			a.reordered(nil, f.number, "its sequence number is %d before that of packet %d", -d, h.number)
		}
		return
	}
	if h.unseen {
		h.unseen = false
		if d > 0 {
			h.next, h.high, d = seq, seq, 0
		}
	}
	switch {
	case d > 0:
		if len(h.early) == 0 {
			h.holeAt, h.askedAt = f.time, o.asked
			h.stats.Gaps++
			a.ev.missing = fmt.Sprintf("%d bytes of the stream are", d)
		}
		if int32(seq+n-h.high) > 0 {
			h.high = seq + n
		}
		a.keep(h, f, seq)
		return
	case d < 0 && int32(seq+n-h.next) <= 0 && (n > 0 || h.fin):
		h.stats.Repeated++
		if f.length > 1 || d < -1 || f.tcp.fin { // otherwise a keep-alive
			a.ev.repeats, a.ev.why = h.number, "its bytes have come"
			newer := f.tcp.stamped && f.tcp.stamp != h.sentStamp // its sender has built it anew
			switch {
			case o.asked == 0 && h.stats.Gaps == 0 && !newer && a.within(f.time-h.time, leastTCP):
				a.report(wrong, nil, f.number, "repeats %d bytes, and nothing asked for them", n)
			case f.tcp.stamped && f.tcp.stamp == h.sentStamp && f.time-h.time >= leastTCP:
				a.report(doubtful, nil, f.number, "repeats %d bytes %v after packet %d, with the same timestamp: a copy", n,
					since(f.time-h.time), h.number)
			}
		}
		return
	}
	if f.cut {
		a.endSearch(h)
	}
	if len(h.early) > 0 && d == 0 {
		if o.asked == h.askedAt && a.within(f.time-h.holeAt, leastTCP) {
			a.reordered(nil, f.number, "comes after packet %d, whose bytes follow its own", h.early[0].number)
		} else {
			h.stats.Lost++
			a.ev.why = "its bytes were missing"
		}
	}
	if f.tcp.fin && !h.fin {
		h.fin = true
		n++
	}
	h.number, h.time, h.sentStamp = f.number, f.time, f.tcp.stamp
	if h.tripTime == 0 {
		h.trip, h.tripTime = seq+n, max(f.time, 1)
	}
	h.next = seq + n
	if int32(h.next-h.high) > 0 {
		h.high = h.next
	}
	a.deliver(s, side, f.payload[min(uint32(-d), uint32(len(f.payload))):])
	for len(h.early) > 0 {
		e := h.early[0]
		end := e.seq + uint32(len(e.b))
		if int32(e.seq-h.next) > 0 {
			break
		}
		if int32(end-h.next) > 0 {
			b := e.b[h.next-e.seq:]
			h.next = end
			a.deliver(s, side, b)
		}
		if e.fin && !h.fin {
			h.fin = true
			h.next++
		}
		a.drop(h)
	}
	if h.fin && h.phase == framed && h.receiver.Pending() > 0 {
		a.report(wrong, nil, f.number, "the connection ends within an FPDU, of which %d bytes have come", h.receiver.Pending())
	}
}

// keep keeps an out-of-order segment if there is room.
func (a *analysis) keep(h *half, f *frame, seq uint32) {
	if h.held+len(f.payload) > maxEarly || a.buffered+len(f.payload) > maxBuffered || len(h.early) > 1<<10 || f.cut {
		if h.phase != unfollowed {
			a.endSearch(h)
			a.report(note, nil, f.number, "too much has come after a gap: this direction is not followed")
		}
		return
	}
	i, there := slices.BinarySearchFunc(h.early, seq, func(e early, q uint32) int { return int(int32(e.seq - q)) })
	if there && len(h.early[i].b) >= len(f.payload) {
		h.stats.Repeated++
		return
	}
	h.early = slices.Insert(h.early, i, early{seq, bytes.Clone(f.payload), f.tcp.fin, f.number})
	h.held += len(f.payload)
	a.buffered += len(f.payload)
}

// deliver analyses the next bytes of a direction.
func (a *analysis) deliver(s *stream, side int, b []byte) {
	h := &s.half[side]
	h.stats.Bytes += uint64(len(b))
	switch h.phase {
	case awaitsFrame:
		a.startUp(s, side, b)
	case awaitsReply:
		if len(h.held0)+len(b) > 1<<16 {
			h.phase, h.held0 = unfollowed, nil
			return
		}
		h.held0 = append(h.held0, b...)
	case framed:
		a.fpdus(s, side, b)
	case midway:
		a.midwayBytes(s, side, b)
	case unfollowed:
		if s.iwarp && len(b) > 0 {
			a.counts.Unchecked++
		}
	}
}

// endStream reports what a TCP connection leaves open, and removes it.
func (a *analysis) endStream(s *stream) {
	for side := range s.half {
		h := &s.half[side]
		if len(h.early) > 0 {
			a.report(wrong, nil, h.early[0].number, "%d bytes are missing before packet %d, from sequence number %d on, and do not come",
				a.hole(h), h.early[0].number, h.next)
		}
		for len(h.early) > 0 {
			a.drop(h)
		}
		a.endSearch(h)
	}
	if s.iwarp {
		a.out.streamStatistics(a, s)
		a.endUpper(s.upper)
		a.discard(&s.half[0].prefix)
		a.discard(&s.half[1].prefix)
	}
	delete(a.streams, s.streamKey)
}

// makeStreamRoom evicts the quarter of the TCP connections that were idle longest.
func (a *analysis) makeStreamRoom() {
	all := a.sortedStreams()
	slices.SortStableFunc(all, func(x, y *stream) int { return int(min(max(x.last-y.last, -1), 1)) })
	for _, s := range all[:(len(all)+3)/4] {
		a.endStream(s)
		a.dropped++
	}
}

func (a *analysis) sortedStreams() []*stream {
	return slices.SortedFunc(maps.Values(a.streams), func(x, y *stream) int { return x.order - y.order })
}

func (a *analysis) endStreams() {
	for _, s := range a.sortedStreams() {
		a.endStream(s)
	}
}
