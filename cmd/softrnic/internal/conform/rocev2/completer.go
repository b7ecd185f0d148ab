package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/wire"
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
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN+7, 1))
		t.others()
		q.None()
	}},
	{"REQ-ACK-PARTIAL", "An acknowledgement of a message's first packet does not complete it.", "IBTA Vol 1 §9.7.5.1.2", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", mtu+8, wire.RCWriteFirst)
		t.reply().opcode(wire.RCWriteLast)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 0))
		t.sync(func(*reply) {}) // it may retransmit the rest
		q.None()
	}},
	{"REQ-ACK-DUPLICATE", "A duplicate acknowledgement completes no further request.", suite.Observed, func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		q.Completes("SUCCESS")
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		t.others()
		q.None()
		q.State("RTS")
	}},
	{"REQ-RNR-REPEAT", "A SEND that is answered with an RNR NAK is repeated with the same PSN.", "IBTA Vol 1 §9.7.5.2.8", func(t *tester) {
		q := requesting(t, "SEND", 8, wire.RCSendOnly)
		t.ask(q.answer(wire.RNRNak|minRNR, theirPSN, 0)).opcode(wire.RCSendOnly).psn(theirPSN)
	}},
	{"REQ-RNR-EXHAUSTED", "An RNR NAK when rnr_retry is exhausted completes the request with an RNR retry error.", suite.Observed,
		onRC(func(q *qp) {
			q.request("SEND", 8, wire.RCSendOnly)
			q.t.send(q.answer(wire.RNRNak|minRNR, theirPSN, 0))
			q.Completes("RNR_RETRY_EXC_ERR")
		}, patient, func(s *settings) { s.RNRRetry = 0 })},
	{"REQ-NAK-ERROR-STATE", "A requester that receives a NAK, remote access error, is in the error state.", "IBTA Vol 1 §10.3.1",
		func(t *tester) {
			q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
			t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
			q.Completes("REM_ACCESS_ERR")
			q.State("ERR")
		}},
	{"REQ-NAK-ACKS", "A NAK, PSN sequence error, acknowledges the requests before the one that it names.", "IBTA Vol 1 §9.7.5.1.2",
		onRC(func(q *qp) {
			q.post("RDMA_WRITE", 8)
			q.post("RDMA_WRITE", 8)
			q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
			q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
			q.t.send(q.answer(wire.NakPSNSeq, theirPSN+1, 1))
			q.Completes("SUCCESS")
		}, patient)},
	{"REQ-READ-RESPONSE", "A READ response is placed in the memory of the READ.", "IBTA Vol 1 §9.4.4", func(t *tester) {
		q := requesting(t, "RDMA_READ", 8, wire.RCReadRequest)
		p := q.answer(wire.AckUnlimited, theirPSN, 1)
		p.Opcode, p.Payload = wire.RCReadResponseOnly, pattern(8, 3)
		t.send(p)
		q.Completes("SUCCESS")
		q.Holds(0, pattern(8, 3))
	}},
	{"UC-WRITE", "A WRITE over an unreliable connection is executed.", suite.Observed, onRC(func(q *qp) {
		q.t.unanswered(q.rdma(wire.UCWriteOnly, 0, 8, pattern(8, 1)))
		q.Holds(0, pattern(8, 1))
	}, uc)},
	{"UC-NO-NAK", "A WRITE with an unknown R_Key over an unreliable connection is dropped without an answer.", suite.Observed,
		onRC(func(q *qp) {
			q.t.unanswered(badKey(q.rdma(wire.UCWriteOnly, here, 8, pattern(8, 1))))
			q.Holds(here, make([]byte, 8))
		}, uc)},
	{"UC-GAP", "A message after a gap is executed over an unreliable connection.", suite.Observed, onRC(func(q *qp) {
		q.psn += 5
		q.t.unanswered(q.rdma(wire.UCWriteOnly, 0, 8, pattern(8, 1)))
		q.Holds(0, pattern(8, 1))
	}, uc)},
	{"UC-NO-RECEIVE", "A SEND for which there is no receive request is dropped without an RNR NAK over an unreliable connection.",
		suite.Observed, onRC(func(q *qp) {
			q.t.unanswered(q.packet(wire.UCSendOnly, pattern(8, 1)))
			q.None()
		}, uc)},
	{"UC-GAP-MESSAGE", "A SEND over an unreliable connection that lost its middle packet completes no receive request.", suite.Observed,
		onRC(func(q *qp) {
			q.Do(control.Request{Op: control.PostRecv, WRID: 4, Length: 4096})
			first := q.packet(wire.UCSendFirst, pattern(mtu, 1))
			q.psn++
			q.t.unanswered(first, q.packet(wire.UCSendLast, pattern(8, 1)))
			q.None()
		}, uc)},
}
