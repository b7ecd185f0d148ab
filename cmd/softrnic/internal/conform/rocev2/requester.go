package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/internal/rdmatransport/wire"
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
	q.t.do(&control.Request{Op: control.PostSend, QP: q.handle, WRID: 3, Length: length, Send: &s})
}

// answer returns a response of the tester to the request with a PSN.
func (q *qp) answer(syndrome uint8, psn, msn uint32) *wire.Packet {
	return &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PKey: wire.DefaultPKey, DestQP: q.num, PSN: psn, MigReq: true},
		AETH: wire.AETH{Syndrome: syndrome, MSN: msn}}
}

// ends returns a case in which an answer to a WRITE completes it with a status.
func ends(id, statement string, syndrome uint8, status string) entry {
	return entry{id, statement, "IBTA Vol 1 §9.9.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(syndrome, theirPSN, 0))
		is(t, "the completion's status", q.completion().Status, status)
	}}
}

var requester = []entry{
	{"REQ-PSN", "A requester's first packet has its first PSN.", "IBTA Vol 1 §9.7.1", func(t *tester) {
		q := t.rc(patient, func(s *settings) { s.SQPSN = 0xabcdef })
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly).psn(0xabcdef)
	}},
	{"REQ-PSN-WRAP", "A requester's packet behind PSN 0xffffff has PSN 0.", "IBTA Vol 1 §9.7.1", func(t *tester) {
		q := t.rc(patient, func(s *settings) { s.SQPSN = 0xffffff })
		q.post("RDMA_WRITE", mtu+8)
		t.reply().opcode(wire.RCWriteFirst).psn(0xffffff)
		t.reply().opcode(wire.RCWriteLast).psn(0)
	}},
	{"REQ-SEGMENTS", "A WRITE longer than the path MTU is a First, Middle and a Last packet, all but the last as long as the path MTU.",
		"IBTA Vol 1 §9.4.3", func(t *tester) {
			q, data := t.rc(patient), pattern(2*mtu+100, 7)
			q.put(0, data)
			q.post("RDMA_WRITE", len(data))
			t.reply().opcode(wire.RCWriteFirst).psn(theirPSN).payload(data[:mtu])
			t.reply().opcode(wire.RCWriteMiddle).psn(theirPSN + 1).payload(data[mtu : 2*mtu])
			t.reply().opcode(wire.RCWriteLast).psn(theirPSN + 2).payload(data[2*mtu:])
		}},
	{"REQ-SEND", "A SEND of no more than the path MTU is an Only packet with the data.", "IBTA Vol 1 §9.4.1", func(t *tester) {
		q := t.rc(patient)
		q.put(0, pattern(21, 7))
		q.post("SEND", 21)
		t.reply().opcode(wire.RCSendOnly).payload(pattern(21, 7))
	}},
	{"REQ-RESERVED7", "A request has zeros in the seven reserved bits behind AckReq.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		r := t.reply().opcode(wire.RCWriteOnly)
		equal(r, "reserved 7", r.Reserved7, 0, "%#x")
	}},
	{"REQ-MIGRATION", "A request of a connection without an alternate path has MigReq set: it is in the state Migrated.", migrated,
		func(t *tester) {
			q := t.rc(patient)
			q.post("RDMA_WRITE", 8)
			r := t.reply().opcode(wire.RCWriteOnly)
			equal(r, "MigReq", r.MigReq, true, "%v")
		}},
	{"REQ-READ-PSN", "The request behind a READ leaves out the PSNs of the READ's response.", "IBTA Vol 1 §9.7.1", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_READ", 2*mtu+8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCReadRequest).psn(theirPSN)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 3)
	}},
	{"REQ-ACK", "An acknowledgement completes the request.", "IBTA Vol 1 §9.7.5.1", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		q.none()
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		is(t, "the completion's status", q.completion().Status, "SUCCESS")
	}},
	{"REQ-NAK-SEQUENCE", "A NAK, PSN sequence error, has the requester repeat what it names.", "IBTA Vol 1 §9.7.5.1.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
		t.send(q.answer(wire.NakPSNSeq, theirPSN, 0))
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
	}},
	{"REQ-TIMEOUT", "A request that is not answered is repeated with the same PSN.", "IBTA Vol 1 §9.7.6.1.3", func(t *tester) {
		q := t.rc()
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
	}},
	{"REQ-ICRC-WRONG", "An acknowledgement with a wrong ICRC completes nothing.", "IBTA Vol 1 §7.8.1, §9.6", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		d := t.Peer.Make(q.answer(wire.AckUnlimited, theirPSN, 1))
		d.Packet()[len(d.Packet())-1] ^= 0x80
		t.sendRaw(d)
		t.sync(func(r *reply) { t.Failf("the target sends %v", r.Opcode) })
		q.none()
	}},
	ends("REQ-NAK-ACCESS", "A NAK, remote access error, completes the request with that error.", wire.NakRemoteAccess, "REM_ACCESS_ERR"),
	ends("REQ-NAK-INVALID", "A NAK, invalid request, completes the request with a remote invalid request error.",
		wire.NakInvalidRequest, "REM_INV_REQ_ERR"),
	ends("REQ-NAK-OPERATIONAL", "A NAK, remote operational error, completes the request with that error.",
		wire.NakRemoteOperational, "REM_OP_ERR"),
}
