package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/internal/rdmatransport/wire"
)

// uc makes the target create a UC QP.
func uc(s *settings) {
	s.Type, s.QPAccess, s.MRAccess = "UC", []string{"remote_write"}, []string{"remote_write"}
}

// others fails the case if the target sends anything before it has handled all sent packets.
func (t *tester) others() {
	t.sync(func(r *reply) { t.Failf("the target sends %v, PSN %d", r.Opcode, r.PSN) })
}

// completer has the cases of responses to a requester, and of unreliable connections. §9.7.5.1.2 is
// quoted on linux-rdma, §9.7.5.2.8 and §9.7.6.1.3 in OpenSM's ib_types.h and pib, §10.3.1 in Linux'
// IPoIB. No public text was found for the other clauses.
var completer = []entry{
	{"REQ-ACK-UNSENT", "An acknowledgement of a PSN that was not sent completes nothing.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN+7, 1))
		t.others()
		q.none()
	}},
	{"REQ-ACK-PARTIAL", "An acknowledgement of a message's first packet does not complete it.", "IBTA Vol 1 §9.7.5.1.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", mtu+8)
		t.reply().opcode(wire.RCWriteFirst)
		t.reply().opcode(wire.RCWriteLast)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 0))
		t.sync(func(*reply) {}) // it may retransmit the rest
		q.none()
	}},
	{"REQ-ACK-DUPLICATE", "An acknowledgement that comes again completes nothing more.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		is(t, "the completion's status", q.completion().Status, "SUCCESS")
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		t.others()
		q.none()
		q.state("RTS")
	}},
	{"REQ-RNR-REPEAT", "A SEND that is answered with an RNR NAK is repeated with the same PSN.", "IBTA Vol 1 §9.7.5.2.8", func(t *tester) {
		q := t.rc(patient)
		q.post("SEND", 8)
		t.reply().opcode(wire.RCSendOnly)
		t.send(q.answer(wire.RNRNak|minRNR, theirPSN, 0))
		t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
	}},
	{"REQ-RNR-EXHAUSTED", "An RNR NAK when rnr_retry is used up completes the request with an RNR retry error.", suite.Observed,
		func(t *tester) {
			q := t.rc(patient, func(s *settings) { s.RNRRetry = 0 })
			q.post("SEND", 8)
			t.reply().opcode(wire.RCSendOnly)
			t.send(q.answer(wire.RNRNak|minRNR, theirPSN, 0))
			is(t, "the completion's status", q.completion().Status, "RNR_RETRY_EXC_ERR")
		}},
	{"REQ-NAK-ERROR-STATE", "A requester that receives a NAK, remote access error, is in the error state.", "IBTA Vol 1 §10.3.1",
		func(t *tester) {
			q := t.rc(patient)
			q.post("RDMA_WRITE", 8)
			t.reply().opcode(wire.RCWriteOnly)
			t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
			is(t, "the completion's status", q.completion().Status, "REM_ACCESS_ERR")
			q.state("ERR")
		}},
	{"REQ-NAK-ACKS", "A NAK, PSN sequence error, acknowledges the requests before the one that it names.", "IBTA Vol 1 §9.7.5.1.2",
		func(t *tester) {
			q := t.rc(patient)
			q.post("RDMA_WRITE", 8)
			q.post("RDMA_WRITE", 8)
			t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
			t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
			t.send(q.answer(wire.NakPSNSeq, theirPSN+1, 1))
			is(t, "the completion's status", q.completion().Status, "SUCCESS")
		}},
	{"REQ-READ-RESPONSE", "A READ response is placed in the memory of the READ.", "IBTA Vol 1 §9.4.4", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_READ", 8)
		t.reply().opcode(wire.RCReadRequest)
		p := q.answer(wire.AckUnlimited, theirPSN, 1)
		p.Opcode, p.Payload = wire.RCReadResponseOnly, pattern(8, 3)
		t.send(p)
		is(t, "the completion's status", q.completion().Status, "SUCCESS")
		q.holds(0, pattern(8, 3))
	}},
	{"UC-WRITE", "A WRITE over an unreliable connection is executed.", suite.Observed, func(t *tester) {
		q := t.rc(uc)
		t.send(q.rdma(wire.UCWriteOnly, 0, 8, pattern(8, 1)))
		t.silent()
		q.holds(0, pattern(8, 1))
	}},
	{"UC-NO-NAK", "A WRITE with an unknown R_Key over an unreliable connection is dropped without an answer.", suite.Observed,
		func(t *tester) {
			q := t.rc(uc)
			t.send(badKey(q.rdma(wire.UCWriteOnly, here, 8, pattern(8, 1))))
			t.silent()
			q.holds(here, make([]byte, 8))
		}},
	{"UC-GAP", "A message behind a gap is executed over an unreliable connection.", suite.Observed, func(t *tester) {
		q := t.rc(uc)
		q.psn += 5
		t.send(q.rdma(wire.UCWriteOnly, 0, 8, pattern(8, 1)))
		t.silent()
		q.holds(0, pattern(8, 1))
	}},
	{"UC-NO-RECEIVE", "A SEND for which there is no receive request is dropped without an RNR NAK over an unreliable connection.",
		suite.Observed, func(t *tester) {
			q := t.rc(uc)
			t.send(q.packet(wire.UCSendOnly, pattern(8, 1)))
			t.silent()
			q.none()
		}},
	{"UC-GAP-MESSAGE", "A SEND over an unreliable connection that lost its middle packet completes no receive request.", suite.Observed,
		func(t *tester) {
			q := t.rc(uc)
			q.t.do(&control.Request{Op: control.PostRecv, QP: q.handle, WRID: 4, Length: 4096})
			first := q.packet(wire.UCSendFirst, pattern(mtu, 1))
			q.psn++
			t.send(first, q.packet(wire.UCSendLast, pattern(8, 1)))
			t.silent()
			q.none()
		}},
}
