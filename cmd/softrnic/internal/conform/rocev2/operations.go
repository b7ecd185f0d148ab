package rocev2

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

var writes = []entry{
	{"WRITE-ONLY", "A WRITE places its payload at the address in its RETH, and changes no other memory.", "IBTA Vol 1 §9.4.3",
		onRC(func(q *qp) {
			q.t.ask(q.write(16, pattern(8, 1))).ack(firstPSN)
			q.Holds(8, append(append(make([]byte, 8), pattern(8, 1)...), make([]byte, 8)...))
		})},
	{"WRITE-PAD", "The pad bytes of a WRITE are not placed.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		q.t.ask(q.write(0, pattern(5, 1))).ack(firstPSN)
		q.Put(5, []byte{9, 9, 9})
		q.t.ask(q.write(0, pattern(5, 2))).ack(firstPSN + 1)
		q.Holds(0, append(pattern(5, 2), 9, 9, 9))
	})},
	{"WRITE-LONG", "The packets of a WRITE are placed one after the other.", "IBTA Vol 1 §9.4.3", func(t *tester) {
		q, data := t.rc(), pattern(2*mtu+100, 5)
		first := q.rdma(wire.RCWriteFirst, 4, len(data), data[:mtu])
		middle, last := q.packet(wire.RCWriteMiddle, data[mtu:2*mtu]), q.packet(wire.RCWriteLast, data[2*mtu:])
		first.AckReq, middle.AckReq = false, false
		t.send(first, middle, last)
		for r := t.reply(); ; r = t.reply() {
			if r.PSN != firstPSN && r.PSN != firstPSN+1 {
				r.ack(firstPSN + 2).msn(1)
				break
			}
		}
		q.Holds(4, data)
	}},
	{"WRITE-ZERO", "A WRITE of zero bytes is acknowledged, and its R_Key is not checked.", "IBTA Vol 1 C9-88", onRC(func(q *qp) {
		p := q.write(0, nil)
		p.RETH.RKey, p.RETH.Addr = 0, 0
		q.t.ask(p).ack(firstPSN).msn(1)
	})},
	{"WRITE-IMM", "A WRITE with immediate data completes a receive request with them.", "IBTA Vol 1 §9.4.3", onRC(func(q *qp) {
		q.Recv(77, 64, 8)
		p := q.rdma(wire.RCWriteOnlyImm, 0, 8, pattern(8, 1))
		p.Imm = 0x01020304
		q.t.ask(p).ack(firstPSN)
		c := q.Completion()
		is(q.t, "the completed receive request", c.WRID, 77)
		is(q.t, "the completion's immediate data", c.Imm, 0x01020304)
		is(q.t, "the completion's length", c.ByteLen, 8)
	})},
	{"WRITE-SILENT", "A WRITE without immediate data takes no receive request.", "IBTA Vol 1 §9.4.3", onRC(func(q *qp) {
		q.Recv(77, 64, 8)
		q.t.ask(q.write(0, pattern(8, 1))).ack(firstPSN)
		q.None()
	})},
}

var sends = []entry{
	{"SEND-ONLY", "A SEND places its payload in the first receive request.", "IBTA Vol 1 §9.4.1", onRC(func(q *qp) {
		q.Recv(5, 32, 100)
		q.Recv(6, 200, 100)
		q.t.ask(q.packet(wire.RCSendOnly, pattern(20, 1))).ack(firstPSN).msn(1)
		c := q.Completion()
		is(q.t, "the completed receive request", c.WRID, 5)
		is(q.t, "the completion's length", c.ByteLen, 20)
		q.Holds(32, pattern(20, 1))
	})},
	{"SEND-IMM", "Immediate data of a SEND are delivered with its completion.", "IBTA Vol 1 §9.4.1", onRC(func(q *qp) {
		q.Recv(5, 0, 100)
		p := q.packet(wire.RCSendOnlyImm, pattern(20, 1))
		p.Imm = 0xfedcba98
		q.t.ask(p).ack(firstPSN)
		is(q.t, "the completion's immediate data", q.Completion().Imm, 0xfedcba98)
	})},
	{"SEND-LONG", "The packets of a SEND are placed in one receive request, one after the other.", "IBTA Vol 1 §9.4.1", func(t *tester) {
		q, data := t.rc(), pattern(mtu+40, 3)
		q.Recv(5, 0, 4096)
		first := q.packet(wire.RCSendFirst, data[:mtu])
		t.ask(first).ack(firstPSN).msn(0)
		t.ask(q.packet(wire.RCSendLast, data[mtu:])).ack(firstPSN + 1).msn(1)
		is(t, "the completion's length", q.Completion().ByteLen, uint32(len(data)))
		q.Holds(0, data)
	}},
	{"RNR-NAK", "A SEND for which there is no receive request is answered with an RNR NAK of its PSN.", "IBTA Vol 1 §9.7.5.2.8",
		onRC(func(q *qp) {
			r := q.t.ask(q.packet(wire.RCSendOnly, pattern(20, 1))).opcode(wire.RCAck).psn(firstPSN)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		})},
	{"RNR-TIMER", "An RNR NAK has the queue pair's minimal RNR timer, or a longer one.", "IBTA Vol 1 §9.7.5.2.8", onRC(func(q *qp) {
		r := q.t.ask(q.packet(wire.RCSendOnly, pattern(20, 1))).opcode(wire.RCAck)
		equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		enough := wire.RNRTimer(r.AETH.Value()) >= wire.RNRTimer(20)
		equal(r, "syndrome", enough, true, "of a timer that is long enough: %v")
	}, func(s *settings) { s.MinRNR = 20 })},
	{"RNR-RETRY", "A SEND that was answered with an RNR NAK is executed when it is retransmitted and there is a receive request.",
		"IBTA Vol 1 §9.7.5.2.8", onRC(func(q *qp) {
			s := q.packet(wire.RCSendOnly, pattern(20, 1))
			r := q.t.ask(s).opcode(wire.RCAck)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
			q.Recv(5, 0, 100)
			q.t.ask(s).ack(firstPSN).msn(1)
			q.Holds(0, pattern(20, 1))
		})},
	{"RNR-MSN", "A SEND that was answered with an RNR NAK does not count in the MSN.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		r := q.t.ask(q.packet(wire.RCSendOnly, pattern(20, 1))).opcode(wire.RCAck)
		equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		r.msn(0)
	})},
	{"RNR-WRITE-IMM", "A WRITE with immediate data for which there is no receive request is answered with an RNR NAK.",
		"IBTA Vol 1 §9.7.5.2.8", onRC(func(q *qp) {
			r := q.t.ask(q.rdma(wire.RCWriteOnlyImm, 0, 8, pattern(8, 1))).opcode(wire.RCAck).psn(firstPSN)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		})},
}

var reads = []entry{
	{"READ-ONLY", "A READ of no more than a path MTU is answered with one packet of the data, at its PSN.", "IBTA Vol 1 §9.4.4",
		onRC(func(q *qp) {
			q.Put(40, pattern(21, 1))
			q.t.ask(q.read(40, 21)).opcode(wire.RCReadResponseOnly).psn(firstPSN).payload(pattern(21, 1))
		})},
	{"READ-LONG", "A longer READ is answered with a First, Middle and a Last packet, at the request's PSN and the following ones.",
		"IBTA Vol 1 §9.4.4", func(t *tester) {
			q, data := t.rc(), pattern(2*mtu+100, 7)
			q.Put(0, data)
			t.ask(q.read(0, len(data))).opcode(wire.RCReadResponseFirst).psn(firstPSN).payload(data[:mtu])
			t.reply().opcode(wire.RCReadResponseMiddle).psn(firstPSN + 1).payload(data[mtu : 2*mtu])
			t.reply().opcode(wire.RCReadResponseLast).psn(firstPSN + 2).payload(data[2*mtu:])
		}},
	{"READ-PSN", "The request after a READ has the PSN after those of the READ's response.", "IBTA Vol 1 §9.7.1", onRC(func(q *qp) {
		q.t.ask(q.read(0, 2*mtu)).opcode(wire.RCReadResponseFirst)
		q.t.reply().opcode(wire.RCReadResponseLast)
		q.psn = firstPSN + 2
		q.t.ask(q.write(0, pattern(8, 1))).ack(firstPSN + 2).msn(2)
	})},
	{"READ-ZERO", "A READ of zero bytes is answered with one packet without payload, and its R_Key is not checked.",
		"IBTA Vol 1 C9-88", onRC(func(q *qp) {
			p := q.read(0, 0)
			p.RETH.RKey, p.RETH.Addr = 0, 0
			r := q.t.ask(p).opcode(wire.RCReadResponseOnly).psn(firstPSN)
			equal(r, "opcode", len(r.Payload), 0, "of %d bytes of payload")
		})},
	{"READ-SYNDROME", "A READ response acknowledges its request: its AETH is that of an ACK, and the MSN counts it.",
		"IBTA Vol 1 §9.7.5.1", onRC(func(q *qp) {
			r := q.t.ask(q.read(0, 8)).opcode(wire.RCReadResponseOnly).msn(1)
			equal(r, "syndrome", r.AETH.Type(), wire.SyndromeACK, "%#x")
		})},
	{"READ-PAD", "The pad count of a READ response fills its payload to a multiple of four bytes.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.t.ask(q.read(0, 9)).opcode(wire.RCReadResponseOnly)
		equal(r, "pad", r.raw.Packet()[1]>>4&3, 3, "%d")
	})},
}

var atomics = []entry{
	{"ATOMIC-ADD", "FETCH_ADD adds to the word in memory.", "IBTA Vol 1 §9.4.5", onRC(func(q *qp) {
		q.Put(8, word(1000))
		q.t.ask(q.atomic(wire.RCFetchAdd, 8, 0, 24)).opcode(wire.RCAtomicAck).psn(firstPSN)
		q.Holds(8, word(1024))
	})},
	{"ATOMIC-ADD-CARRY", "FETCH_ADD wraps at 2^64.", "IBTA Vol 1 §9.4.5", onRC(func(q *qp) {
		q.Put(8, word(1<<64-1))
		q.t.ask(q.atomic(wire.RCFetchAdd, 8, 0, 3)).opcode(wire.RCAtomicAck)
		q.Holds(8, word(2))
	})},
	{"ATOMIC-ORIGINAL", "An atomic's response has the original value of the word.", "IBTA Vol 1 §9.4.5", onRC(func(q *qp) {
		q.Put(8, word(1000))
		r := q.t.ask(q.atomic(wire.RCFetchAdd, 8, 0, 24)).opcode(wire.RCAtomicAck)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
	})},
	{"ATOMIC-SWAP", "CMP_SWAP replaces a word that is equal to the compare data.", "IBTA Vol 1 §9.4.5", onRC(func(q *qp) {
		q.Put(8, word(1000))
		r := q.t.ask(q.atomic(wire.RCCmpSwap, 8, 1000, 5)).opcode(wire.RCAtomicAck).psn(firstPSN)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
		q.Holds(8, word(5))
	})},
	{"ATOMIC-NO-SWAP", "CMP_SWAP leaves a word that is not equal to the compare data.", "IBTA Vol 1 §9.4.5", onRC(func(q *qp) {
		q.Put(8, word(1000))
		r := q.t.ask(q.atomic(wire.RCCmpSwap, 8, 1001, 5)).opcode(wire.RCAtomicAck).psn(firstPSN)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
		q.Holds(8, word(1000))
	})},
	{"ATOMIC-MSN", "The response of an atomic acknowledges it, and the MSN counts it.", "IBTA Vol 1 §9.7.7.1", onRC(func(q *qp) {
		r := q.t.ask(q.atomic(wire.RCFetchAdd, 8, 0, 24)).opcode(wire.RCAtomicAck).msn(1)
		equal(r, "syndrome", r.AETH.Type(), wire.SyndromeACK, "%#x")
	})},
}
