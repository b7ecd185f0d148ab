package trace

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// counts has the counts of a capture.
type counts struct {
	Packets   int `json:"packets"`
	RoCE      int `json:"roce"`
	IWARP     int `json:"iwarp"`     // segments of its TCP connections
	TCP       int `json:"tcp"`       // others
	Other     int `json:"other"`     // not RDMA, by the rules in NotRDMA
	Left      int `json:"left_out"`  // of which it is not known whether they are RDMA
	Elsewhere int `json:"elsewhere"` // seen at another point before
	Unchecked int `json:"unchecked"`
	Wrong     int `json:"wrong"`    // findings
	Doubtful  int `json:"doubtful"` // findings
	Offloaded int `json:"offloaded"`
	Reordered int `json:"reordered"` // packets captured after later ones

	Superframes int `json:"superframes"` // of several RoCE packets each
	Cut         int `json:"cut"`         // superframes truncated by the capture
	Dropped     int `json:"dropped"`     // dropped by the capture, or before they were read
	damaged     int // of Wrong: not explained by missing packets
}

// leftOut returns the number of packets that were not checked, or not completely.
func (c *counts) leftOut() int { return c.Left + c.Unchecked + c.Cut + c.Dropped }

// tally counts packets by what they are.
type tally map[string]int

// maxRules is the most kinds of a tally. Others count together, as moreKinds.
const (
	maxRules  = 64
	moreKinds = "of more kinds"
)

// String lists the kinds, the most frequent first.
func (t tally) String() string {
	kinds := slices.SortedFunc(maps.Keys(t), func(x, y string) int { return cmp.Or(t[y]-t[x], cmp.Compare(x, y)) })
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d %s", t[k], k)
	}
	return strings.Join(kinds, ", ")
}

func (t tally) add(what string) {
	if _, is := t[what]; !is && len(t) >= maxRules {
		what = moreKinds
	}
	t[what]++
}

// remove takes back what add has counted n times.
func (t tally) remove(what string, n int) {
	if _, is := t[what]; !is {
		what = moreKinds
	}
	if t[what] -= n; t[what] == 0 {
		delete(t, what)
	}
}

// output receives the results of an analysis in order.
type output interface {
	// packet is called for each packet. The event is valid until it returns.
	packet(a *analysis, e *event)
	// late is called with a finding about an earlier packet.
	late(a *analysis, w *flow, f finding)
	// statistics and streamStatistics are called when a flow or a TCP connection of iWARP ends or
	// is evicted.
	statistics(a *analysis, w *flow)
	streamStatistics(a *analysis, s *stream)
}

// clockSkew is how far times may go back, as a capture of several queues or interfaces is not
// sorted.
const clockSkew = int64(10 * time.Millisecond)

// coarse is the finest resolution of times that matters.
const coarse = int64(10 * time.Microsecond)

// within reports whether a span of time is surely less than a limit.
func (a *analysis) within(span, limit int64) bool { return span+a.slack < limit }

// analysis follows the connections of a capture. Its memory is bounded, as each of its tables and
// each entry is.
type analysis struct {
	out    output
	detail bool // the output needs descriptions
	strict bool // packets out of order are wrong
	counts counts
	begin  time.Time
	now    int64
	frame  frame
	packet wire.Packet
	ev     event
	open   bool // ev is the event of the current packet
	copied bool // the packet is a copy of another

	flows         map[flowKey]*flow
	unpaired      map[pair][]*flow
	lastFlow      *flow
	ordered       int
	dropped       int
	remembered    int
	senders       map[senderKey]*sender
	lastSender    [2]*sender
	lastSenderKey [2]senderKey
	speakers      map[speakerKey]*speaker
	exchanges     map[exchangeKey]*exchange
	streams       map[streamKey]*stream
	buffered      int // bytes of TCP streams that are out of order, or searched for FPDUs
	prefixes      int // messages of several packets whose start is kept
	outstanding   int // NVMe commands and RPC calls that are kept
	scratch       []byte
	points        map[point]uint64
	lastPoint     point
	lastBit       uint64
	seen          [][seenWays]sighting
	rules         [2]tally              // of foreign and of opaque packets
	slack         int64                 // by how much a span of time may be longer than the capture shows
	segment0      int                   // the length of the packets of the last superframe
	header        [48]byte              // the header of a packet of a superframe
	totals        map[pair]acknowledged // at the end
}

// acknowledged counts packets that requested an acknowledgement and got their own, or shared that
// of a later packet.
type acknowledged struct{ own, shared int }

func newAnalysis(out output, detail bool) *analysis {
	return &analysis{out: out, detail: detail, flows: map[flowKey]*flow{}, unpaired: map[pair][]*flow{}, senders: map[senderKey]*sender{},
		speakers: map[speakerKey]*speaker{}, exchanges: map[exchangeKey]*exchange{}, streams: map[streamKey]*stream{},
		points: map[point]uint64{}, seen: make([][seenWays]sighting, seenSets), rules: [2]tally{{}, {}}}
}

// read analyses all packets of a source.
func (a *analysis) read(src source, stop func() bool) error {
	segmented, _ := src.(interface{ segment() int })
	ng, _ := src.(*ngSource)
	for !stop() {
		data, info, link, err := src.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			a.end()
			return fmt.Errorf("after packet %d: %w", a.counts.Packets, err)
		}
		a.counts.Packets++
		a.lose(src)
		if a.begin.IsZero() {
			a.begin = info.Timestamp
		}
		f := &a.frame
		f.number, f.time, f.cut = a.counts.Packets, int64(info.Timestamp.Sub(a.begin)), info.CaptureLength < info.Length
		f.point = point{}
		unit := time.Duration(0)
		if ng != nil {
			f.point.intf, f.point.direction = info.InterfaceIndex, ng.direction
			unit = ng.unit
		}
		if info.Timestamp.IsZero() {
			unit = time.Hour
		}
		f.decode(link, data)
		if int64(unit) > max(a.slack, coarse) {
			a.slack = int64(unit)
			a.report(note, nil, f.number, "its time is missing, or a multiple of %v: what comes too early after another packet is not found",
				unit)
		}
		if segmented != nil {
			f.cuts = segmented.segment()
		}
		a.look(f)
	}
	a.lose(src)
	a.end()
	return nil
}

// lose notes what a source says that the capture lacks. Findings so far, which it may explain,
// count as doubtful.
func (a *analysis) lose(src source) {
	l, ok := src.(lossy)
	if !ok {
		return
	}
	if n := l.dropped(); n > 0 {
		a.counts.Dropped += n
		a.report(note, nil, a.counts.Packets, l.why()+": what is missing may be these, and is DOUBTFUL", n)
		if _, ng := src.(*ngSource); ng {
			a.counts.Doubtful += a.counts.Wrong - a.counts.damaged
			a.counts.Wrong = a.counts.damaged
		}
	}
}

// look analyses one packet.
func (a *analysis) look(f *frame) {
	findings := a.ev.findings[:0]
	a.ev = event{number: f.number, time: f.time, src: f.src, dst: f.dst, sport: f.srcPort, dport: f.dstPort, bytes: f.length,
		findings: findings}
	a.open, a.copied = true, false
	if f.time < a.now {
		if a.now-f.time > clockSkew {
			a.report(note, nil, f.number, "its time is %v before that of the packet in front of it", time.Duration(a.now-f.time))
		}
		f.time = a.now
	}
	a.now = f.time
	for _, w := range f.wrong {
		a.report(damage, nil, f.number, "%s", w)
	}
	if f.checksum == offloaded {
		a.counts.Offloaded++
	}
	if f.unchecked {
		a.counts.Unchecked++
	}
	switch f.kind {
	case roce:
		a.counts.RoCE++
		a.ev.shown = true
		a.roce(f)
	case segment:
		a.tcp(f)
	case datagram:
		a.counts.Other++
		a.rules[0].add("UDP to another port")
		if !f.cut && !a.seenElsewhere(f, uint64(f.srcPort)<<32|uint64(f.dstPort)<<16|uint64(f.length)) {
			a.follow(f, uint32(f.length))
		}
	case foreign:
		a.counts.Other++
		a.rules[0].add(f.rule)
	case opaque:
		a.counts.Left++
		a.rules[1].add(f.rule)
	case broken:
		a.counts.Other++
		a.rules[0].add("with broken headers")
	}
	a.out.packet(a, &a.ev)
	a.open = false
}

// tcp analyses a TCP segment.
func (a *analysis) tcp(f *frame) {
	t := &f.tcp
	ports := uint64(f.srcPort)<<32 | uint64(f.dstPort)
	if a.seenElsewhere(f, uint64(t.seq)<<16^uint64(t.ack)<<28^uint64(t.stamp)*31^ports<<8^uint64(f.length)<<4^uint64(t.flags)) {
		a.counts.TCP++
		return
	}
	a.follow(f, t.seq<<16^t.ack^t.stamp)
	a.segment(f)
}

// roce analyses a RoCE packet.
func (a *analysis) roce(f *frame) {
	a.ev.roce = true
	b := f.payload
	if f.cut {
		if len(b) < wire.BTHLen || f.length > maxRecord {
			a.ev.operation = "cut"
			return
		}
		// The headers suffice, even without the payload.
		if len(a.scratch) < f.length {
			a.scratch = make([]byte, max(f.length, 1<<16))
		}
		b = a.scratch[:f.length]
		clear(b[copy(b, f.payload):min(len(b), len(f.payload)+wire.MaxHeaderLen+wire.CNPPayloadLen)])
	}
	whole := f.header != nil && !f.cut
	if whole && f.cuts > 0 && f.cuts < f.length && a.superframe(f) {
		a.roce(f) // the last of its packets
		return
	}
	p := &a.packet
	err := p.Parse(b)
	single := err == nil && f.length <= mostPacket && endless(p)
	if f.cut && !single && a.cutSuperframe(f) {
		return
	}
	if err != nil {
		if whole && a.superframe(f) {
			a.roce(f) // the last of its packets
			return
		}
		a.report(wrong, nil, f.number, "%v", err)
		return
	}
	a.ev.qp, a.ev.psn, a.ev.bytes = p.DestQP, p.PSN, len(p.Payload)
	if a.detail {
		a.ev.operation = p.Opcode.String()
		a.ev.about = about(p)
	}
	standard := f.header == nil || f.cut || wire.CheckICRC(f.header, f.payload)
	if !standard && !wire.CheckRxeFlushICRC(f.header, f.payload) {
		if a.superframe(f) {
			a.roce(f) // the last of its packets
			return
		}
		a.report(damage, nil, f.number, "the ICRC is wrong")
		a.ev.flow = a.flows[flowKey{f.src, f.dst, p.DestQP}]
		return // a receiver drops it too
	}
	if len(f.wrong) > 0 {
		return
	}
	icrc := uint32(0)
	if !f.cut {
		icrc = binary.LittleEndian.Uint32(b[len(b)-4:])
	}
	if a.seenElsewhere(f, uint64(icrc)<<16^uint64(p.PSN)^uint64(p.DestQP)<<24^uint64(p.Opcode)) {
		return
	}
	if !f.cut {
		a.follow(f, icrc)
	}
	info := p.Opcode.Info()
	if p.Opcode == wire.CNP {
		a.ev.class = control
		return
	}
	if p.Opcode.Transport() == wire.UD {
		a.ev.from, a.ev.knownFrom, a.ev.class = p.DETH.SrcQP, true, request
		a.unreliable(f, p, icrc)
		if p.DestQP == 1 && !a.copied {
			a.manage(f, p)
		}
		return
	}
	w := a.flowOf(flowKey{f.src, f.dst, p.DestQP}, f.time)
	if w.stats.Packets == 0 {
		w.transport = p.Opcode.Transport()
	}
	w.stats.Packets++
	w.stats.Wire += uint64(f.length) + 8
	if gap := f.time - w.last; w.stats.Packets > 1 && gap >= leastTimeout &&
		(gap > w.silence || f.time-w.began > slowTimeout) {
		w.burst, w.began, w.silence = f.number, f.time, gap
	}
	w.last, w.lastSeen = f.time, f.number
	a.ev.flow = w
	if !standard && !w.rxeFlush {
		w.rxeFlush = true
		a.report(note, w, f.number, "the FLUSH has the ICRC of Linux's rxe, which other devices drop; SoftRNIC with --rxe-flush answers it")
	}
	if w.peer != nil {
		a.ev.knownFrom, a.ev.from = true, w.peer.qp
	}
	switch {
	case a.copied: // already reported; no original is searched
		w.stats.Repeated++
	case info.Request():
		a.ev.class = request
		a.request(w, f, p)
	case info.Response():
		a.ev.class = response
		a.answer(w, f, p)
	}
}

// about describes a packet's headers after the BTH.
func about(p *wire.Packet) string {
	info := p.Opcode.Info()
	s := ""
	if info.HasAETH() {
		switch {
		case p.AETH.IsACK():
			s = fmt.Sprintf("MSN %d", p.AETH.MSN)
		case p.AETH.IsRNR():
			s = fmt.Sprintf("RNR NAK, wait %v, MSN %d", wire.RNRTimer(p.AETH.Value()), p.AETH.MSN)
		default:
			s = fmt.Sprintf("NAK %s, MSN %d", nakName(p.AETH.Syndrome), p.AETH.MSN)
		}
	}
	if info.HasRETH() {
		s += fmt.Sprintf("%d bytes at %#x, R_Key %#x", p.RETH.Length, p.RETH.Addr, p.RETH.RKey)
	}
	if info.HasAtomicETH() {
		s += fmt.Sprintf("at %#x, R_Key %#x", p.AtomicETH.Addr, p.AtomicETH.RKey)
	}
	if info.HasImmDt() {
		s = join(s, fmt.Sprintf("immediate %#x", p.Imm))
	}
	if info.HasIETH() {
		s = join(s, fmt.Sprintf("invalidates %#x", p.InvalidateRKey))
	}
	return s
}

var nakNames = map[uint8]string{wire.NakPSNSeq: "PSN sequence error", wire.NakInvalidRequest: "invalid request",
	wire.NakRemoteAccess: "remote access error", wire.NakRemoteOperational: "remote operational error"}

func nakName(syndrome uint8) string {
	return cmp.Or(nakNames[syndrome], fmt.Sprintf("%#02x", syndrome))
}

// end reports what is open at the end of the capture.
func (a *analysis) end() {
	flows := slices.SortedFunc(maps.Values(a.flows), func(x, y *flow) int { return x.order - y.order })
	a.totals = map[pair]acknowledged{}
	for _, w := range flows {
		k := pair{w.src, w.dst}
		t := a.totals[k]
		a.totals[k] = acknowledged{t.own + w.req.own, t.shared + w.req.shared}
	}
	for _, w := range flows {
		a.finish(w)
	}
	a.endExchanges()
	a.endStreams()
	a.judgeAll()
	byNumber := func(x, y speakerKey) int { return a.speakers[x].number - a.speakers[y].number }
	for _, k := range slices.SortedFunc(maps.Keys(a.speakers), byNumber) {
		a.judgeSpeaker(k, a.speakers[k])
	}
	for _, w := range flows {
		a.out.statistics(a, w)
	}
}
