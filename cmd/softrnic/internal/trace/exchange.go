package trace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// maxExchanges is the most communication IDs that are kept.
const maxExchanges = 1 << 14

// exchangeKey is a communication ID with the node that chose it. SIDR's request IDs are a separate
// space.
type exchangeKey struct {
	node netip.Addr
	id   uint32
	sidr bool
}

// seen has the time of a message's first packet.
type seen struct {
	number int
	time   int64
	count  int
}

// exchange is the CM exchange of a connection, from set-up to end (IBTA Vol 1 §12.9).
type exchange struct {
	order           int
	active, passive netip.Addr // those of the first message; of its sender and its receiver
	whole           bool       // the first message began it
	activeQP        uint32
	passiveQP       uint32
	activePSN       uint32 // the first PSN that the active side sends
	passivePSN      uint32
	ackTimeout      int64
	mtu             int
	// Of the active and the passive side, indexed by attribute minus that of the REQ.
	messages          [2][16]seen
	activeID          uint32
	voices            [2]voice // of the active and the passive side
	active2, passive2 *flow    // the flows of the two sides
	last              int64
	upper             *upper // by the REQ
}

func (x *exchange) at(side int, t mad.Attr) *seen { return &x.messages[side][(t-mad.AttrREQ)&15] }

// side returns 0 if a message with a communication ID is from the active side. Both sides may have
// the same address.
func (x *exchange) side(src netip.Addr, local uint32) int {
	if src == x.active && (local == x.activeID || x.active != x.passive) {
		return 0
	}
	return 1
}

// begunBy reports whether an ID is that of the active side. The other side's ID may be in several
// exchanges: a listener may use one to ask all requesters whether they exist.
func (x *exchange) begunBy(k exchangeKey) bool { return k.node == x.active && k.id == x.activeID }

// concerns reports whether a message is of the exchange that is known by the other side's ID. The
// sender's own ID is local, 0 if the message has none.
func (x *exchange) concerns(local uint32, mine, theirs exchangeKey) bool {
	return local == 0 || x.begunBy(mine) || x.begunBy(theirs)
}

// has returns when a message was first seen, from either side. The count is 0 if it was not.
func (x *exchange) has(t mad.Attr) *seen {
	s, o := x.at(0, t), x.at(1, t)
	if s.count == 0 || o.count > 0 && o.number < s.number {
		return o
	}
	return s
}

// manage analyses a management datagram.
func (a *analysis) manage(f *frame, p *wire.Packet) {
	h, data, err := mad.Parse(p.Payload)
	if err != nil {
		return // another class
	}
	m := mad.New(h.Attr)
	if m == nil {
		return
	}
	if p.DETH.QKey != mad.QKey {
		a.report(wrong, nil, f.number, "the Q_Key is %#x, and that of QP 1 %#x", p.DETH.QKey, uint32(mad.QKey))
	}
	mad.Decode(data, m)
	a.ev.class = management
	local, remote := m.IDs()
	if a.detail {
		a.ev.operation = h.Attr.String()
		switch {
		case remote == 0:
			a.ev.about = fmt.Sprintf("ID %#x", local)
		case local == 0:
			a.ev.about = fmt.Sprintf("to ID %#x", remote)
		default:
			a.ev.about = fmt.Sprintf("ID %#x to ID %#x", local, remote)
		}
	}
	x := a.exchangeOf(f, m, h.Attr, local, remote)
	if x == nil {
		return
	}
	a.ev.exchange = x
	x.last = f.time
	side := x.side(f.src, local)
	a.said(&x.voices[side], f, p)
	if s := x.at(side, h.Attr); s.count == 0 {
		*s = seen{f.number, f.time, 1}
	} else {
		s.count++
		a.ev.repeats = s.number
		a.ev.why = fmt.Sprintf("%v after it was sent first", since(f.time-s.time))
		// CM's timers are at least milliseconds.
		if a.within(f.time-s.time, int64(time.Millisecond)) {
			a.report(wrong, nil, f.number, "%v again after %v: no timer of CM's is as short", h.Attr, since(f.time-s.time))
		}
	}
	switch m := m.(type) {
	case *mad.REQ:
		x.activeQP, x.passivePSN = m.LocalQPN, m.StartingPSN
		if m.Primary.AckTimeout > 0 {
			x.ackTimeout = 4096 << m.Primary.AckTimeout
		}
		if m.MTU >= 1 && m.MTU <= 5 {
			x.mtu = 128 << m.MTU
		}
		a.describe(", QP %#x, first PSN %d, service %#x", m.LocalQPN, m.StartingPSN, m.ServiceID)
		a.requested(x, m)
	case *mad.REP:
		a.answered(x, f, mad.AttrREQ)
		x.passiveQP, x.activePSN = m.LocalQPN, m.StartingPSN
		a.describe(", QP %#x, first PSN %d", m.LocalQPN, m.StartingPSN)
		if x.has(mad.AttrREQ).count > 0 && x.has(mad.AttrREP).count == 1 {
			a.setUp(x)
		}
	case *mad.RTU:
		a.answered(x, f, mad.AttrREP)
	case *mad.REJ:
		a.answered(x, f, mad.AttrREQ, mad.AttrREP)
		a.describe(", %s", reasonName(m.Reason))
	case *mad.MRA:
		a.answered(x, f, mad.AttrREQ, mad.AttrREP, mad.AttrLAP)
	case *mad.DREQ:
		a.describe(", QP %#x", m.RemoteQPN)
		if other := x.otherQP(x.side(f.src, local)); other != 0 && other != m.RemoteQPN {
			a.report(wrong, nil, f.number, "the DREQ names QP %#x, and the receiver's is %#x", m.RemoteQPN, other)
		}
		for _, w := range []*flow{x.active2, x.passive2} {
			if w != nil {
				w.stats.closed = true
			}
		}
	case *mad.DREP:
		a.answered(x, f, mad.AttrDREQ)
	case *mad.SIDRREP:
		a.answered(x, f, mad.AttrSIDRREQ)
		a.describe(", QP %#x, status %d", m.QPN, m.Status)
	case *mad.SIDRREQ:
		a.describe(", service %#x", m.ServiceID)
	case *mad.APR:
		a.answered(x, f, mad.AttrLAP)
	}
}

func (a *analysis) describe(format string, args ...any) {
	if a.detail {
		a.ev.about += fmt.Sprintf(format, args...)
	}
}

// otherQP returns the QP of the other side, or 0 if it is not known.
func (x *exchange) otherQP(side int) uint32 {
	switch {
	case !x.whole:
		return 0
	case side == 0:
		return x.passiveQP
	}
	return x.activeQP
}

// exchangeOf returns the exchange of a message, and adds the message's IDs to it.
func (a *analysis) exchangeOf(f *frame, m mad.Message, t mad.Attr, local, remote uint32) *exchange {
	sidr := t == mad.AttrSIDRREQ || t == mad.AttrSIDRREP
	mine, theirs := exchangeKey{f.src, local, sidr}, exchangeKey{f.dst, remote, sidr}
	x := a.exchanges[mine]
	begins := t == mad.AttrREQ || t == mad.AttrSIDRREQ
	if begins {
		req, _ := m.(*mad.REQ)
		repeats := x != nil && x.has(t).count > 0
		other := repeats && req != nil && (x.activeQP != req.LocalQPN || x.passivePSN != req.StartingPSN)
		if x == nil || other || x.has(t).count > 0 && f.time-x.has(t).time > int64(10*time.Minute) {
			x = a.newExchange(mine, f)
		}
		return x
	}
	if sidr { // the answer only has the request's ID
		x = a.exchanges[theirs]
		mine = theirs
	} else if y := a.exchanges[theirs]; y != nil && remote != 0 && y.concerns(local, mine, theirs) {
		if x == nil && local != 0 {
			a.exchanges[mine] = y
		}
		x = y
	}
	if x == nil {
		a.ev.why = "of an exchange that the capture does not have"
		if t == mad.AttrREP || t == mad.AttrSIDRREP || t == mad.AttrRTU || t == mad.AttrREJ {
			a.report(doubtful, nil, f.number, "%v, and the capture does not have what it answers", t)
		}
		x = a.newExchange(mine, f)
		x.whole = false
	}
	return x
}

func (a *analysis) newExchange(k exchangeKey, f *frame) *exchange {
	if len(a.exchanges) >= maxExchanges {
		all := a.sortedExchanges()
		gone := map[*exchange]bool{}
		for _, x := range all[:(len(all)+3)/4] {
			a.endExchange(x)
			gone[x] = true
		}
		maps.DeleteFunc(a.exchanges, func(_ exchangeKey, x *exchange) bool { return gone[x] })
	}
	a.ordered++
	x := &exchange{order: a.ordered, active: f.src, passive: f.dst, whole: true, activeID: k.id}
	a.exchanges[k] = x
	return x
}

// answered records which of the messages this one answers.
func (a *analysis) answered(x *exchange, f *frame, to ...mad.Attr) {
	var s *seen
	for _, t := range to {
		for side := range x.messages {
			if m := x.at(side, t); m.count > 0 && m.number != f.number && (s == nil || m.number > s.number) {
				s = m
			}
		}
	}
	if s == nil {
		if x.whole {
			a.report(wrong, nil, f.number, "answers a message that the capture does not have: %v", to[0])
		} else if to[0] == mad.AttrDREQ {
			a.report(doubtful, nil, f.number, "answers a DREQ that the capture does not have")
		}
		return
	}
	a.ev.answers, a.ev.since = s.number, f.time-s.time
}

// setUp connects the two flows of a connection, and resets them if the QPs were used before.
func (a *analysis) setUp(x *exchange) {
	out := a.flowOf(flowKey{x.active, x.passive, x.passiveQP}, a.now)
	in := a.flowOf(flowKey{x.passive, x.active, x.activeQP}, a.now)
	x.active2, x.passive2 = out, in
	for _, e := range []struct {
		w   *flow
		psn uint32
	}{{out, x.activePSN}, {in, x.passivePSN}} {
		w := e.w
		if w.req.began {
			a.finish(w)
			a.remembered -= max(len(w.req.ring)-firstRing, 0)
		}
		w.last = a.now
		w.stats.closed = false
		w.rsp = responder{}
		a.discard(&w.prefix)
		w.req = requester{bySetUp: true, first: e.psn, next: e.psn, una: e.psn, msnKnown: true, timeout: x.ackTimeout, mtu: x.mtu}
	}
	a.connect(out, in)
	a.endUpper(out.upper)
	a.endUpper(in.upper)
	out.upper, in.upper = x.upper, x.upper
}

var reasons = map[mad.Reason]string{mad.NoQP: "no QP", mad.NoResources: "no resources", mad.Timeout: "timeout",
	mad.Unsupported: "unsupported request", mad.InvalidCommID: "invalid communication ID",
	mad.InvalidServiceID: "invalid service ID: no listener", mad.InvalidTransportType: "invalid transport type",
	mad.StaleConnection: "stale connection", mad.InvalidGID: "invalid GID", mad.InvalidMTU: "invalid MTU",
	mad.ConsumerDefined: "consumer reject"}

// reasonName returns the text for the reason of a REJ.
func reasonName(r mad.Reason) string { return cmp.Or(reasons[r], fmt.Sprintf("reason %d", r)) }

// endExchange reports what an exchange leaves open.
func (a *analysis) endExchange(x *exchange) {
	if !x.whole {
		return
	}
	rep := x.has(mad.AttrREP)
	answered := x.has(mad.AttrRTU).count > 0 || x.has(mad.AttrREJ).count > 0
	flows := x.active2 != nil && x.active2.stats.Packets > 0
	if rep.count > 0 && !answered && flows {
		a.report(wrong, x.active2, rep.number, "the REP of packet %d is not answered by an RTU, and data flow", rep.number)
	}
	const long = int64(10 * time.Second)
	for _, t := range []struct {
		ask     mad.Attr
		answers []mad.Attr
	}{{mad.AttrREQ, []mad.Attr{mad.AttrREP, mad.AttrREJ}}, {mad.AttrDREQ, []mad.Attr{mad.AttrDREP}},
		{mad.AttrSIDRREQ, []mad.Attr{mad.AttrSIDRREP}}} {
		s := x.has(t.ask)
		if s.count == 0 || slices.ContainsFunc(t.answers, func(m mad.Attr) bool { return x.has(m).count > 0 }) {
			continue
		}
		if a.now-x.last > long { // else the answer may be that to a repetition
			a.report(wrong, nil, s.number, "the %v of packet %d has no answer", t.ask, s.number)
		}
	}
}

func (a *analysis) sortedExchanges() []*exchange {
	return slices.Compact(slices.SortedFunc(maps.Values(a.exchanges), func(x, y *exchange) int { return x.order - y.order }))
}

func (a *analysis) endExchanges() {
	for _, x := range a.sortedExchanges() {
		a.endExchange(x)
	}
}
