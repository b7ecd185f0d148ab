// Package rocev2 has the conformance cases of RoCEv2.
package rocev2

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Env is the target and the network to it.
type Env struct {
	Peer    *peer.Peer
	Control *control.Client
	Wait    time.Duration // for packets that must come
	// For packets that must not come, after the target has answered a later request.
	Quiet time.Duration

	qpn    uint32 // the last QP number of the tester
	canary *qp    // its answer shows that the target has handled all earlier packets
}

// Default parameters of the cases' QPs.
const (
	mtu      = 1024
	memory   = 16 << 10 // bytes of a QP's region
	firstPSN = 100      // of the tester
	theirPSN = 5000     // of the target
	minRNR   = 12       // 640 µs

	theirQKey = 0x11223344 // of the target's QPs for datagrams
)

// tester is a running case.
type tester struct {
	*suite.T
	*Env
	replies int // replies received for the case's QPs
	probing bool
	qps     []*qp
	// manages reports whether a packet to QP 1 belongs to the case; nil if the case has no CM.
	manages func(packet []byte) bool
}

// qp is a QP of the target, with the numbers of the tester's QP.
type qp struct {
	suite.Queue
	t        *tester
	num, own uint32
	psn      uint32 // of the next request
	addr     uint64
	rkey     uint32
}

// settings are the parameters of a QP.
type settings struct {
	control.Create
	control.Connect
	ByCM bool // connected by the connection manager, not by Connect
}

// onRC returns a case that begins with the QP of rc.
func onRC(run func(*qp), change ...func(*settings)) func(*tester) {
	return func(t *tester) { run(t.rc(change...)) }
}

// defaults are the settings of a QP with all rights.
func (e *Env) defaults() settings {
	return settings{control.Create{Type: "RC", Memory: memory, QPAccess: suite.AllRights(), MRAccess: suite.AllRights()},
		control.Connect{LocalAddr: e.Peer.Target.String(), PeerAddr: e.Peer.Addr.String(), MTU: mtu, RQPSN: firstPSN, SQPSN: theirPSN,
			MinRNR: minRNR, Timeout: 14, Retry: 1, RNRRetry: 1, MaxRD: 4, MaxDestRD: 4}, false}
}

// Prove makes the target connect a QP, as each case does. An error is the target's reason why it
// cannot.
func (e *Env) Prove() error {
	s := e.defaults()
	made, err := e.Control.Do(&control.Request{Op: control.CreateQP, Create: &s.Create})
	if err != nil {
		return err
	}
	_, err = e.Control.Do(&control.Request{Op: control.ConnectQP, QP: made.QP, Connect: &s.Connect})
	_, errDestroy := e.Control.Do(&control.Request{Op: control.DestroyQP, QP: made.QP})
	return errors.Join(err, errDestroy)
}

// rc creates a QP with all rights, changed by change.
func (t *tester) rc(change ...func(*settings)) *qp {
	s := t.defaults()
	for _, f := range change {
		f(&s)
	}
	t.qpn++
	q := &qp{t: t, own: 0x1000 + t.qpn, psn: s.RQPSN,
		Queue: suite.Queue{T: t.T, Control: t.Control, Wait: func() time.Duration { return t.Wait }}}
	made := q.Do(control.Request{Op: control.CreateQP, Create: &s.Create})
	q.Handle, q.num, q.addr, q.rkey = made.QP, made.QPN, made.RemoteAddr, made.RKey
	s.PeerQPN = q.own
	if !s.ByCM {
		q.Do(control.Request{Op: control.ConnectQP, Connect: &s.Connect})
	}
	if t.T != nil {
		t.Cleanup(func() { _, _ = t.Control.Do(&control.Request{Op: control.DestroyQP, QP: q.Handle}) })
		t.qps = append(t.qps, q)
	}
	return q
}

// ud makes the target create a UD QP.
func ud(s *settings) { s.Type, s.QKey, s.QPAccess, s.MRAccess = "UD", theirQKey, nil, nil }

// packet returns a request at the next PSN.
func (q *qp) packet(op wire.Opcode, payload []byte) *wire.Packet {
	p := &wire.Packet{BTH: wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: q.num, PSN: q.psn, Pad: wire.PadLen(len(payload)),
		AckReq: true, MigReq: true}, Payload: payload}
	q.psn = wire.PSNAdd(q.psn, 1)
	return p
}

// rdma returns a request at the next PSN for length bytes of the region from off on.
func (q *qp) rdma(op wire.Opcode, off int, length int, payload []byte) *wire.Packet {
	p := q.packet(op, payload)
	p.RETH = wire.RETH{Addr: q.addr + uint64(off), RKey: q.rkey, Length: uint32(length)}
	return p
}

// write returns a WRITE of one packet.
func (q *qp) write(off int, data []byte) *wire.Packet {
	return q.rdma(wire.RCWriteOnly, off, len(data), data)
}

// read returns a READ request. It takes a PSN for each packet of the response.
func (q *qp) read(off, length int) *wire.Packet {
	p := q.rdma(wire.RCReadRequest, off, length, nil)
	if n := (length + mtu - 1) / mtu; n > 1 {
		q.psn = wire.PSNAdd(q.psn, uint32(n-1))
	}
	return p
}

// atomic returns an atomic request.
func (q *qp) atomic(op wire.Opcode, off int, compare, swap uint64) *wire.Packet {
	p := q.packet(op, nil)
	p.AtomicETH = wire.AtomicETH{Addr: q.addr + uint64(off), RKey: q.rkey, Swap: swap, Compare: compare}
	return p
}

// send sends packets.
func (t *tester) send(pkts ...*wire.Packet) {
	ds := make([]peer.Datagram, len(pkts))
	for i, p := range pkts {
		ds[i] = t.Peer.Make(p)
	}
	t.sendRaw(ds...)
}

func (t *tester) sendRaw(ds ...peer.Datagram) {
	if err := t.Peer.Send(ds...); err != nil {
		t.Failf("cannot send: %v", err)
	}
}

// reply is a packet of the target for one of the case's QPs.
type reply struct {
	wire.Packet
	t      *tester
	number int
	raw    peer.Datagram
	icrc   bool
}

// next returns the next packet for one of the case's QPs, or the canary's answer to a probe, which
// has number 0.
func (t *tester) next(wait time.Duration) (*reply, bool) {
	for end := time.Now().Add(wait); ; {
		d, ok := t.Peer.Next(time.Until(end))
		if !ok {
			return nil, false
		}
		b := d.Packet()
		dest := uint32(b[5])<<16 | uint32(b[6])<<8 | uint32(b[7])
		if t.probing && dest == t.canary.own {
			if r := t.parse(d, 0); r.PSN == wire.PSNAdd(t.canary.psn, 1<<24-1) {
				return r, true
			}
		}
		if !slices.ContainsFunc(t.qps, func(q *qp) bool { return q.own == dest }) &&
			(dest != mad.QPN || t.manages == nil || !t.manages(b)) {
			continue
		}
		t.replies++
		if m := t.Mutate; m != nil && m.Drop && t.replies >= m.Reply { // retransmissions are dropped too
			continue
		} else if m != nil && !m.Drop && m.Reply == t.replies {
			d = alter(d, m.Field)
		}
		return t.parse(d, t.replies), true
	}
}

func (t *tester) parse(d peer.Datagram, number int) *reply {
	r := &reply{t: t, number: number, raw: d, icrc: wire.CheckICRC(d.Header(), d.Packet())}
	if err := r.Parse(d.Packet()); err != nil {
		t.Failf("reply %d cannot be read: %v: % x", number, err, d.Packet())
	}
	return r
}

// ask sends packets, and waits for the next packet.
func (t *tester) ask(pkts ...*wire.Packet) *reply {
	t.send(pkts...)
	return t.reply()
}

// unanswered sends packets, and fails if there is an answer.
func (t *tester) unanswered(pkts ...*wire.Packet) {
	t.send(pkts...)
	t.silent()
}

// reply waits for the next packet.
func (t *tester) reply() *reply {
	r, ok := t.next(t.Wait)
	if !ok {
		t.Failf("no reply within %v", t.Wait)
	}
	return r
}

// equal compares a field of a reply.
func equal[V comparable](r *reply, field string, got, want V, format string) {
	r.t.Check(r.number, field)
	if got != want {
		r.t.Failf("%s of reply %d (%v, PSN %d) is "+format+", want "+format, field, r.number, r.Opcode, r.PSN, got, want)
	}
}

func (r *reply) opcode(want wire.Opcode) *reply {
	equal(r, "opcode", r.Opcode, want, "%v")
	return r
}

func (r *reply) psn(want uint32) *reply {
	equal(r, "PSN", r.PSN, want&0xffffff, "%d")
	return r
}

func (r *reply) msn(want uint32) *reply {
	equal(r, "MSN", r.AETH.MSN, want, "%d")
	return r
}

// ack checks that the reply acknowledges all PSNs up to psn.
func (r *reply) ack(psn uint32) *reply {
	r.opcode(wire.RCAck).psn(psn)
	equal(r, "syndrome", r.AETH.Type(), wire.SyndromeACK, "%#x")
	return r
}

// nak checks that the reply is a NAK with a syndrome and psn.
func (r *reply) nak(syndrome uint8, psn uint32) *reply {
	r.opcode(wire.RCAck)
	equal(r, "syndrome", r.AETH.Syndrome, syndrome, "%#x")
	return r.psn(psn)
}

func (r *reply) payload(want []byte) *reply {
	r.t.Check(r.number, "payload")
	if !bytes.Equal(r.Payload, want) {
		r.t.Failf("the payload of reply %d is % x, want % x", r.number, suite.Head(r.Payload), suite.Head(want))
	}
	return r
}

// alter returns a valid datagram with another value in a field.
func alter(d peer.Datagram, field string) peer.Datagram {
	d = bytes.Clone(d)
	at := map[string]struct {
		offset int
		bits   byte
	}{"opcode": {0, 1}, "version": {1, 1}, "pad": {1, 0x10}, "P_Key": {3, 1}, "reserved 6": {4, 1},
		"AckReq": {8, 0x80}, "MigReq": {1, 0x40}, "syndrome's highest bit": {12, 0x80}, "reserved 7": {8, 0x2d}, "PSN": {11, 1},
		"syndrome": {12, 0x61}, "credits": {12, 1}, "MSN": {15, 1}, "original value": {23, 1},
		"solicited": {1, 0x80}, "BECN": {4, 0x40}, "destination QP": {7, 1}, "immediate data": {15, 1},
		"immediate data of a WRITE": {31, 1},
		"address":                   {19, 1}, "R_Key": {23, 1}, "length": {27, 1}, "swap or add data": {31, 1}, "compare data": {39, 1},
		"Q_Key": {15, 1}, "source QP": {19, 1}, "transaction ID": {35, 1}, "MAD attribute": {37, 0x40}, "communication IDs": {51, 1},
		"reason": {55, 1}, "DREQ's QPN": {54, 1}, "service ID": {59, 1}, "REP's QPN": {58, 1}, "responder resources": {68, 1},
		"initiator depth": {69, 1}, "MAD": {80, 1}, "REP's private data": {80, 1}, "IP CM header": {203, 1}}
	b := d.Packet()
	switch f, ok := at[field]; {
	case field == "payload":
		if b[0] == byte(wire.RCReadResponseMiddle) || len(b) > wire.BTHLen+wire.AETHLen+wire.ICRCLen {
			b[len(b)-wire.ICRCLen-1-int(b[1]>>4&3)] ^= 1
		} else {
			b[0] ^= 1
		}
	case field == "ICRC":
		b[len(b)-1] ^= 1
		return d
	case ok:
		b[f.offset] ^= f.bits
	default:
		panic("no such field: " + field)
	}
	d.Seal()
	return d
}

// silent waits until the target has handled all sent packets, and fails if there was an answer.
func (t *tester) silent() {
	if t.Check(0, "silence") {
		t.Peer.Deliver(t.Peer.Make(&wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, DestQP: t.qps[0].own, PSN: firstPSN}}))
	}
	t.sync(func(r *reply) {
		t.Failf("the target answers with %v, PSN %d, syndrome %#x", r.Opcode, r.PSN, r.AETH.Syndrome)
	})
}

// sync waits until the target has handled all packets sent before. others is called with replies
// received meanwhile.
func (t *tester) sync(others func(*reply)) {
	if t.canary == nil {
		maker := &tester{Env: t.Env}
		t.canary = maker.rc(func(s *settings) { s.OnlyRecv = true })
	}
	t.probing = true
	defer func() { t.probing = false }()
	t.send(t.canary.write(0, []byte{1, 2, 3, 4}))
	for wait, probed := t.Wait, false; ; {
		r, ok := t.next(wait)
		switch {
		case !ok && probed:
			return
		case !ok:
			t.Failf("a correct request of another QP was not answered within %v", t.Wait)
		case r.number == 0:
			wait, probed = t.Quiet, true
		default:
			others(r)
		}
	}
}

// is compares a value that the target reports through its control connection.
func is[V comparable](t *tester, what string, got, want V) { suite.Is(t.T, what, got, want) }

// completions waits for n completions, and returns their statuses.
func (q *qp) completions(n int) (statuses string) {
	var all []string
	for end := time.Now().Add(q.t.Wait); len(all) < n; {
		if time.Now().After(end) {
			q.t.Failf("%d completions, want %d", len(all), n)
		}
		for _, c := range q.Poll() {
			all = append(all, c.Status)
		}
	}
	return strings.Join(all, " ")
}

// pattern returns n bytes that depend on seed.
var pattern, word = suite.Pattern, suite.Word
