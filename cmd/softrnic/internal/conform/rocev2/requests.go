package rocev2

import (
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// requests has the cases of a requester's packets: their fields and when they are sent. The layout
// of the headers is public in Wireshark's dissector and in rdma-core's headers, which name the
// sections of §9.2 and §9.3.
var requests = []entry{
	{"REQ-ACKREQ", "The last packet of the last posted request asks for an acknowledgement.", suite.Observed, func(t *tester) {
		requesting(t, "RDMA_WRITE", mtu+8, wire.RCWriteFirst)
		r := t.reply().opcode(wire.RCWriteLast)
		equal(r, "AckReq", r.AckReq, true, "%v")
	}},
	{"REQ-DEST", "A request goes to the peer's queue pair number.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
		equal(r, "destination QP", r.DestQP, q.own, "%#x")
	}, patient)},
	{"REQ-PAD", "The pad count of a request fills its payload to a multiple of four bytes.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.request("RDMA_WRITE", 9, wire.RCWriteOnly)
		equal(r, "pad", r.raw.Packet()[1]>>4&3, 3, "%d")
	}, patient)},
	{"REQ-SOLICITED", "The packet of a solicited SEND has the solicited event bit.", "IBTA Vol 1 §9.2", onRC(func(q *qp) {
		r := q.request("SEND", 8, wire.RCSendOnly, func(s *control.Send) { s.Solicited = true })
		equal(r, "solicited", r.Solicited, true, "%v")
	}, patient)},
	{"REQ-WRITE-RETH", "The RETH of a WRITE has the address, the R_Key and the whole length of the request.", "IBTA Vol 1 §9.3.3",
		onRC(func(q *qp) {
			q.request("RDMA_WRITE", mtu+8, wire.RCWriteFirst).reth(theirAddr, mtu+8)
		}, patient)},
	{"REQ-READ-RETH", "The RETH of a READ has the address, the R_Key and the length of the request.", "IBTA Vol 1 §9.3.3", onRC(func(q *qp) {
		q.request("RDMA_READ", 2*mtu+8, wire.RCReadRequest).reth(theirAddr, 2*mtu+8)
	}, patient)},
	{"REQ-SWAP-ETH", "The AtomicETH of CMP_SWAP has the address, the R_Key, the swap and the compare data.", "IBTA Vol 1 §9.3.5",
		onRC(func(q *qp) {
			q.post("CMP_SWAP", 8, func(s *control.Send) { s.CompareAdd, s.Swap = 0x1111222233334444, 0x5555666677778888 })
			r := q.t.reply().opcode(wire.RCCmpSwap).atomic()
			equal(r, "swap or add data", r.AtomicETH.Swap, 0x5555666677778888, "%#x")
			equal(r, "compare data", r.AtomicETH.Compare, 0x1111222233334444, "%#x")
		}, patient)},
	{"REQ-ADD-ETH", "The AtomicETH of FETCH_ADD has the address, the R_Key, and the value to add in the place of the swap data.",
		"IBTA Vol 1 §9.3.5", onRC(func(q *qp) {
			r := q.request("FETCH_ADD", 8, wire.RCFetchAdd, func(s *control.Send) { s.CompareAdd = 0x1111222233334444 }).atomic()
			equal(r, "swap or add data", r.AtomicETH.Swap, 0x1111222233334444, "%#x")
		}, patient)},
	{"REQ-SEND-IMM", "The immediate data of a SEND are in its last packet.", "IBTA Vol 1 §9.3.6", func(t *tester) {
		requesting(t, "SEND_WITH_IMM", mtu+8, wire.RCSendFirst)
		r := t.reply().opcode(wire.RCSendLastImm)
		equal(r, "immediate data", r.Imm, theirImm, "%#x")
	}},
	{"REQ-WRITE-IMM", "The immediate data of a WRITE are after the RETH of an only packet.", "IBTA Vol 1 §9.3.6", onRC(func(q *qp) {
		r := q.request("RDMA_WRITE_WITH_IMM", 8, wire.RCWriteOnlyImm)
		equal(r, "immediate data of a WRITE", r.Imm, theirImm, "%#x")
	}, patient)},
	{"REQ-FENCE", "A fenced request waits until READs before it are complete.", "ibv_post_send(3)", onRC(func(q *qp) {
		q.post("RDMA_READ", 8)
		q.post("RDMA_WRITE", 8, func(s *control.Send) { s.Fence = true })
		q.t.reply().opcode(wire.RCReadRequest)
		q.t.others()
		q.t.ask(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3))).opcode(wire.RCWriteOnly)
	}, patient)},
	{"REQ-MAX-READS", "No more READs are outstanding than max_rd_atomic.", "IBTA Vol 1 §9.4.4", onRC(func(q *qp) {
		q.post("RDMA_READ", 8)
		q.post("RDMA_READ", 8)
		q.t.reply().opcode(wire.RCReadRequest).psn(theirPSN)
		q.t.others()
		q.t.ask(q.readResponse(wire.RCReadResponseOnly, theirPSN, pattern(8, 3))).opcode(wire.RCReadRequest).psn(theirPSN + 1)
	}, patient, func(s *settings) { s.MaxRD = 1 })},
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
		onRC(func(q *qp) {
			q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
			q.Completes("RETRY_EXC_ERR")
		})},
	{"REQ-RETRY-COUNT", "A request is repeated at least retry_cnt times.", "IBTA Vol 1 §9.7.6.1.3", onRC(func(q *qp) {
		q.post("RDMA_WRITE", 8)
		for range 4 {
			q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN)
		}
	}, func(s *settings) { s.Retry = 3 })},
	{"REQ-RETRY-END", "A requester that has given up a request sends nothing more.", "IBTA Vol 1 §10.3.1", onRC(func(q *qp) {
		q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
		q.Completes("RETRY_EXC_ERR")
		q.t.sync(func(*reply) {}) // retransmissions
		q.post("RDMA_WRITE", 8)
		q.t.silent()
	})},
	{"REQ-RNR-WAIT", "A SEND that is answered with an RNR NAK is not repeated before its timer has expired.", "IBTA Vol 1 §9.7.5.2.8",
		func(t *tester) {
			const timer = 26 // 81.92 ms
			q := requesting(t, "SEND", 8, wire.RCSendOnly)
			asked := time.Now()
			t.ask(q.answer(wire.RNRNak|timer, theirPSN, 0)).opcode(wire.RCSendOnly)
			is(t, "that the time has passed", time.Since(asked) >= wire.RNRTimer(timer), true)
		}},
	{"REQ-RNR-FOREVER", "With an rnr_retry of 7 a SEND is repeated however often it is answered with an RNR NAK.", suite.Observed,
		onRC(func(q *qp) {
			q.post("SEND", 8)
			for range 9 {
				q.t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
				q.t.send(q.answer(wire.RNRNak|1, theirPSN, 0))
			}
			q.t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
		}, patient, func(s *settings) { s.RNRRetry = 7 })},
	{"REQ-RNR-BEHIND", "Requests after a SEND that is answered with an RNR NAK are sent again after it.", suite.Observed, onRC(func(q *qp) {
		q.post("SEND", 8)
		q.post("RDMA_WRITE", 8)
		q.t.reply().opcode(wire.RCSendOnly).psn(theirPSN)
		q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
		q.t.ask(q.answer(wire.RNRNak|minRNR, theirPSN, 0)).opcode(wire.RCSendOnly).psn(theirPSN)
		q.t.reply().opcode(wire.RCWriteOnly).psn(theirPSN + 1)
	}, patient)},
	{"REQ-FLUSH", "Requests after one that has failed are flushed.", "IBTA Vol 1 §10.3.1", onRC(func(q *qp) {
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_WRITE", 8)
		q.t.reply().opcode(wire.RCWriteOnly)
		q.t.reply().opcode(wire.RCWriteOnly)
		q.t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		is(q.t, "the completions' statuses", q.completions(2), "REM_ACCESS_ERR WR_FLUSH_ERR")
	}, patient)},
	{"REQ-FLUSH-RECEIVE", "Receive requests of a queue pair whose request has failed are flushed.", "IBTA Vol 1 §10.3.1", onRC(func(q *qp) {
		q.Recv(9, 64, 8)
		q.request("RDMA_WRITE", 8, wire.RCWriteOnly)
		q.t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		is(q.t, "the completions' statuses", q.completions(2), "REM_ACCESS_ERR WR_FLUSH_ERR")
	}, patient)},
	{"REQ-FLUSH-LATE", "A request that is posted in the error state is flushed.", "IBTA Vol 1 §10.3.1", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 0))
		q.Completes("REM_ACCESS_ERR")
		q.post("RDMA_WRITE", 8)
		is(t, "the status after it", q.Completion().Status, "WR_FLUSH_ERR")
	}},
	{"REQ-FLUSH-SILENT", "A request after one that was refused is not sent again.", "IBTA Vol 1 §10.3.1", onRC(func(q *qp) {
		q.post("RDMA_WRITE", 8)
		q.post("RDMA_WRITE", 8)
		q.t.reply().opcode(wire.RCWriteOnly)
		q.t.reply().opcode(wire.RCWriteOnly)
		q.t.unanswered(q.answer(wire.NakInvalidRequest, theirPSN, 0))
	}, patient)},
	{"REQ-NAK-UNSENT", "A NAK of a PSN that was not sent changes nothing.", suite.Observed, func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(wire.NakRemoteAccess, theirPSN+7, 1))
		t.others()
		q.None()
		q.State("RTS")
	}},
	{"REQ-NAK-OLD", "A NAK of a request that is complete changes nothing.", suite.Observed, func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		t.send(q.answer(wire.AckUnlimited, theirPSN, 1))
		q.Completes("SUCCESS")
		t.send(q.answer(wire.NakRemoteAccess, theirPSN, 1))
		t.others()
		q.None()
		q.State("RTS")
	}},
	{"REQ-ACK-COALESCED", "An acknowledgement completes the requests before the one that it names, too.", "IBTA Vol 1 §9.7.5.1.2",
		onRC(func(q *qp) {
			q.post("RDMA_WRITE", 8)
			q.post("RDMA_WRITE", 8)
			q.t.reply().opcode(wire.RCWriteOnly)
			q.t.reply().opcode(wire.RCWriteOnly)
			q.t.send(q.answer(wire.AckUnlimited, theirPSN+1, 2))
			is(q.t, "the completions' statuses", q.completions(2), "SUCCESS SUCCESS")
		}, patient)},
	{"REQ-ACK-PKEY", "An acknowledgement of another partition completes nothing.", "IBTA Vol 1 §9.6.1, §10.9", func(t *tester) {
		q := requesting(t, "RDMA_WRITE", 8, wire.RCWriteOnly)
		p := q.answer(wire.AckUnlimited, theirPSN, 1)
		p.PKey = 0x8765
		t.send(p)
		t.others()
		q.None()
	}},
}
