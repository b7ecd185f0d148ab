package rocev2

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Parameters of connections.
const (
	portSpaceTCP = 0x0106 // of rdma_cm's service IDs (IBTA annex A11 §11.2)
	noLID        = 0xffff
	answerSoon   = 14 // 67 ms until the target retransmits a REP
	maxRetries   = 15
	readsIn      = 3 // of the target when it accepts
	readsOut     = 2
	madAt        = wire.BTHLen + wire.DETHLen
	repeated     = 400 * time.Millisecond // several times answerSoon
	mraTime      = 20                     // 4.3 s

	mra = "IBTA Vol 1 §12.6.6" // public text: ib_send_cm_mra in Linux' ib_cm.h
)

// caller is a QP of the target that is connected by CM, with the tester's end of the connection.
type caller struct {
	*qp
	id, theirs uint32 // communication IDs
	guid, tid  uint64
	service    uint64
	tag        []byte // private data unique to the case
}

func (t *tester) caller() *caller {
	c := &caller{qp: t.rc(func(s *settings) { s.ByCM = true }), id: rand.Uint32() | 1, guid: rand.Uint64(), tid: rand.Uint64()}
	c.own = 0x800000 | c.id&0x7fffff // an earlier run may have used the other numbers
	c.tag = binary.BigEndian.AppendUint64(nil, c.guid)
	t.manages = c.mine
	return c
}

// listening returns a QP of the target for which it listens.
func (t *tester) listening() *caller {
	c := t.caller()
	reply, err := t.Control.Do(&control.Request{Op: control.Listen, QP: c.Handle,
		CM: &control.CM{Addr: netip.AddrPortFrom(t.Peer.Target, 0).String()}})
	if err != nil {
		t.Skipf("the target's responder does not listen: %v", err)
	}
	c.service = mad.ServiceID(portSpaceTCP, reply.Port)
	return c
}

// mine reports whether a packet is a message of this connection. It ends connections left over from
// other cases.
func (c *caller) mine(packet []byte) bool {
	if len(packet) != madAt+mad.Size+wire.ICRCLen {
		return false
	}
	h, data, err := mad.Parse(packet[madAt : madAt+mad.Size])
	if err != nil {
		return false
	}
	if h.Attr == mad.AttrREQ {
		var m mad.REQ
		mad.Decode(data, &m)
		return m.ServiceID == c.service
	}
	sender, receiver := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])
	if receiver != c.id && h.Attr == mad.AttrDREQ {
		c.t.send(c.message(h.TID, &mad.DREP{LocalCommID: receiver, RemoteCommID: sender}))
	}
	return receiver == c.id
}

// message returns a packet from QP 1 to QP 1.
func (c *caller) message(tid uint64, m mad.Message) *wire.Packet {
	var b [mad.Size]byte
	mad.Encode(&b, tid, m)
	return &wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: mad.QPN, MigReq: true},
		DETH: wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN}, Payload: b[:]}
}

func (c *caller) say(m mad.Message) { c.t.send(c.message(c.tid, m)) }

// req returns the tester's request.
func (c *caller) req() *mad.REQ {
	p := c.t.Peer
	ip := mad.IPCM{Src: p.Addr, SrcPort: 4000, Dst: p.Target}
	return &mad.REQ{LocalCommID: c.id, ServiceID: c.service, LocalCAGUID: c.guid, LocalQPN: c.own, ResponderResources: 4, InitiatorDepth: 4,
		RemoteResponseTimeout: 20, StartingPSN: theirPSN, LocalResponseTimeout: answerSoon, RetryCount: 7, PKey: wire.DefaultPKey,
		MTU: 3, RNRRetryCount: 7, MaxCMRetries: maxRetries,
		Primary: mad.Path{LocalLID: noLID, RemoteLID: noLID, LocalGID: p.Addr.As16(), RemoteGID: p.Target.As16(), HopLimit: 64,
			AckTimeout: 14},
		PrivateData: append(ip.Append(nil), c.tag...)}
}

// expect waits for a message, decodes it into m, and checks that it has m's type. It skips MRAs,
// and before a DREQ REPs, which a loaded target sends again while the RTU waits there.
func (c *caller) expect(m mad.Message) (*reply, mad.Header) {
	for {
		r := c.t.reply()
		h, data, err := mad.Parse(r.Payload)
		if err != nil {
			c.t.Failf("a packet to QP 1: %v", err)
		}
		if h.Attr == mad.AttrMRA && m.Attr() != mad.AttrMRA || h.Attr == mad.AttrREP && m.Attr() == mad.AttrDREQ {
			continue
		}
		equal(r, "MAD attribute", h.Attr, m.Attr(), "%v")
		mad.Decode(data, m)
		return r, h
	}
}

// raise sends m, which must raise an event at the target.
func (c *caller) raise(m mad.Message, want string) control.Reply {
	c.say(m)
	return c.Event(want)
}

// quiet checks that the target has no further event.
func (c *caller) quiet() {
	c.t.sync(func(*reply) {})
	is(c.t, "the target's event", c.NextEvent(c.t.Quiet).Event, "")
}

// accepted sends a REQ, makes the target accept, and returns its REP.
func (c *caller) accepted() (*reply, mad.Header, *mad.REP) {
	c.raise(c.req(), "CONNECT_REQUEST")
	c.Do(control.Request{Op: control.Accept, CM: &control.CM{Data: c.tag, ReadsIn: readsIn, ReadsOut: readsOut}})
	var m mad.REP
	r, h := c.expect(&m)
	c.theirs = m.LocalCommID
	return r, h, &m
}

// asking returns a caller whose REQ has come to the target's program.
func asking(t *tester) *caller {
	c := t.listening()
	c.raise(c.req(), "CONNECT_REQUEST")
	return c
}

// accepting returns a caller whose REQ the target has accepted, and its REP.
func accepting(t *tester) (*caller, *reply, *mad.REP) {
	c := t.listening()
	r, _, rep := c.accepted()
	return c, r, rep
}

// established returns an established connection.
func established(t *tester) (*caller, *mad.REP) {
	c, _, rep := accepting(t)
	c.raise(&mad.RTU{LocalCommID: c.id, RemoteCommID: c.theirs}, "ESTABLISHED")
	return c, rep
}

// connections has the cases of IB CM messages to a listening target. The messages' layout is public
// in Linux' cm_msgs.h and ibcm_msgs, whose tables have the numbers of §12.6. Unless noted, the
// expected behaviour in each state is that of Linux' cm.c.
var connections = []entry{
	{"CM-REP", "A REQ that is accepted is answered with a REP that names its communication ID.", "IBTA Vol 1 §12.6.8", func(t *tester) {
		c, r, rep := accepting(t)
		equal(r, "communication IDs", rep.RemoteCommID, c.id, "%#x")
	}},
	{"CM-REP-TID", "A REP has the transaction ID of its REQ.", suite.Observed, func(t *tester) {
		c := t.listening()
		r, h, _ := c.accepted()
		equal(r, "transaction ID", h.TID, c.tid, "%#x")
	}},
	{"CM-REP-QPN", "A REP has the number of the queue pair that accepts.", "IBTA Vol 1 §12.6.8", func(t *tester) {
		c, r, rep := accepting(t)
		equal(r, "REP's QPN", rep.LocalQPN, c.num, "%#x")
	}},
	{"CM-REP-READS", "A REP has the responder resources and the initiator depth that were accepted.", "IBTA Vol 1 §12.6.8",
		func(t *tester) {
			_, r, rep := accepting(t)
			equal(r, "responder resources", rep.ResponderResources, readsIn, "%d")
			equal(r, "initiator depth", rep.InitiatorDepth, readsOut, "%d")
		}},
	{"CM-REP-DATA", "The private data of the acceptance are in the REP.", "IBTA Vol 1 §12.6.8", func(t *tester) {
		c, r, rep := accepting(t)
		equal(r, "REP's private data", string(rep.PrivateData[:8]), string(c.tag), "%x")
	}},
	{"CM-REP-AGAIN", "A REP that no RTU answers is repeated as it was.", suite.Observed, func(t *tester) {
		c, first, _ := accepting(t)
		again, _ := c.expect(&mad.REP{})
		equal(again, "MAD", string(again.Payload), string(first.Payload), "%x")
	}},
	{"CM-REP-END", "After the RTU the REP is not repeated.", suite.Observed, func(t *tester) {
		c, _, _ := accepting(t)
		c.raise(&mad.RTU{LocalCommID: c.id, RemoteCommID: c.theirs}, "ESTABLISHED")
		t.sync(func(*reply) {}) // a message may be in flight
		r, ok := t.next(repeated)
		is(t, "that the REP comes again", ok && r.number > 0, false)
	}},
	{"CM-GSI", "Messages of CM come from QP 1 with the well-known Q_Key 0x80010000.", "IBTA Vol 1 §9.6.1.4.1", func(t *tester) {
		_, r, _ := accepting(t)
		equal(r, "Q_Key", r.DETH.QKey, mad.QKey, "%#x")
		equal(r, "source QP", r.DETH.SrcQP, mad.QPN, "%d")
	}},
	{"CM-GSI-QKEY", "A message to QP 1 with another Q_Key is dropped.", "IBTA Vol 1 §9.6.1.4.1", func(t *tester) {
		c := t.listening()
		p := c.message(c.tid, c.req())
		p.DETH.QKey = 0x11111111
		t.send(p)
		c.quiet()
	}},
	{"CM-GSI-CLASS", "A message of an unknown class version is no REQ.", suite.Observed, func(t *tester) {
		c := t.listening()
		p := c.message(c.tid, c.req())
		p.Payload[2] = 0x7f
		t.send(p)
		c.quiet()
	}},
	{"CM-REQ-DATA", "The private data after the IP CM header of a REQ are delivered with the request.", "IBTA annex A11", func(t *tester) {
		c := t.listening()
		ev := c.raise(c.req(), "CONNECT_REQUEST")
		is(t, "whether the private data are the REQ's", bytes.HasPrefix(ev.Data, c.tag), true)
	}},
	{"CM-REQ-READS", "A request offers as many READs at the target as the REQ's initiator depth, and vice versa.",
		"IBTA Vol 1 §12.6.5", func(t *tester) {
			c := t.listening()
			m := c.req()
			m.ResponderResources, m.InitiatorDepth = 5, 6
			ev := c.raise(m, "CONNECT_REQUEST")
			is(t, "the responder resources that are offered", ev.ReadsIn, 6)
			is(t, "the initiator depth that is offered", ev.ReadsOut, 5)
		}},
	{"CM-REQ-DUP", "A duplicate REQ makes no second request.", suite.Observed, func(t *tester) {
		c := asking(t)
		c.say(c.req())
		c.quiet()
	}},
	{"CM-REQ-DUP-REP", "A duplicate of an accepted REQ is answered only with the same REP.", suite.Observed,
		func(t *tester) {
			c := t.listening()
			m := c.req()
			c.raise(m, "CONNECT_REQUEST")
			c.Do(control.Request{Op: control.Accept, CM: &control.CM{ReadsIn: readsIn, ReadsOut: readsOut}})
			first, _ := c.expect(&mad.REP{})
			c.say(m) // Linux answers only with its retransmission of the REP
			again, _ := c.expect(&mad.REP{})
			equal(again, "MAD", string(again.Payload), string(first.Payload), "%x")
		}},
	{"CM-STALE", "A REQ that names a queue pair that is connected is rejected, with the reason stale connection.", "IBTA Vol 1 §12.9.8.3.1",
		func(t *tester) {
			c, _ := established(t)
			m := c.req()
			c.id ^= 0x10000
			m.LocalCommID = c.id
			c.say(m)
			c.rejected(mad.StaleConnection)
		}},
	{"CM-REJ-SERVICE", "A REQ for a service without a listener is rejected: invalid service ID.", "IBTA Vol 1 §12.6.7.2",
		func(t *tester) {
			c := t.listening()
			m := c.req()
			m.ServiceID ^= 0x8000000000000000
			c.say(m)
			c.rejected(mad.InvalidServiceID)
		}},
	{"CM-REJ-CONSUMER", "A request that the program rejects is rejected, with the reason consumer reject.", "IBTA Vol 1 §12.6.7.2",
		func(t *tester) {
			c := asking(t)
			c.Do(control.Request{Op: control.Reject, CM: &control.CM{Data: c.tag}})
			c.rejected(mad.ConsumerDefined)
		}},
	{"CM-REJ-EVENT", "A REJ instead of the RTU is an event.", suite.Observed, func(t *tester) {
		c, _, _ := accepting(t)
		c.raise(&mad.REJ{LocalCommID: c.id, RemoteCommID: c.theirs, About: mad.AnsweredREP, Reason: mad.ConsumerDefined}, "REJECTED")
	}},
	{"CM-RTU", "The RTU establishes the connection.", "IBTA Vol 1 §12.6.9", func(t *tester) { established(t) }},
	{"CM-RTU-DUP", "A duplicate RTU makes no second event.", suite.Observed, func(t *tester) {
		c, _ := established(t)
		c.say(&mad.RTU{LocalCommID: c.id, RemoteCommID: c.theirs})
		c.quiet()
	}},
	{"CM-RTU-UNKNOWN", "An RTU for another communication ID establishes nothing.", suite.Observed, func(t *tester) {
		c, _, _ := accepting(t)
		c.say(&mad.RTU{LocalCommID: c.id, RemoteCommID: c.theirs ^ 0x40})
		t.sync(func(*reply) {})
		event := c.NextEvent(t.Quiet).Event
		// It may have given up.
		is(t, "whether the connection is established", event == "ESTABLISHED", false)
	}},
	{"CM-MRA", "An MRA makes the target delay the repetition of its REP for the time in the MRA.", mra, func(t *tester) {
		c, _, _ := accepting(t)
		c.say(&mad.MRA{LocalCommID: c.id, RemoteCommID: c.theirs, About: mad.AnsweredREP, ServiceTimeout: mraTime})
		t.sync(func(*reply) {}) // a message may be in flight
		r, ok := t.next(repeated)
		is(t, "that the REP comes again", ok && r.number > 0, false)
	}},
	{"CM-MRA-RTU", "An RTU after an MRA establishes the connection.", mra, func(t *tester) {
		c, _, _ := accepting(t)
		c.say(&mad.MRA{LocalCommID: c.id, RemoteCommID: c.theirs, About: mad.AnsweredREP, ServiceTimeout: mraTime})
		c.raise(&mad.RTU{LocalCommID: c.id, RemoteCommID: c.theirs}, "ESTABLISHED")
	}},
	{"CM-REP-LOST", "A REP that no RTU answers to the last repetition that the REQ allows is an event.", suite.Observed, func(t *tester) {
		c := t.listening()
		m := c.req()
		m.MaxCMRetries = 1
		c.raise(m, "CONNECT_REQUEST")
		c.Do(control.Request{Op: control.Accept, CM: &control.CM{ReadsIn: readsIn, ReadsOut: readsOut}})
		c.expect(&mad.REP{})
		c.expect(&mad.REP{})
		c.Event("UNREACHABLE")
	}},
	{"CM-PSN", "The tester's first request has the starting PSN of the REP.", "IBTA Vol 1 §12.6.8", func(t *tester) {
		c, rep := established(t)
		c.psn = rep.StartingPSN
		t.ask(c.write(0, pattern(8, 1))).ack(rep.StartingPSN)
		c.Holds(0, pattern(8, 1))
	}},
	{"CM-REQ-PSN", "The target's first request has the starting PSN of the REQ.", "IBTA Vol 1 §12.6.5", func(t *tester) {
		c, _ := established(t)
		c.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
	}},
}

// rejected waits for a REJ with a reason.
func (c *caller) rejected(want mad.Reason) {
	var m mad.REJ
	r, _ := c.expect(&m)
	equal(r, "reason", m.Reason, want, "%d")
}

// calling makes the target dial.
func calling(t *tester) (*caller, *reply, *mad.REQ) {
	c := t.caller()
	port := uint16(20000 + t.qpn%20000)
	c.service = mad.ServiceID(portSpaceTCP, port)
	_, err := t.Control.Do(&control.Request{Op: control.DialTester, QP: c.Handle,
		CM: &control.CM{Addr: netip.AddrPortFrom(t.Peer.Addr, port).String(), Data: c.tag, ReadsIn: readsIn, ReadsOut: readsOut}})
	if err != nil {
		t.Skipf("the target's responder does not dial: %v", err)
	}
	m := new(mad.REQ)
	r, h := c.expect(m)
	c.tid, c.theirs = h.TID, m.LocalCommID
	return c, r, m
}

// rep returns the tester's answer to a REQ.
func (c *caller) rep() *mad.REP {
	return &mad.REP{LocalCommID: c.id, RemoteCommID: c.theirs, LocalQPN: c.own, StartingPSN: theirPSN, ResponderResources: 2,
		InitiatorDepth: 2,
		TargetAckDelay: 15, RNRRetryCount: 7, LocalCAGUID: c.guid, PrivateData: c.tag}
}

// calls has the cases of a target that initiates a connection.
var calls = []entry{
	{"CM-CALL", "A REQ names the service ID of the port that was called.", "IBTA annex A11", func(t *tester) {
		c, r, m := calling(t)
		equal(r, "service ID", m.ServiceID, c.service, "%#x")
	}},
	{"CM-CALL-ADDRESS", "The private data of a REQ begin with the addresses of both ends.", "IBTA annex A11", func(t *tester) {
		_, r, m := calling(t)
		ip, err := mad.ParseIPCM(m.PrivateData)
		if err != nil {
			t.Failf("the REQ's private data: %v", err)
		}
		equal(r, "IP CM header", ip.Src.Unmap(), t.Peer.Target, "%v")
		equal(r, "IP CM header", ip.Dst.Unmap(), t.Peer.Addr, "%v")
	}},
	{"CM-CALL-RTU", "A REP is answered with an RTU, and establishes the connection.", "IBTA Vol 1 §12.6.9", func(t *tester) {
		c, _, _ := calling(t)
		c.raise(c.rep(), "ESTABLISHED") // some targets answer when the program gets the event
		var m mad.RTU
		r, _ := c.expect(&m)
		equal(r, "communication IDs", m.RemoteCommID, c.id, "%#x")
	}},
	{"CM-CALL-REP-DUP", "A duplicate REP is answered with another RTU.", suite.Observed, func(t *tester) {
		c, _, _ := calling(t)
		c.raise(c.rep(), "ESTABLISHED")
		c.expect(&mad.RTU{})
		c.say(c.rep())
		c.expect(&mad.RTU{})
	}},
	{"CM-CALL-MRA", "A REP that comes after an MRA establishes the connection.", mra, func(t *tester) {
		c, _, _ := calling(t)
		c.say(&mad.MRA{LocalCommID: c.id, RemoteCommID: c.theirs, About: mad.AnsweredREQ, ServiceTimeout: mraTime})
		t.sync(func(*reply) {})
		c.raise(c.rep(), "ESTABLISHED")
	}},
	{"CM-CALL-REJ", "A REJ instead of the REP is an event, with its private data.", "IBTA Vol 1 §12.6.7", func(t *tester) {
		c, _, _ := calling(t)
		c.say(&mad.REJ{LocalCommID: c.id, RemoteCommID: c.theirs, About: mad.AnsweredREQ, Reason: mad.ConsumerDefined, PrivateData: c.tag})
		ev := c.Event("REJECTED")
		is(t, "whether the private data are the REJ's", bytes.HasPrefix(ev.Data, c.tag), true)
	}},
}
