package rocev2

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/internal/rdmatransport/wire"
)

// word returns a 64-bit integer as in the target's memory. The target is assumed to have this
// machine's byte order.
func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

var writes = []entry{
	{"WRITE-ONLY", "A WRITE places its payload at the address that its RETH names, and nothing beside it.", "IBTA Vol 1 §9.4.3",
		func(t *tester) {
			q := t.rc()
			t.send(q.write(16, pattern(8, 1)))
			t.reply().ack(firstPSN)
			q.holds(8, append(append(make([]byte, 8), pattern(8, 1)...), make([]byte, 8)...))
		}},
	{"WRITE-PAD", "The pad bytes of a WRITE are not placed.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc()
		t.send(q.write(0, pattern(5, 1)))
		t.reply().ack(firstPSN)
		q.put(5, []byte{9, 9, 9})
		t.send(q.write(0, pattern(5, 2)))
		t.reply().ack(firstPSN + 1)
		q.holds(0, append(pattern(5, 2), 9, 9, 9))
	}},
	{"WRITE-LONG", "The packets of a WRITE are placed one behind the other.", "IBTA Vol 1 §9.4.3", func(t *tester) {
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
		q.holds(4, data)
	}},
	{"WRITE-ZERO", "A WRITE of zero bytes is acknowledged, and its R_Key is not looked at.", "IBTA Vol 1 C9-88", func(t *tester) {
		q := t.rc()
		p := q.write(0, nil)
		p.RETH.RKey, p.RETH.Addr = 0, 0
		t.send(p)
		t.reply().ack(firstPSN).msn(1)
	}},
	{"WRITE-IMM", "A WRITE with immediate data completes a receive request with them.", "IBTA Vol 1 §9.4.3", func(t *tester) {
		q := t.rc()
		q.recv(77, 64, 8)
		p := q.rdma(wire.RCWriteOnlyImm, 0, 8, pattern(8, 1))
		p.Imm = 0x01020304
		t.send(p)
		t.reply().ack(firstPSN)
		c := q.completion()
		is(t, "the completed receive request", c.WRID, 77)
		is(t, "the completion's immediate data", c.Imm, 0x01020304)
		is(t, "the completion's length", c.ByteLen, 8)
	}},
	{"WRITE-SILENT", "A WRITE without immediate data takes no receive request.", "IBTA Vol 1 §9.4.3", func(t *tester) {
		q := t.rc()
		q.recv(77, 64, 8)
		t.send(q.write(0, pattern(8, 1)))
		t.reply().ack(firstPSN)
		q.none()
	}},
}

var sends = []entry{
	{"SEND-ONLY", "A SEND places its payload in the first receive request.", "IBTA Vol 1 §9.4.1", func(t *tester) {
		q := t.rc()
		q.recv(5, 32, 100)
		q.recv(6, 200, 100)
		t.send(q.packet(wire.RCSendOnly, pattern(20, 1)))
		t.reply().ack(firstPSN).msn(1)
		c := q.completion()
		is(t, "the completed receive request", c.WRID, 5)
		is(t, "the completion's length", c.ByteLen, 20)
		q.holds(32, pattern(20, 1))
	}},
	{"SEND-IMM", "Immediate data of a SEND are delivered with its completion.", "IBTA Vol 1 §9.4.1", func(t *tester) {
		q := t.rc()
		q.recv(5, 0, 100)
		p := q.packet(wire.RCSendOnlyImm, pattern(20, 1))
		p.Imm = 0xfedcba98
		t.send(p)
		t.reply().ack(firstPSN)
		is(t, "the completion's immediate data", q.completion().Imm, 0xfedcba98)
	}},
	{"SEND-LONG", "The packets of a SEND are placed in one receive request, one behind the other.", "IBTA Vol 1 §9.4.1", func(t *tester) {
		q, data := t.rc(), pattern(mtu+40, 3)
		q.recv(5, 0, 4096)
		first := q.packet(wire.RCSendFirst, data[:mtu])
		t.send(first)
		t.reply().ack(firstPSN).msn(0)
		t.send(q.packet(wire.RCSendLast, data[mtu:]))
		t.reply().ack(firstPSN + 1).msn(1)
		is(t, "the completion's length", q.completion().ByteLen, uint32(len(data)))
		q.holds(0, data)
	}},
	{"RNR-NAK", "A SEND for which there is no receive request is answered with an RNR NAK of its PSN.", "IBTA Vol 1 §9.7.5.2.8",
		func(t *tester) {
			q := t.rc()
			t.send(q.packet(wire.RCSendOnly, pattern(20, 1)))
			r := t.reply().opcode(wire.RCAck).psn(firstPSN)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		}},
	{"RNR-TIMER", "An RNR NAK has the queue pair's minimal RNR timer, or a longer one.", "IBTA Vol 1 §9.7.5.2.8", func(t *tester) {
		q := t.rc(func(s *settings) { s.MinRNR = 20 })
		t.send(q.packet(wire.RCSendOnly, pattern(20, 1)))
		r := t.reply().opcode(wire.RCAck)
		equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		enough := wire.RNRTimer(r.AETH.Value()) >= wire.RNRTimer(20)
		equal(r, "syndrome", enough, true, "of a timer that is long enough: %v")
	}},
	{"RNR-RETRY", "A SEND that was answered with an RNR NAK is executed when it comes again and there is a receive request.",
		"IBTA Vol 1 §9.7.5.2.8", func(t *tester) {
			q := t.rc()
			s := q.packet(wire.RCSendOnly, pattern(20, 1))
			t.send(s)
			r := t.reply().opcode(wire.RCAck)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
			q.recv(5, 0, 100)
			t.send(s)
			t.reply().ack(firstPSN).msn(1)
			q.holds(0, pattern(20, 1))
		}},
	{"RNR-MSN", "A SEND that was answered with an RNR NAK does not count in the MSN.", "IBTA Vol 1 §9.7.7.1", func(t *tester) {
		q := t.rc()
		t.send(q.packet(wire.RCSendOnly, pattern(20, 1)))
		r := t.reply().opcode(wire.RCAck)
		equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		r.msn(0)
	}},
	{"RNR-WRITE-IMM", "A WRITE with immediate data for which there is no receive request is answered with an RNR NAK.",
		"IBTA Vol 1 §9.7.5.2.8", func(t *tester) {
			q := t.rc()
			t.send(q.rdma(wire.RCWriteOnlyImm, 0, 8, pattern(8, 1)))
			r := t.reply().opcode(wire.RCAck).psn(firstPSN)
			equal(r, "syndrome", r.AETH.Type(), wire.RNRNak, "%#x")
		}},
}

var reads = []entry{
	{"READ-ONLY", "A READ of no more than a path MTU is answered with one packet of the data, at its PSN.", "IBTA Vol 1 §9.4.4",
		func(t *tester) {
			q := t.rc()
			q.put(40, pattern(21, 1))
			t.send(q.read(40, 21))
			t.reply().opcode(wire.RCReadResponseOnly).psn(firstPSN).payload(pattern(21, 1))
		}},
	{"READ-LONG", "A longer READ is answered with a First, Middle and a Last packet, at the request's PSN and those that follow.",
		"IBTA Vol 1 §9.4.4", func(t *tester) {
			q, data := t.rc(), pattern(2*mtu+100, 7)
			q.put(0, data)
			t.send(q.read(0, len(data)))
			t.reply().opcode(wire.RCReadResponseFirst).psn(firstPSN).payload(data[:mtu])
			t.reply().opcode(wire.RCReadResponseMiddle).psn(firstPSN + 1).payload(data[mtu : 2*mtu])
			t.reply().opcode(wire.RCReadResponseLast).psn(firstPSN + 2).payload(data[2*mtu:])
		}},
	{"READ-PSN", "The request behind a READ has the PSN behind those of the READ's response.", "IBTA Vol 1 §9.7.1", func(t *tester) {
		q := t.rc()
		t.send(q.read(0, 2*mtu))
		t.reply().opcode(wire.RCReadResponseFirst)
		t.reply().opcode(wire.RCReadResponseLast)
		q.psn = firstPSN + 2
		t.send(q.write(0, pattern(8, 1)))
		t.reply().ack(firstPSN + 2).msn(2)
	}},
	{"READ-ZERO", "A READ of zero bytes is answered with one packet without payload, and its R_Key is not looked at.",
		"IBTA Vol 1 C9-88", func(t *tester) {
			q := t.rc()
			p := q.read(0, 0)
			p.RETH.RKey, p.RETH.Addr = 0, 0
			t.send(p)
			r := t.reply().opcode(wire.RCReadResponseOnly).psn(firstPSN)
			equal(r, "opcode", len(r.Payload), 0, "of %d bytes of payload")
		}},
	{"READ-SYNDROME", "A READ response acknowledges its request: its AETH is that of an ACK, and the MSN counts it.",
		"IBTA Vol 1 §9.7.5.1", func(t *tester) {
			q := t.rc()
			t.send(q.read(0, 8))
			r := t.reply().opcode(wire.RCReadResponseOnly).msn(1)
			equal(r, "syndrome", r.AETH.Type(), wire.SyndromeACK, "%#x")
		}},
	{"READ-PAD", "The pad count of a READ response fills its payload to a multiple of four bytes.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc()
		t.send(q.read(0, 9))
		r := t.reply().opcode(wire.RCReadResponseOnly)
		equal(r, "pad", r.raw.Packet()[1]>>4&3, 3, "%d")
	}},
}

var atomics = []entry{
	{"ATOMIC-ADD", "FETCH_ADD adds to the word in memory.", "IBTA Vol 1 §9.4.5", func(t *tester) {
		q := t.rc()
		q.put(8, word(1000))
		t.send(q.atomic(wire.RCFetchAdd, 8, 0, 24))
		t.reply().opcode(wire.RCAtomicAck).psn(firstPSN)
		q.holds(8, word(1024))
	}},
	{"ATOMIC-ADD-CARRY", "FETCH_ADD wraps at 2^64.", "IBTA Vol 1 §9.4.5", func(t *tester) {
		q := t.rc()
		q.put(8, word(1<<64-1))
		t.send(q.atomic(wire.RCFetchAdd, 8, 0, 3))
		t.reply().opcode(wire.RCAtomicAck)
		q.holds(8, word(2))
	}},
	{"ATOMIC-ORIGINAL", "An atomic's response has what the word was before.", "IBTA Vol 1 §9.4.5", func(t *tester) {
		q := t.rc()
		q.put(8, word(1000))
		t.send(q.atomic(wire.RCFetchAdd, 8, 0, 24))
		r := t.reply().opcode(wire.RCAtomicAck)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
	}},
	{"ATOMIC-SWAP", "CMP_SWAP replaces a word that is equal to the compare data.", "IBTA Vol 1 §9.4.5", func(t *tester) {
		q := t.rc()
		q.put(8, word(1000))
		t.send(q.atomic(wire.RCCmpSwap, 8, 1000, 5))
		r := t.reply().opcode(wire.RCAtomicAck).psn(firstPSN)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
		q.holds(8, word(5))
	}},
	{"ATOMIC-NO-SWAP", "CMP_SWAP leaves a word that is not equal to the compare data.", "IBTA Vol 1 §9.4.5", func(t *tester) {
		q := t.rc()
		q.put(8, word(1000))
		t.send(q.atomic(wire.RCCmpSwap, 8, 1001, 5))
		r := t.reply().opcode(wire.RCAtomicAck).psn(firstPSN)
		equal(r, "original value", r.AtomicAckETH.Orig, 1000, "%d")
		q.holds(8, word(1000))
	}},
	{"ATOMIC-MSN", "The response of an atomic acknowledges it, and the MSN counts it.", "IBTA Vol 1 §9.7.7.1", func(t *tester) {
		q := t.rc()
		t.send(q.atomic(wire.RCFetchAdd, 8, 0, 24))
		r := t.reply().opcode(wire.RCAtomicAck).msn(1)
		equal(r, "syndrome", r.AETH.Type(), wire.SyndromeACK, "%#x")
	}},
}
