package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// grh is the length of the network header before a datagram's payload in a receive request.
const grh = wire.GRHLen

// datagram returns a SEND of one packet to a UD QP.
func (q *qp) datagram(payload []byte) *wire.Packet {
	p := q.packet(wire.UDSendOnly, payload)
	p.AckReq, p.DETH = false, wire.DETH{QKey: theirQKey, SrcQP: q.own}
	return p
}

// receiver returns a UD QP with a receive request of length bytes.
func receiver(t *tester, length int) *qp {
	q := t.rc(ud)
	q.Recv(6, 0, length)
	return q
}

// dropped checks that a datagram is neither answered nor placed.
func dropped(t *tester, change func(*wire.Packet)) {
	q := receiver(t, 1024)
	p := q.datagram(pattern(20, 1))
	change(p)
	t.unanswered(p)
	q.None()
	q.Holds(0, make([]byte, 64))
}

// datagrams are the cases of unreliable datagrams.
var datagrams = []entry{
	{"UD-SEND", "A datagram's payload is placed after the 40 bytes of a network header.", "IBTA annex A17.4.5, ibv_poll_cq(3)",
		func(t *tester) {
			q := receiver(t, 1024)
			t.send(q.datagram(pattern(20, 1)))
			is(t, "the completion's length", q.Completes("SUCCESS").ByteLen, grh+20)
			q.Holds(grh, pattern(20, 1))
		}},
	{"UD-SOURCE", "A datagram's completion names the queue pair that sent it.", "ibv_poll_cq(3)", func(t *tester) {
		q := receiver(t, 1024)
		t.send(q.datagram(pattern(20, 1)))
		is(t, "the completion's source", q.Completion().SrcQP, q.own)
	}},
	{"UD-GRH", "The last 20 of the 40 bytes are the IPv4 header: its source and destination are those of the datagram.",
		"IBTA annex A17.4.5", func(t *tester) {
			q := receiver(t, 1024)
			t.send(q.datagram(pattern(20, 1)))
			q.Completes("SUCCESS")
			q.Holds(grh-8, append(t.Peer.Addr.AsSlice(), t.Peer.Target.AsSlice()...))
		}},
	{"UD-IMM", "The immediate data of a datagram are delivered with its completion.", "ibv_poll_cq(3)", func(t *tester) {
		q := receiver(t, 1024)
		p := q.datagram(pattern(20, 1))
		p.Opcode, p.Imm = wire.UDSendOnlyImm, 0xfedcba98
		t.send(p)
		is(t, "the completion's immediate data", q.Completion().Imm, 0xfedcba98)
	}},
	{"UD-NO-ACK", "A datagram is not acknowledged, even if it has AckReq set.", suite.Observed, func(t *tester) {
		q := receiver(t, 1024)
		p := q.datagram(pattern(20, 1))
		p.AckReq = true
		t.unanswered(p)
		q.Completes("SUCCESS")
	}},
	{"UD-PSN", "A datagram is delivered whatever its PSN is.", suite.Observed, func(t *tester) {
		q := receiver(t, 1024)
		q.Recv(7, 1024, 1024)
		first, second := q.datagram(pattern(20, 1)), q.datagram(pattern(20, 2))
		first.PSN, second.PSN = 0x123456, 77
		t.send(first, second)
		is(t, "the completions' statuses", q.completions(2), "SUCCESS SUCCESS")
	}},
	{"UD-ZERO", "A datagram without payload takes a receive request.", suite.Observed, func(t *tester) {
		q := receiver(t, 1024)
		t.send(q.datagram(nil))
		is(t, "the completion's length", q.Completion().ByteLen, grh)
	}},
	{"UD-QKEY-WRONG", "A datagram with another Q_Key than the queue pair's is dropped without an answer.", "IBTA Vol 1 §9.6.1.4.1",
		func(t *tester) {
			dropped(t, func(p *wire.Packet) { p.DETH.QKey ^= 0x10 })
		}},
	{"UD-PKEY-WRONG", "A datagram of another partition is dropped without an answer.", "IBTA Vol 1 §9.6.1, C9-43", func(t *tester) {
		dropped(t, func(p *wire.Packet) { p.PKey = 0x8765 })
	}},
	{"UD-SERVICE-WRONG", "A packet of a connection is dropped without an answer by a queue pair for datagrams.", "IBTA Vol 1 §9.6.1",
		func(t *tester) {
			dropped(t, func(p *wire.Packet) { p.Opcode = wire.RCSendOnly })
		}},
	{"UD-NO-RECEIVE", "A datagram for which there is no receive request is dropped, and the next one delivered.", suite.Observed,
		onRC(func(q *qp) {
			q.t.unanswered(q.datagram(pattern(20, 1)))
			q.Recv(6, 0, 1024)
			q.t.send(q.datagram(pattern(20, 2)))
			q.Completes("SUCCESS")
			q.Holds(grh, pattern(20, 2))
		}, ud)},
	{"UD-LONG", "A datagram that is longer than the receive request changes no memory after it.", suite.Observed, func(t *tester) {
		q := receiver(t, grh+16)
		t.unanswered(q.datagram(pattern(64, 1)))
		q.Holds(grh+16, make([]byte, 64))
	}},
}

// congestion are the cases of ECN marks and CNPs.
var congestion = []entry{
	{"CNP-SILENT", "A congestion notification is not answered.", "IBTA annex A17.9", onRC(func(q *qp) {
		q.t.unanswered(q.notification())
		q.State("RTS")
	})},
	{"CNP-PSN", "A congestion notification takes no PSN.", "IBTA annex A17.9", onRC(func(q *qp) {
		q.t.ask(q.notification(), q.write(0, pattern(8, 1))).ack(firstPSN)
	})},
	{"ECN-ACK", "A request that a switch has marked is executed and acknowledged.", "IBTA annex A17.9", onRC(func(q *qp) {
		marked(q)
		for r := q.t.reply(); ; r = q.t.reply() {
			if r.Opcode != wire.CNP {
				r.ack(firstPSN)
				break
			}
		}
		q.Holds(0, pattern(8, 1))
	})},
	{"ECN-CNP", "A packet that a switch has marked is answered with a congestion notification: BECN is set, and 16 bytes are zero.",
		"IBTA annex A17.9.3",
		onRC(func(q *qp) {
			marked(q)
			r := q.t.reply()
			if r.Opcode != wire.CNP {
				r, _ = q.t.next(q.t.Quiet)
			}
			if r == nil || r.Opcode != wire.CNP {
				q.t.Skipf("the target sends no congestion notifications")
			}
			equal(r, "BECN", r.BECN, true, "%v")
			equal(r, "destination QP", r.DestQP, q.own, "%#x")
			r.payload(make([]byte, wire.CNPPayloadLen))
		})},
}

// notification returns a CNP to a QP.
func (q *qp) notification() *wire.Packet {
	return &wire.Packet{BTH: wire.BTH{Opcode: wire.CNP, PKey: wire.DefaultPKey, DestQP: q.num, BECN: true, MigReq: true},
		Payload: make([]byte, wire.CNPPayloadLen)}
}

// marked sends a WRITE with an ECN mark.
func marked(q *qp) {
	d := q.t.Peer.Make(q.write(0, pattern(8, 1)))
	d.Header()[1] |= 3
	checksum.PutIPv4(d[:20])
	q.t.sendRaw(d)
}
