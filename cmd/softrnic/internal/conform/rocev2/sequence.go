package rocev2

import "github.com/softrnic/softrnic/rdmatransport/wire"

var sequence = []entry{
	{"PSN-ACK", "An acknowledgement has the PSN of the request that asked for it.", "IBTA Vol 1 §9.7.5.1", onRC(func(q *qp) {
		q.t.ask(q.write(0, pattern(8, 1))).ack(0x123456)
	}, func(s *settings) { s.RQPSN = 0x123456 })},
	{"PSN-WRAP", "PSN 0 follows PSN 0xffffff.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.t.ask(q.write(0, pattern(8, 1))).ack(0xffffff)
		q.t.ask(q.write(8, pattern(8, 2))).ack(0).msn(2)
		q.Holds(8, pattern(8, 2))
	}, func(s *settings) { s.RQPSN = 0xffffff })},
	{"PSN-GAP-NAK", "A request after a gap is answered with a NAK, PSN sequence error, with the expected PSN.",
		"IBTA Vol 1 §9.7.5.1.2, §9.7.5.2", onRC(func(q *qp) {
			q.psn += 2
			q.t.ask(q.write(0, pattern(8, 1))).nak(wire.NakPSNSeq, firstPSN)
		})},
	{"PSN-GAP-DROP", "A request after a gap is not executed.", "IBTA Vol 1 §9.7.4", onRC(func(q *qp) {
		q.psn++
		q.t.ask(q.write(0, pattern(8, 1))).nak(wire.NakPSNSeq, firstPSN)
		q.Holds(0, make([]byte, 8))
		q.State("RTS")
	})},
	{"PSN-GAP-ONCE", "While the expected request is missing, a gap is answered with one NAK only.", "IBTA Vol 1 §9.7.5.1.2",
		onRC(func(q *qp) {
			q.psn++
			q.t.ask(q.write(0, pattern(8, 1))).nak(wire.NakPSNSeq, firstPSN)
			q.t.unanswered(q.write(8, pattern(8, 1)))
		})},
	{"PSN-GAP-MENDED", "When the expected request arrives after a NAK, it is executed and acknowledged.", "IBTA Vol 1 §9.7.5.1.2",
		onRC(func(q *qp) {
			missing := q.write(0, pattern(8, 1))
			q.t.ask(q.write(8, pattern(8, 2))).nak(wire.NakPSNSeq, firstPSN)
			q.t.ask(missing).ack(firstPSN).msn(1)
			q.Holds(0, pattern(8, 1))
		})},
	{"PSN-GAP-AGAIN", "After a gap is filled, the next one is answered with a NAK of its own.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		missing := q.write(0, pattern(8, 1))
		q.t.ask(q.write(8, pattern(8, 2))).nak(wire.NakPSNSeq, firstPSN)
		q.t.ask(missing).ack(firstPSN)
		q.psn = firstPSN + 5
		q.t.ask(q.write(8, pattern(8, 2))).nak(wire.NakPSNSeq, firstPSN+1)
	})},
	{"PSN-FAR-AHEAD", "A PSN 2^23-1 after the expected one is after it, not a duplicate.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.psn = wire.PSNAdd(firstPSN, 1<<23-1)
		q.t.ask(q.write(0, pattern(8, 1))).nak(wire.NakPSNSeq, firstPSN)
	})},
	{"DUP-WRITE-ACK", "A duplicate WRITE is acknowledged.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		w := q.write(0, pattern(8, 1))
		q.t.ask(w).ack(firstPSN)
		q.t.ask(w).ack(firstPSN)
	})},
	{"DUP-WRITE-ONCE", "A duplicate WRITE is not executed again.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		w := q.write(0, pattern(8, 1))
		q.t.ask(w).ack(firstPSN)
		q.Put(0, pattern(8, 9))
		q.t.ask(w).ack(firstPSN)
		q.Holds(0, pattern(8, 9))
	})},
	{"DUP-MSN", "A duplicate does not count in the MSN.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		w := q.write(0, pattern(8, 1))
		q.t.ask(w).ack(firstPSN).msn(1)
		q.t.ask(w).ack(firstPSN).msn(1)
	})},
	{"DUP-SEND", "A duplicate SEND takes no receive request.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		q.Recv(1, 0, 8)
		q.Recv(2, 8, 8)
		s := q.packet(wire.RCSendOnly, pattern(8, 1))
		q.t.ask(s).ack(firstPSN)
		q.Completion()
		q.t.ask(s).ack(firstPSN)
		q.None()
		q.Holds(8, make([]byte, 8))
	})},
	{"DUP-READ", "A duplicate READ is executed again, and its response has the same PSN.", "IBTA Vol 1 §9.7.5.1.2", onRC(func(q *qp) {
		q.Put(0, pattern(8, 4))
		r := q.read(0, 8)
		q.t.ask(r).opcode(wire.RCReadResponseOnly).psn(firstPSN)
		q.t.ask(r).opcode(wire.RCReadResponseOnly).psn(firstPSN).payload(pattern(8, 4))
	})},
	{"DUP-ATOMIC-RESULT", "A duplicate atomic is answered with the result of the first.", "IBTA Vol 1 §9.7.5.1.2, §9.4.5", onRC(func(q *qp) {
		q.Put(0, []byte{7, 0, 0, 0, 0, 0, 0, 0})
		a := q.atomic(wire.RCFetchAdd, 0, 0, 5)
		first := q.t.ask(a).opcode(wire.RCAtomicAck)
		again := q.t.ask(a).opcode(wire.RCAtomicAck).psn(firstPSN)
		equal(again, "original value", again.AtomicAckETH.Orig, first.AtomicAckETH.Orig, "%#x")
	})},
	{"DUP-ATOMIC-ONCE", "A duplicate atomic is not executed again.", "IBTA Vol 1 §9.7.5.1.2, §9.4.5", onRC(func(q *qp) {
		q.Put(0, word(7))
		a := q.atomic(wire.RCFetchAdd, 0, 0, 5)
		q.t.ask(a).opcode(wire.RCAtomicAck)
		q.t.ask(a).opcode(wire.RCAtomicAck)
		q.Holds(0, word(12))
	})},
	{"MSN-COUNTS", "The MSN counts the requests that are complete.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		for i := range uint32(3) {
			q.t.ask(q.write(0, pattern(8, 1))).ack(firstPSN + i).msn(i + 1)
		}
	})},
	{"MSN-FIRST", "The first packet of a message does not count in the MSN.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		q.t.ask(q.rdma(wire.RCWriteFirst, 0, mtu+8, pattern(mtu, 1))).ack(firstPSN).msn(0)
	})},
	{"MSN-NAK", "A NAK has the MSN of the last request that is complete.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		q.t.ask(q.write(0, pattern(8, 1))).ack(firstPSN)
		q.psn++
		q.t.ask(q.write(0, pattern(8, 1))).nak(wire.NakPSNSeq, firstPSN+1).msn(1)
	})},
	{"ACK-COALESCED", "One acknowledgement covers several requests, of which only the last has AckReq.", "IBTA Vol 1 §9.7.5.1.2",
		onRC(func(q *qp) {
			var all []*wire.Packet
			for i := range 3 {
				p := q.write(8*i, pattern(8, byte(i)))
				p.AckReq = i == 2
				all = append(all, p)
			}
			q.t.send(all...)
			for {
				// Unsolicited acknowledgements may come before.
				r := q.t.reply().opcode(wire.RCAck)
				if r.PSN == firstPSN+2 || r.PSN < firstPSN || r.PSN > firstPSN+2 {
					r.ack(firstPSN + 2).msn(3)
					break
				}
			}
			q.Holds(16, pattern(8, 2))
		})},
}
