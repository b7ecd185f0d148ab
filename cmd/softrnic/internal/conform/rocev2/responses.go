package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// readResponse returns one packet of a READ response.
func (q *qp) readResponse(op wire.Opcode, psn uint32, data []byte) *wire.Packet {
	p := q.answer(wire.AckUnlimited, psn, 1)
	p.Opcode, p.Payload, p.Pad = op, data, wire.PadLen(len(data))
	return p
}

// atomicResponse returns the response to an atomic.
func (q *qp) atomicResponse(psn uint32, original uint64) *wire.Packet {
	p := q.answer(wire.AckUnlimited, psn, 1)
	p.Opcode, p.AtomicAckETH.Orig = wire.RCAtomicAck, original
	return p
}

// reading makes the target post a READ of length bytes and waits for the request. The destination
// is filled before.
func reading(t *tester, length int, change ...func(*settings)) *qp {
	q := t.rc(append([]func(*settings){patient}, change...)...)
	q.Put(0, pattern(4096, 0x55))
	q.request("RDMA_READ", length, wire.RCReadRequest).psn(theirPSN)
	return q
}

// unmoved checks that a response has neither completed the READ nor changed memory after its first
// n bytes.
func (q *qp) unmoved(n int) {
	q.t.sync(func(*reply) {}) // it may retransmit the request
	q.None()
	q.Holds(n, pattern(4096, 0x55)[n:])
}

// unlucky checks that a response has not completed its request with success. The target may drop it
// or end the connection.
func (q *qp) unlucky() {
	q.t.sync(func(*reply) {})
	for _, c := range q.Do(control.Request{Op: control.Poll}).Completions {
		is(q.t, "that the request is complete", c.Status == "SUCCESS", false)
	}
	q.Intact()
}

// swapping makes the target post an atomic and waits for the request.
func swapping(t *tester) *qp {
	q := t.rc(patient)
	q.Put(0, pattern(4096, 0x55))
	q.request("FETCH_ADD", 8, wire.RCFetchAdd, func(s *control.Send) { s.CompareAdd = 1 }).psn(theirPSN)
	return q
}

// responses has the cases of responses to READs and atomics.
var responses = []entry{
	{"REQ-READ-LONG", "The packets of a READ response are placed one after the other.", "IBTA Vol 1 §9.4.4", func(t *tester) {
		q, data := reading(t, 2*mtu+8), pattern(2*mtu+8, 3)
		t.send(q.readResponse(wire.RCReadResponseFirst, theirPSN, data[:mtu]),
			q.readResponse(wire.RCReadResponseMiddle, theirPSN+1, data[mtu:2*mtu]),
			q.readResponse(wire.RCReadResponseLast, theirPSN+2, data[2*mtu:]))
		q.Completes("SUCCESS")
		q.Holds(0, data)
	}},
	{"REQ-READ-GAP", "A READ is not complete while a packet of its response is missing.", "IBTA Vol 1 §9.4.4", func(t *tester) {
		q, data := reading(t, 2*mtu+8), pattern(2*mtu+8, 3)
		t.send(q.readResponse(wire.RCReadResponseFirst, theirPSN, data[:mtu]),
			q.readResponse(wire.RCReadResponseLast, theirPSN+2, data[2*mtu:]))
		t.sync(func(*reply) {})
		q.None()
	}},
	{"REQ-READ-AGAIN", "The missing part of a READ's response is requested again, from the first missing PSN and address on.",
		suite.Observed,
		func(t *tester) {
			// The timeout of half a second is enough for a busy tester.
			q, data := reading(t, 2*mtu+8, func(s *settings) { s.Timeout, s.Retry = 17, 3 }), pattern(2*mtu+8, 3)
			t.send(q.readResponse(wire.RCReadResponseFirst, theirPSN, data[:mtu]))
			t.reply().opcode(wire.RCReadRequest).psn(theirPSN+1).reth(theirAddr+mtu, mtu+8)
		}},
	{"REQ-READ-UNSENT", "A READ response of a PSN that was not requested changes nothing.", suite.Observed, func(t *tester) {
		q := reading(t, 8)
		t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN+5, pattern(8, 3)))
		q.unmoved(0)
	}},
	{"REQ-READ-ICRC", "A READ response with a wrong ICRC changes nothing.", "IBTA Vol 1 §7.8.1, §9.6", func(t *tester) {
		q := reading(t, 8)
		d := t.Peer.Make(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3)))
		d.Packet()[len(d.Packet())-1] ^= 0x80
		t.sendRaw(d)
		q.unmoved(0)
	}},
	{"REQ-READ-DUPLICATE", "A duplicate READ response changes nothing when its READ is complete.", suite.Observed,
		func(t *tester) {
			q := reading(t, 8)
			t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3)))
			q.Completes("SUCCESS")
			t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 4)))
			q.t.others()
			q.None()
			q.Holds(0, pattern(8, 3))
		}},
	{"REQ-READ-SHORT", "A READ response with fewer bytes than were requested does not complete the READ with success.", suite.Observed,
		func(t *tester) {
			q := reading(t, 64)
			t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(32, 3)))
			q.unlucky()
		}},
	{"REQ-READ-MORE", "A READ response with more bytes than requested places only the requested number.", suite.Observed, func(t *tester) {
		q := reading(t, 8)
		t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(64, 3)))
		t.sync(func(*reply) {})
		q.Holds(8, pattern(4096, 0x55)[8:])
	}},
	{"REQ-READ-MIDDLE-SHORT", "A middle packet of a READ response that is shorter than the path MTU does not let the READ succeed.",
		suite.Observed, func(t *tester) {
			q, data := reading(t, 2*mtu+8), pattern(2*mtu+8, 3)
			t.send(q.readResponse(wire.RCReadResponseFirst, theirPSN, data[:mtu]),
				q.readResponse(wire.RCReadResponseMiddle, theirPSN+1, data[mtu:2*mtu-4]),
				q.readResponse(wire.RCReadResponseLast, theirPSN+2, data[2*mtu:]))
			q.unlucky()
		}},
	{"REQ-READ-ACK", "An acknowledgement without data does not complete a READ.", suite.Observed, func(t *tester) {
		q := reading(t, 8)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		q.unlucky()
		q.Holds(0, pattern(8, 0x55))
	}},
	{"REQ-READ-NAK", "A READ that is answered with a NAK, remote access error, completes with that error, and its memory is as it was.",
		suite.Observed, func(t *tester) {
			q := reading(t, 8)
			t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
			q.Completes("REM_ACCESS_ERR")
			q.Holds(0, pattern(8, 0x55))
		}},
	{"REQ-READ-ACKS", "A READ response acknowledges the requests before the READ.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_READ", 8)
		q.t.reply().opcode(wire.RCWriteOnly)
		q.t.reply().opcode(wire.RCReadRequest)
		q.t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN+1, pattern(8, 3)))
		is(q.t, "the completions' statuses", q.completions(2), "SUCCESS SUCCESS")
	}, patient)},
	{"REQ-ATOMIC-RESPONSE", "The original value in an atomic's response is placed in the memory of the atomic.", "IBTA Vol 1 §9.4.5",
		func(t *tester) {
			q := swapping(t)
			t.send(q.atomicResponse(theirPSN, 0x0102030405060708))
			q.Completes("SUCCESS")
			q.Holds(0, word(0x0102030405060708))
		}},
	{"REQ-ATOMIC-UNSENT", "An atomic's response of a PSN that was not requested changes nothing.", suite.Observed, func(t *tester) {
		q := swapping(t)
		t.send(q.atomicResponse(theirPSN+5, 0x0102030405060708))
		q.unmoved(0)
	}},
	{"REQ-ATOMIC-ACK", "An acknowledgement without a value does not complete an atomic.", suite.Observed, func(t *tester) {
		q := swapping(t)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		q.unlucky()
		q.Holds(0, pattern(8, 0x55))
	}},
	{"REQ-ATOMIC-DUPLICATE", "A duplicate response of an atomic changes nothing when the atomic is complete.", suite.Observed,
		func(t *tester) {
			q := swapping(t)
			t.send(q.atomicResponse(theirPSN, 7))
			q.Completes("SUCCESS")
			t.send(q.atomicResponse(theirPSN, 9))
			t.others()
			q.None()
			q.Holds(0, word(7))
		}},
	{"REQ-ATOMIC-READ", "The response of a READ does not complete an atomic with success.", suite.Observed, func(t *tester) {
		q := swapping(t)
		t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3)))
		q.unlucky()
	}},
}
