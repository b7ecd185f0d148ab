package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// patient makes the target's timeout longer than a case.
func patient(s *settings) { s.Timeout = 20 }

// The tester's memory that requests of the target name. It does not exist: the tester checks the
// packets.
const (
	theirAddr = 0x123456789abcd000
	theirKey  = 0x00c0ffee
)

// theirImm is the immediate data of the target's requests, if they have any.
const theirImm = 0x0a0b0c0d

// post makes the target post a request of length bytes.
func (q *qp) post(opcode string, length int, change ...func(*control.Send)) {
	s := control.Send{Opcode: opcode, RemoteAddr: theirAddr, RKey: theirKey, Imm: theirImm}
	for _, f := range change {
		f(&s)
	}
	q.Do(control.Request{Op: control.PostSend, WRID: 3, Length: length, Send: &s})
}

// request has the target post a request, and returns the first packet of it.
func (q *qp) request(opcode string, length int, want wire.Opcode, change ...func(*control.Send)) *reply {
	q.post(opcode, length, change...)
	return q.t.reply().opcode(want)
}

// requesting returns a QP of a target that has sent the first packet of a request.
func requesting(t *tester, opcode string, length int, want wire.Opcode) *qp {
	q := t.rc(patient)
	q.request(opcode, length, want)
	return q
}

// answer returns a response of the tester to the request with a PSN.
func (q *qp) answer(syndrome uint8, psn, msn uint32) *wire.Packet {
	return &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PKey: wire.DefaultPKey, DestQP: q.num, PSN: psn, MigReq: true},
		AETH: wire.AETH{Syndrome: syndrome, MSN: msn}}
}

// ends returns a case in which an answer to a WRITE completes it with a status.
func ends(id, statement string, syndrome uint8, status string) entry {
	return entry{id, statement, "IBTA Vol 1 §9.9.2", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(syndrome, theirPSN, 0))
		is(t, "the completion's status", q.Completion().Status, status)
	}}
}

var requester = []entry{
	{"REQ-PSN", "A requester's first packet has its first PSN.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.request("RDMA_WRITE", 8, wire.RCWriteOnly).psn(0xabcdef)
	}, patient, func(s *settings) { s.SQPSN = 0xabcdef })},
	{"REQ-PSN-WRAP", "A requester's packet after PSN 0xffffff has PSN 0.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.request("RDMA_WRITE", mtu+8, wire.RCWriteFirst).psn(0xffffff)
		q.t.reply().opcode(wire.RCWriteLast).psn(0)
	}, patient, func(s *settings) { s.SQPSN = 0xffffff })},
	{"REQ-SEGMENTS", "A WRITE longer than the path MTU is a First, Middle and a Last packet, all but the last as long as the path MTU.",
		"IBTA Vol 1 §9.4.3", func(t *tester) {
			q, data := t.rc(patient), pattern(2*mtu+100, 7)
			q.Put(0, data)
			q.post("RDMA_WRITE", len(data))
			t.reply().opcode(wire.RCWriteFirst).psn(theirPSN).payload(data[:mtu])
			t.reply().opcode(wire.RCWriteMiddle).psn(theirPSN + 1).payload(data[mtu : 2*mtu])
			t.reply().opcode(wire.RCWriteLast).psn(theirPSN + 2).payload(data[2*mtu:])
		}},
	{"REQ-SEND", "A SEND of no more than the path MTU is an Only packet with the data.", "IBTA Vol 1 §9.4.1", onRC(func(q *qp) {
		q.Put(0, pattern(21, 7))
		q.request("SEND", 21, wire.RCSendOnly).payload(pattern(21, 7))
	}, patient)},
	{"REQ-RESERVED7", "A request has zeros in the seven reserved bits after AckReq.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
		equal(r, "reserved 7", r.Reserved7, 0, "%#x")
	}, patient)},
	{"REQ-MIGRATION", "A request of a connection without an alternate path has MigReq set: it is in the state Migrated.", migrated,
		onRC(func(q *qp) {
			r := q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
			equal(r, "MigReq", r.MigReq, true, "%v")
		}, patient)},
	{"REQ-READ-PSN", "The request after a READ skips the PSNs of the READ's response.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.post("RDMA_READ", 2*mtu+8)
		q.post("RDMA_WRITE", 8)
		q.t.reply().opcode(wire.RCReadRequest).psn(theirPSN)
		q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 3)
	}, patient)},
	{"REQ-ACK", "An acknowledgement completes the request.", "IBTA Vol 1 §9.7.5.1", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		q.None()
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		q.Completes("SUCCESS")
	}},
	{"REQ-NAK-SEQUENCE", "A NAK, PSN sequence error, makes the requester retransmit from its PSN.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		q.request("RDMA_WRITE", 8, wire.RCWriteOnly).psn(theirPSN)
		q.t.ask(q.answer(wire.NakPSNSeq, theirPSN, 0)).opcode(wire.RCWriteOnly).psn(theirPSN)
	}, patient)},
	{"REQ-TIMEOUT", "A request that is not answered is repeated with the same PSN.", "IBTA Vol 1 §9.7.6.1.3", onRC(func(q *qp) {
		q.request("RDMA_WRITE", 8, wire.RCWriteOnly).psn(theirPSN)
		q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
	})},
	{"REQ-ICRC-WRONG", "An acknowledgement with a wrong ICRC completes nothing.", "IBTA Vol 1 §7.8.1, §9.6", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		d := t.Peer.Make(q.answer(wire.AckUnlimited, theirPSN, 1))
		d.Packet()[len(d.Packet())-1] ^= 0x80
		t.sendRaw(d)
		t.sync(func(r *reply) { t.Failf("the target sends %v", r.Opcode) })
		q.None()
	}},
	ends("REQ-NAK-ACCESS", "A NAK, remote access error, completes the request with that error.", wire.NakRemoteAccess, "REM_ACCESS_ERR"),
	ends("REQ-NAK-INVALID", "A NAK, invalid request, completes the request with a remote invalid request error.",
		wire.NakInvalidRequest, "REM_INV_REQ_ERR"),
	ends("REQ-NAK-OPERATIONAL", "A NAK, remote operational error, completes the request with that error.",
		wire.NakRemoteOperational, "REM_OP_ERR"),
}
