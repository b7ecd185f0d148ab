package rocev2

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// limited is a QP of the target whose first SEND was acknowledged with a credit code.
type limited struct {
	*qp
	came []uint32 // the PSNs of the SENDs since
}

func newLimited(t *tester, psn uint32, code uint8) *limited {
	q := &limited{qp: t.rc(patient, func(s *settings) { s.SQPSN = psn })}
	q.request("SEND", 8, wire.RCSendOnly)
	t.send(q.answer(code, psn, 1))
	q.Completes("SUCCESS")
	return q
}

// sends waits for a SEND. The target may retransmit earlier ones that are not acknowledged.
func (q *limited) sends(psn uint32) *reply {
	for {
		r := q.t.reply().opcode(wire.RCSendOnly)
		if !slices.Contains(q.came, r.PSN) {
			q.came = append(q.came, psn)
			return r.psn(psn)
		}
	}
}

// holdsBack checks that the target does not send a SEND.
func (q *limited) holdsBack(psn uint32) {
	sent := false
	q.t.sync(func(r *reply) { sent = sent || r.PSN == psn })
	is(q.t, "that the target sends the next SEND", sent, false)
}

// credits are the cases of end-to-end flow control. Its public text is the code of Linux' rdmavt
// and hfi1 (credit_table, rvt_get_credit, s_lsn).
var credits = []entry{
	{"ACK-CREDITS", "An acknowledgement grants no more credits than there are receive requests, or states that it grants none.",
		"IBTA Vol 1 §9.7.7.2", onRC(func(q *qp) {
			for i := range 3 {
				q.Recv(uint64(i), 8*i, 8)
			}
			r := q.t.ask(q.write(1024, pattern(8, 1))).ack(firstPSN)
			n, given := r.AETH.Credits()
			equal(r, "credits", !given || n <= 3, true, "no more: %v")
		})},
	{"ACK-RESERVED", "The highest bit of an acknowledgement's syndrome is zero.", "IBTA Vol 1 §9.3.5", func(t *tester) {
		_, r := answered(t)
		equal(r, "syndrome's highest bit", r.AETH.Syndrome>>7, 0, "%d")
	}},
	{"REQ-CREDITS-NONE", "Without credits a requester sends one SEND, and the next one when that is acknowledged.", "IBTA Vol 1 §9.7.7.2",
		func(t *tester) {
			q := newLimited(t, theirPSN, 0)
			q.post("SEND", 8)
			q.post("SEND", 8)
			q.sends(theirPSN + 1)
			q.holdsBack(theirPSN + 2)
			t.send(q.answer(0, theirPSN+1, 2))
			q.sends(theirPSN + 2)
		}},
	{"REQ-CREDITS-ASK", "A SEND that goes beyond the credits asks for an acknowledgement.", "IBTA Vol 1 §9.7.7.2", func(t *tester) {
		q := newLimited(t, theirPSN, 0)
		q.post("SEND", 8)
		r := q.sends(theirPSN + 1)
		equal(r, "AckReq", r.AckReq, true, "%v")
	}},
	{"REQ-CREDITS-WRITE", "A WRITE takes no credit: without any, one is sent after another.", "IBTA Vol 1 §9.7.7.2", func(t *tester) {
		q := newLimited(t, theirPSN, 0)
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 2)
	}},
	{"REQ-CREDITS-CODE", "Credit code 5 is six SENDs.", "IBTA Vol 1 §9.7.7.2", func(t *tester) {
		const first = theirPSN + 1
		q := newLimited(t, first, 5)
		for range 8 {
			q.post("SEND", 8)
		}
		for i := range uint32(7) { // one may be sent without credit
			q.sends(first + 1 + i)
		}
		q.holdsBack(first + 8)
	}},
}
