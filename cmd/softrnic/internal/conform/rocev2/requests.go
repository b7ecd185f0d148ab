package rocev2

import (
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/internal/rdmatransport/wire"
)

// requests has the cases of a requester's packets: their fields and when they are sent. The layout
// of the headers is public in Wireshark's dissector and in rdma-core's headers, which name the
// sections of §9.2 and §9.3.
var requests = []entry{
	{"REQ-ACKREQ", "The last packet of a request behind which there is none asks for an acknowledgement.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", mtu+8)
		t.reply().opcode(wire.RCWriteFirst)
		r := t.reply().opcode(wire.RCWriteLast)
		equal(r, "AckReq", r.AckReq, true, "%v")
	}},
	{"REQ-DEST", "A request goes to the peer's queue pair number.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		r := t.reply().opcode(wire.RCWriteOnly)
		equal(r, "destination QP", r.DestQP, q.own, "%#x")
	}},
	{"REQ-PAD", "The pad count of a request fills its payload to a multiple of four bytes.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 9)
		r := t.reply().opcode(wire.RCWriteOnly)
		equal(r, "pad", r.raw.Packet()[1]>>4&3, 3, "%d")
	}},
	{"REQ-SOLICITED", "The packet of a solicited SEND has the bit for it.", "IBTA Vol 1 §9.2", func(t *tester) {
		q := t.rc(patient)
		q.post("SEND", 8, func(s *control.Send) { s.Solicited = true })
		r := t.reply().opcode(wire.RCSendOnly)
		equal(r, "solicited", r.Solicited, true, "%v")
	}},
	{"REQ-WRITE-RETH", "The RETH of a WRITE has the address, the R_Key and the whole length of the request.", "IBTA Vol 1 §9.3.3",
		func(t *tester) {
			q := t.rc(patient)
			q.post("RDMA_WRITE", mtu+8)
			t.reply().opcode(wire.RCWriteFirst).reth(theirAddr, mtu+8)
		}},
	{"REQ-READ-RETH", "The RETH of a READ has the address, the R_Key and the length of the request.", "IBTA Vol 1 §9.3.3", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_READ", 2*mtu+8)
		t.reply().opcode(wire.RCReadRequest).reth(theirAddr, 2*mtu+8)
	}},
	{"REQ-SWAP-ETH", "The AtomicETH of CMP_SWAP has the address, the R_Key, the swap and the compare data.", "IBTA Vol 1 §9.3.5",
		func(t *tester) {
			q := t.rc(patient)
			q.post("CMP_SWAP", 8, func(s *control.Send) { s.CompareAdd, s.Swap = 0x1111222233334444, 0x5555666677778888 })
			r := t.reply().opcode(wire.RCCmpSwap).atomic()
			equal(r, "swap or add data", r.AtomicETH.Swap, 0x5555666677778888, "%#x")
			equal(r, "compare data", r.AtomicETH.Compare, 0x1111222233334444, "%#x")
		}},
	{"REQ-ADD-ETH", "The AtomicETH of FETCH_ADD has the address, the R_Key, and what is to be added in the place of the swap data.",
		"IBTA Vol 1 §9.3.5", func(t *tester) {
			q := t.rc(patient)
			q.post("FETCH_ADD", 8, func(s *control.Send) { s.CompareAdd = 0x1111222233334444 })
			r := t.reply().opcode(wire.RCFetchAdd).atomic()
			equal(r, "swap or add data", r.AtomicETH.Swap, 0x1111222233334444, "%#x")
		}},
	{"REQ-SEND-IMM", "The immediate data of a SEND are in its last packet.", "IBTA Vol 1 §9.3.6", func(t *tester) {
		q := t.rc(patient)
		q.post("SEND_WITH_IMM", mtu+8)
		t.reply().opcode(wire.RCSendFirst)
		r := t.reply().opcode(wire.RCSendLastImm)
		equal(r, "immediate data", r.Imm, theirImm, "%#x")
	}},
	{"REQ-WRITE-IMM", "The immediate data of a WRITE are behind the RETH of an only packet.", "IBTA Vol 1 §9.3.6", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE_WITH_IMM", 8)
		r := t.reply().opcode(wire.RCWriteOnlyImm)
		equal(r, "immediate data of a WRITE", r.Imm, theirImm, "%#x")
	}},
	{"REQ-FENCE", "A fenced request waits until READs before it are complete.", "ibv_post_send(3)", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_READ", 8)
		q.post("RDMA_WRITE", 8, func(s *control.Send) { s.Fence = true })
		t.reply().opcode(wire.RCReadRequest)
		t.others()
		t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3)))
		t.reply().opcode(wire.RCWriteOnly)
	}},
	{"REQ-MAX-READS", "No more READs are outstanding than max_rd_atomic.", "IBTA Vol 1 §9.4.4", func(t *tester) {
		q := t.rc(patient, func(s *settings) { s.MaxRD = 1 })
		q.post("RDMA_READ", 8)
		q.post("RDMA_READ", 8)
		t.reply().opcode(wire.RCReadRequest).psn(theirPSN)
		t.others()
		t.send(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3)))
		t.reply().opcode(wire.RCReadRequest).psn(theirPSN + 1)
	}},
}

// reth checks a RETH.
func (r *reply) reth(addr uint64, length uint32) {
	equal(r, "address", r.RETH.Addr, addr, "%#x")
	equal(r, "R_Key", r.RETH.RKey, theirKey, "%#x")
	equal(r, "length", r.RETH.Length, length, "%d")
}

// atomic checks the address and R_Key of an atomic request.
func (r *reply) atomic() *reply {
	// The AtomicETH has the address and the R_Key where the RETH has them.
	equal(r, "address", r.AtomicETH.Addr, theirAddr, "%#x")
	equal(r, "R_Key", r.AtomicETH.RKey, theirKey, "%#x")
	return r
}

// retries has the cases of a requester without an answer or with a NAK.
var retries = []entry{
	{"REQ-RETRY-EXHAUSTED", "A request that is never answered completes with a retry error.", "IBTA Vol 1 §9.7.6.1.3, C9-140",
		func(t *tester) {
			q := t.rc()
			q.post("RDMA_WRITE", 8)
			t.reply().opcode(wire.RCWriteOnly)
			is(t, "the completion's status", q.completion().Status, "RETRY_EXC_ERR")
		}},
	{"REQ-RETRY-COUNT", "A request is repeated at least retry_cnt times.", "IBTA Vol 1 §9.7.6.1.3", func(t *tester) {
		q := t.rc(func(s *settings) { s.Retry = 3 })
		q.post("RDMA_WRITE", 8)
		for range 4 {
			t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
		}
	}},
	{"REQ-RETRY-END", "A requester that has given a request up sends nothing more.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := t.rc()
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		is(t, "the completion's status", q.completion().Status, "RETRY_EXC_ERR")
		t.sync(func(*reply) {}) // retransmissions
		q.post("RDMA_WRITE", 8)
		t.silent()
	}},
	{"REQ-RNR-WAIT", "A SEND that is answered with an RNR NAK is not repeated before its timer has run out.", "IBTA Vol 1 §9.7.5.2.8",
		func(t *tester) {
			const timer = 26 // 81.92 ms
			q := t.rc(patient)
			q.post("SEND", 8)
			t.reply().opcode(wire.RCSendOnly)
			asked := time.Now()
			t.send(q.answer(wire.RNRNak|timer, theirPSN, 0))
			t.reply().opcode(wire.RCSendOnly)
			is(t, "that the time has passed", time.Since(asked) >= wire.RNRTimer(timer), true)
		}},
	{"REQ-RNR-FOREVER", "With an rnr_retry of 7 a SEND is repeated however often it is answered with an RNR NAK.", suite.Observed,
		func(t *tester) {
			q := t.rc(patient, func(s *settings) { s.RNRRetry = 7 })
			q.post("SEND", 8)
			for range 9 {
				t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
				t.send(q.answer(wire.RNRNak|1, theirPSN, 0))
			}
			t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
		}},
	{"REQ-RNR-BEHIND", "What is behind a SEND that is answered with an RNR NAK is sent again behind it.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("SEND", 8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
		t.send(q.answer(wire.RNRNak|minRNR, theirPSN, 0))
		t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
		t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
	}},
	{"REQ-FLUSH", "Requests behind one that has failed are flushed.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		is(t, "the completions' statuses", q.completions(2), "REM_ACCESS_ERR WR_FLUSH_ERR")
	}},
	{"REQ-FLUSH-RECEIVE", "Receive requests of a queue pair whose request has failed are flushed.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := t.rc(patient)
		q.recv(9, 64, 8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		is(t, "the completions' statuses", q.completions(2), "REM_ACCESS_ERR WR_FLUSH_ERR")
	}},
	{"REQ-FLUSH-LATE", "A request that is posted in the error state is flushed.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		is(t, "the completion's status", q.completion().Status, "REM_ACCESS_ERR")
		q.post("RDMA_WRITE", 8)
		is(t, "the status behind it", q.completion().Status, "WR_FLUSH_ERR")
	}},
	{"REQ-FLUSH-SILENT", "A request behind one that was refused is not sent again.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.NakInvalidRequest, theirPSN, 0))
		t.silent()
	}},
	{"REQ-NAK-UNSENT", "A NAK of a PSN that was not sent changes nothing.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN+7, 1))
		t.others()
		q.none()
		q.state("RTS")
	}},
	{"REQ-NAK-OLD", "A NAK of a request that is complete changes nothing.", suite.Observed, func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		is(t, "the completion's status", q.completion().Status, "SUCCESS")
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 1))
		t.others()
		q.none()
		q.state("RTS")
	}},
	{"REQ-ACK-COALESCED", "An acknowledgement completes the requests before the one that it names, too.", "IBTA Vol 1 §9.7.5.1.2",
		func(t *tester) {
			q := t.rc(patient)
			q.post("RDMA_WRITE", 8)
			q.post("RDMA_WRITE", 8)
			t.reply().opcode(wire.RCWriteOnly)
			t.reply().opcode(wire.RCWriteOnly)
			t.send(q.answer(wire.AckUnlimited, theirPSN+1, 2))
			is(t, "the completions' statuses", q.completions(2), "SUCCESS SUCCESS")
		}},
	{"REQ-ACK-PKEY", "An acknowledgement of another partition completes nothing.", "IBTA Vol 1 §9.6.1, §10.9", func(t *tester) {
		q := t.rc(patient)
		q.post("RDMA_WRITE", 8)
		t.reply().opcode(wire.RCWriteOnly)
		p := q.answer(wire.AckUnlimited, theirPSN, 1)
		p.PKey = 0x8765
		t.send(p)
		t.others()
		q.none()
	}},
}
