package rocetransport_test

// The requester's handling of work requests and of answers.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// first is the engine's first PSN in tests that need no other: packets up to PSN 1024 request no
// acknowledgement.
const first = 1000

func TestPacketsOfOperations(t *testing.T) {
	const signaled, solicited, inline = verbs.SendSignaled, verbs.SendSolicited, verbs.SendInline
	for _, c := range []struct {
		op    verbs.WROpcode
		n     int
		flags verbs.SendFlags
		want  []string
	}{
		{verbs.Send, 0, signaled, []string{"SEND Only 0 len 0 ackreq"}},
		{verbs.Send, 1, signaled, []string{"SEND Only 0 len 1 ackreq"}},
		{verbs.Send, 5, 0, []string{"SEND Only 0 len 5 ackreq"}},
		{verbs.Send, 6, solicited, []string{"SEND Only 0 len 6 se ackreq"}},
		{verbs.Send, 7, inline, []string{"SEND Only 0 len 7 ackreq"}},
		{verbs.Send, 0, inline, []string{"SEND Only 0 len 0 ackreq"}},
		{verbs.Send, 512, inline, []string{"SEND Only 0 len 512 ackreq"}},
		{verbs.Send, 1024, signaled, []string{"SEND Only 0 len 1024 ackreq"}},
		{verbs.Send, 1025, solicited, []string{"SEND First 0 len 1024", "SEND Last 1 len 1 se ackreq"}},
		{verbs.Send, 3072, signaled, []string{"SEND First 0 len 1024", "SEND Middle 1 len 1024", "SEND Last 2 len 1024 ackreq"}},
		{verbs.SendWithImm, 3, signaled, []string{"SEND Only with Immediate 0 len 3 imm 99 ackreq"}},
		{verbs.SendWithImm, 2047, solicited,
			[]string{"SEND First 0 len 1024", "SEND Last with Immediate 1 len 1023 imm 99 se ackreq"}},
		{verbs.RDMAWrite, 0, signaled, []string{"WRITE Only 0 len 0 at 0+0 ackreq"}},
		// It completes no receive request.
		{verbs.RDMAWrite, 9, solicited, []string{"WRITE Only 0 len 9 at 0+9 ackreq"}},
		{verbs.RDMAWrite, 9, inline, []string{"WRITE Only 0 len 9 at 0+9 ackreq"}},
		{verbs.RDMAWrite, 2500, signaled,
			[]string{"WRITE First 0 len 1024 at 0+2500", "WRITE Middle 1 len 1024", "WRITE Last 2 len 452 ackreq"}},
		{verbs.RDMAWriteWithImm, 0, solicited, []string{"WRITE Only with Immediate 0 len 0 at 0+0 imm 99 se ackreq"}},
		{verbs.RDMAWriteWithImm, 1025, solicited,
			[]string{"WRITE First 0 len 1024 at 0+1025", "WRITE Last with Immediate 1 len 1 imm 99 se ackreq"}},
		{verbs.RDMARead, 0, signaled, []string{"READ Request 0 at 0+0 ackreq"}},
		{verbs.RDMARead, 3000, signaled, []string{"READ Request 0 at 0+3000 ackreq"}},
		{verbs.AtomicFetchAndAdd, 8, signaled, []string{"FetchAdd 0 at 0 swap 11 compare 0 ackreq"}},
		{verbs.AtomicCmpAndSwp, 8, signaled, []string{"CmpSwap 0 at 0 swap 22 compare 11 ackreq"}},
	} {
		for _, v6 := range []bool{false, true} {
			run(t, fmt.Sprintf("%v of %d, %v, IPv6 %v", c.op, c.n, c.flags, v6), config{sqPSN: first, v6: v6},
				func(t *testing.T, r *rig) {
					wr := r.wr(1, c.op, c.n)
					wr.Flags, wr.ImmData, wr.CompareAdd, wr.Swap = c.flags, 99, 11, 22
					r.post(wr)
					sent := r.expect(c.want...)
					if sent[0].Opcode.Info().HasPayload() && !bytes.Equal(joined(sent), r.buf[:c.n]) {
						t.Error("the data are wrong")
					}
				})
		}
	}
}

// TestGather: 32 pieces, some of them empty, are sent and read into as one message.
func TestGather(t *testing.T) {
	bubble(t, config{sqPSN: first}, func(r *rig) {
		wr := r.wr(1, verbs.RDMAWrite, 0)
		wr.SGList = nil
		var want []byte
		for i := range 32 {
			n := i % 5 * 40
			wr.SGList = append(wr.SGList, r.mr.SGE(i*1000, n))
			want = append(want, r.buf[i*1000:i*1000+n]...)
		}
		wr.SGList[0].LKey, wr.SGList[5].LKey = 1, 0 // the key of an empty piece is ignored
		r.post(wr)
		if sent := r.take(); len(sent) != 3 || !bytes.Equal(joined(sent), want) {
			t.Errorf("%d packets", len(sent))
		}
		r.give(r.ack(2))
		wr.Opcode, wr.WRID = verbs.RDMARead, 2
		r.post(wr)
		data := fill(len(want), 77)
		r.give(r.data(wire.RCReadResponseFirst, 3, data[:1024]), r.data(wire.RCReadResponseMiddle, 4, data[1024:2048]),
			r.data(wire.RCReadResponseLast, 5, data[2048:]))
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0", fmt.Sprintf("2 SUCCESS RDMA_READ %d", len(want)))
		var got []byte
		for i := range 32 {
			got = append(got, r.buf[i*1000:i*1000+i%5*40]...)
		}
		if !bytes.Equal(got, data) {
			t.Error("the READ placed something else")
		}
	})
}

// TestPayloadReadWhenSent: the payload is read when it is sent, and inline data when posted.
func TestPayloadReadWhenSent(t *testing.T) {
	bubble(t, config{sqPSN: first, timeout: 10, retry: 7}, func(r *rig) {
		r.buf[0] = 1
		wr := r.wr(1, verbs.Send, 4)
		wr.Flags |= verbs.SendInline
		r.post(wr, r.wr(2, verbs.Send, 4))
		r.take()
		r.buf[0] = 2
		r.give(r.nak(wire.NakPSNSeq, 0))
		sent := r.expect("SEND Only 0 len 4 ackreq", "SEND Only 1 len 4 ackreq")
		if sent[0].Payload[0] != 1 || sent[1].Payload[0] != 2 {
			t.Errorf("sent again: %v, %v", sent[0].Payload, sent[1].Payload)
		}
	})
}

// TestWindow: packets in flight are bounded, one of them requests an acknowledgement, and that
// opens the window.
func TestWindow(t *testing.T) {
	for _, mtu := range []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096} {
		run(t, mtu.String(), config{mtu: mtu, sqPSN: 1<<24 - 300, size: 2 << 20}, func(t *testing.T, r *rig) {
			packets := (2<<20)/r.mtu() - 1
			r.post(r.wr(1, verbs.RDMAWrite, packets*r.mtu()))
			var data []byte
			sent, asked := 0, 0
			for acked := 0; acked < packets; {
				pkts := r.take()
				if len(pkts) == 0 && sent < packets {
					t.Fatalf("nothing is sent after an acknowledgement of %d", acked)
				}
				for i := range pkts {
					if d := wire.PSNDiff(pkts[i].PSN, r.c.sqPSN); d != int32(sent) {
						t.Fatalf("PSN %d is sent, want %d", d, sent)
					}
					if sent++; pkts[i].AckReq {
						asked = sent
					}
				}
				if asked <= acked {
					t.Fatal("the window ends without a request for an acknowledgement")
				}
				if n := sent - acked; n > 512 || n*r.mtu() > 512<<10 {
					t.Fatalf("%d packets in flight", n)
				}
				data = append(data, joined(pkts)...)
				acked += (sent-acked)/2 + 1
				r.give(r.ack(acked - 1))
			}
			if sent != packets || !bytes.Equal(data, r.buf[:packets*r.mtu()]) {
				t.Errorf("%d packets, want %d", sent, packets)
			}
			r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		})
	}
}

// TestWholeFrames: a long message is sent in frames as full as the link allows, even if the window
// opens by less.
func TestWholeFrames(t *testing.T) {
	const batch = 15
	bubble(t, config{mtu: verbs.MTU4096, batch: batch, size: 2 << 20}, func(r *rig) {
		const packets = 2 + 30*batch
		r.post(r.wr(1, verbs.RDMAWrite, packets*r.mtu()))
		var asked []int
		sent, acked := 0, 0
		for acked < packets {
			for _, p := range r.take() {
				if sent++; p.AckReq {
					asked = append(asked, sent)
				}
			}
			if (sent-2)%batch != 0 {
				t.Fatalf("it stops after packet %d, in the middle of a frame", sent)
			}
			if len(asked) == 0 {
				t.Fatalf("packet %d is the last before an acknowledgement, and no packet requests it", sent)
			}
			acked += min(7, asked[0]-acked) // of a peer that acknowledges more often than requested
			if acked == asked[0] {
				asked = asked[1:]
			}
			r.give(r.ack(acked - 1))
		}
		r.expect()
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
	})
}

// TestGibibyte: the largest message, of which only the beginning is sent.
func TestGibibyte(t *testing.T) {
	const gib = 1 << 30
	for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead} {
		run(t, fmt.Sprint(op), config{sqPSN: first, mtu: verbs.MTU4096, size: 1 << 20}, func(t *testing.T, r *rig) {
			wr := r.wr(1, op, 0)
			wr.SGList = nil
			for range 32 {
				wr.SGList = append(wr.SGList, verbs.SGE{Addr: r.mr.Addr(), Length: gib / 32, LKey: r.mr.LKey()})
			}
			r.post(wr)
			sent := r.take()
			if op == verbs.RDMAWrite {
				if got := r.brief(&sent[0]); got != "WRITE First 0 len 4096 at 0+1073741824" || len(sent) != 128 {
					t.Errorf("%d packets from %s on", len(sent), got)
				}
			} else if got := r.brief(&sent[0]); got != "READ Request 0 at 0+524288 ackreq" || len(sent) != 1 {
				t.Errorf("%d packets from %s on", len(sent), got)
			}
			wr.SGList[0].Length++
			if err := r.qp.PostSend(wr); err == nil {
				t.Error("one byte more is accepted")
			}
		})
	}
}

func TestAcknowledgementsCompleteInOrder(t *testing.T) {
	bubble(t, config{sqPSN: 0xffffff}, func(r *rig) {
		quiet := r.wr(2, verbs.Send, 8)
		quiet.Flags = 0
		r.post(r.wr(1, verbs.Send, 2000), quiet, r.wr(3, verbs.RDMAWrite, 0), r.wr(4, verbs.RDMAWriteWithImm, 1))
		r.take()
		r.give(r.ack(0)) // half of the first
		r.completions(r.scq)
		r.give(r.ack(3)) // all but the last
		r.completions(r.scq, "1 SUCCESS SEND 0", "3 SUCCESS RDMA_WRITE 0")
		r.give(r.ack(4), r.ack(4), r.ack(1))
		r.completions(r.scq, "4 SUCCESS RDMA_WRITE 0")
		if n := r.counter("rdma_sends"); n != 2 {
			t.Errorf("%d sends are counted", n)
		}
	})
	bubble(t, config{sigAll: true}, func(r *rig) {
		quiet := r.wr(2, verbs.Send, 8)
		quiet.Flags = 0
		r.post(quiet)
		r.give(r.ack(0))
		r.completions(r.scq, "2 SUCCESS SEND 0")
	})
}

// TestUnexpectedAnswers: answers to requests that were not sent, or were answered before, change
// nothing.
func TestUnexpectedAnswers(t *testing.T) {
	bubble(t, config{sqPSN: 5, retry: 7, rnr: 7}, func(r *rig) {
		data := fill(8, 1)
		ghosts := func() {
			t.Helper()
			was := bytes.Clone(r.buf)
			for _, psn := range []int{-1, -2, 1, 2, 100, 1 << 22, 1<<23 - 1, 1 << 23} {
				for _, p := range []wire.Packet{
					r.ack(psn), r.nak(wire.NakPSNSeq, psn), r.nak(wire.NakRemoteAccess, psn), r.nak(wire.RNRNak|1, psn),
					r.data(wire.RCReadResponseOnly, psn, data), r.data(wire.RCReadResponseMiddle, psn, data),
					r.atomicAck(psn, 1),
				} {
					r.give(p)
				}
			}
			r.expect()
			r.completions(r.scq)
			r.state(verbs.StateRTS)
			if !bytes.Equal(was, r.buf) {
				t.Error("memory has changed")
			}
		}
		r.give(r.ack(0))
		ghosts()
		r.post(r.wr(1, verbs.Send, 8))
		r.expect("SEND Only 0 len 8 ackreq")
		ghosts()
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0")
		r.c.sqPSN++
		ghosts()
		r.post(r.wr(2, verbs.RDMARead, 8))
		r.take()
		ghosts()
		r.give(r.data(wire.RCReadResponseOnly, 0, data))
		r.completions(r.scq, "2 SUCCESS RDMA_READ 8")
	})
}

// answer is the response to a READ whose request has the given PSN.
func (r *rig) answer(psn int, data []byte) []wire.Packet {
	var pkts []wire.Packet
	for part := range slices.Chunk(data, r.mtu()) {
		op := wire.RCReadResponseMiddle
		switch {
		case len(data) <= r.mtu():
			op = wire.RCReadResponseOnly
		case len(pkts) == 0:
			op = wire.RCReadResponseFirst
		case (len(pkts)+1)*r.mtu() >= len(data):
			op = wire.RCReadResponseLast
		}
		pkts = append(pkts, r.data(op, psn+len(pkts), part))
	}
	if pkts == nil {
		return []wire.Packet{r.data(wire.RCReadResponseOnly, psn, nil)}
	}
	return pkts
}

// TestReadsCoalesce: while READs are being answered, new ones are requested five eighths of a
// window at a time.
func TestReadsCoalesce(t *testing.T) {
	const packets, count = 64, 18
	for _, mtu := range []verbs.MTU{verbs.MTU256, verbs.MTU1024} {
		run(t, mtu.String(), config{mtu: mtu, batch: 15, maxWR: count, rd: count}, func(t *testing.T, r *rig) {
			n := packets * r.mtu()
			request := func(i int) string { return fmt.Sprintf("READ Request %d at 0+%d ackreq", i*packets, n) }
			var wrs []*verbs.SendWR
			for i := range uint64(count) {
				wrs = append(wrs, r.wr(i, verbs.RDMARead, n))
			}
			r.post(wrs...)
			var want []string
			for i := range 8 {
				want = append(want, request(i))
			}
			r.expect(want...)
			for i := range count {
				r.give(r.answer(i*packets, fill(n, byte(i)))...)
				r.completions(r.scq, fmt.Sprintf("%d SUCCESS RDMA_READ %d", i, n))
				if i == 4 || i == 9 {
					want = nil
					for j := range 5 {
						want = append(want, request(i+4+j))
					}
					r.expect(want...)
				}
				r.expect()
			}
		})
	}
}

// TestReadFillsFrames: a READ of more than a window is requested in pieces whose responses fill
// frames: two packets, frames of 15, and the last.
func TestReadFillsFrames(t *testing.T) {
	run(t, "", config{mtu: verbs.MTU4096, batch: 15, maxWR: 1, rd: 8, size: 1 << 20}, func(t *testing.T, r *rig) {
		const packets, first, second = 256, 123, 78 // of a window of 128, and of five eighths of it
		mtu := r.mtu()
		request := func(at, n int) string { return fmt.Sprintf("READ Request %d at %d+%d ackreq", at, at*mtu, n*mtu) }
		r.post(r.wr(1, verbs.RDMARead, packets*mtu))
		r.expect(request(0, first))
		answer := r.answer(0, make([]byte, first*mtu))
		r.give(answer[:74]...)
		r.expect()
		r.give(answer[74]) // five packets were free before
		r.expect(request(first, second))
		r.give(answer[75:]...)
		r.give(r.answer(first, make([]byte, second*mtu))...)
		r.expect(request(first+second, packets-first-second))
	})
}

// TestFirstPacketAlone: the first packet of a WRITE has its own frame if the others, which are
// shorter, then fill theirs.
func TestFirstPacketAlone(t *testing.T) {
	for _, c := range []struct {
		op                   verbs.WROpcode
		packets, batch, cuts int
	}{
		{verbs.RDMAWrite, 16, 15, 1}, {verbs.RDMAWrite, 31, 15, 1}, {verbs.RDMAWrite, 17, 15, 0}, {verbs.RDMAWrite, 15, 15, 0},
		{verbs.RDMAWrite, 1, 15, 0}, {verbs.RDMAWrite, 16, 1, 0}, {verbs.RDMAWriteWithImm, 16, 15, 0}, {verbs.Send, 16, 15, 0},
	} {
		run(t, fmt.Sprintf("%v of %d, %d a frame", c.op, c.packets, c.batch),
			config{mtu: verbs.MTU4096, batch: c.batch, size: 1 << 18}, func(t *testing.T, r *rig) {
				r.post(r.wr(1, c.op, c.packets*r.mtu()))
				if r.port.cuts != c.cuts {
					t.Errorf("%d frames were cut short, want %d", r.port.cuts, c.cuts)
				}
			})
	}
}

func TestRead(t *testing.T) {
	for _, n := range []int{0, 1, 1024, 1025, 3072, 5000} {
		run(t, fmt.Sprint(n), config{sqPSN: 0xfffffe}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.RDMARead, n), r.wr(2, verbs.Send, 8))
			packets := max(1, (n+1023)/1024)
			r.expect(fmt.Sprintf("READ Request 0 at 0+%d ackreq", n), fmt.Sprintf("SEND Only %d len 8 ackreq", packets))
			data := fill(n, 42)
			for _, p := range r.answer(0, data) {
				r.completions(r.scq)
				r.give(p)
			}
			r.completions(r.scq, fmt.Sprintf("1 SUCCESS RDMA_READ %d", n))
			if !bytes.Equal(r.buf[:n], data) {
				t.Error("the data are wrong")
			}
			r.give(r.ack(packets))
			r.completions(r.scq, "2 SUCCESS SEND 0")
			r.expect()
		})
	}
}

// TestResponseAcknowledgesEarlierRequests: IBTA Vol 1 §9.7.5.1.2.
func TestResponseAcknowledgesEarlierRequests(t *testing.T) {
	bubble(t, config{sqPSN: first}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 2000), r.wr(2, verbs.RDMARead, 8), r.wr(3, verbs.RDMAWrite, 8),
			r.wr(4, verbs.AtomicFetchAndAdd, 8))
		r.take()
		r.give(r.data(wire.RCReadResponseOnly, 2, fill(8, 1)))
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS RDMA_READ 8")
		r.give(r.atomicAck(4, 1234))
		r.completions(r.scq, "3 SUCCESS RDMA_WRITE 0", "4 SUCCESS FETCH_ADD 8")
		if v := binary.NativeEndian.Uint64(r.buf); v != 1234 {
			t.Errorf("the atomic brought %d", v)
		}
	})
}

// TestBadResponses end the connection with BAD_RESP_ERR.
func TestBadResponses(t *testing.T) {
	const bad = "1 BAD_RESP_ERR"
	for _, c := range []struct {
		name string
		op   verbs.WROpcode
		n    int
		give func(r *rig) wire.Packet
		want string
	}{
		{"READ response shorter than the READ", verbs.RDMARead, 100,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, fill(99, 1)) }, bad},
		{"READ response longer than the READ", verbs.RDMARead, 100,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, fill(101, 1)) }, bad},
		{"empty READ response", verbs.RDMARead, 100,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, nil) }, bad},
		{"short first READ response", verbs.RDMARead, 2000,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseFirst, 0, fill(1000, 1)) }, bad},
		{"READ response longer than the path MTU", verbs.RDMARead, 3000,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseFirst, 0, fill(2048, 1)) }, bad},
		{"data for a READ of nothing", verbs.RDMARead, 0,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, fill(4, 1)) }, bad},
		{"READ response with a NAK", verbs.RDMARead, 8,
			func(r *rig) wire.Packet { return r.resp(wire.RCReadResponseOnly, 0, wire.NakRemoteAccess, fill(8, 1)) }, bad},
		{"READ response to a SEND", verbs.Send, 8,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, fill(8, 1)) }, bad},
		{"READ response to an atomic", verbs.AtomicCmpAndSwp, 8,
			func(r *rig) wire.Packet { return r.data(wire.RCReadResponseOnly, 0, fill(8, 1)) }, bad},
		{"atomic response to a WRITE", verbs.RDMAWrite, 8, func(r *rig) wire.Packet { return r.atomicAck(0, 1) }, bad},
		{"atomic response to a READ", verbs.RDMARead, 8, func(r *rig) wire.Packet { return r.atomicAck(0, 1) }, bad},
		{"atomic response with an RNR NAK", verbs.AtomicFetchAndAdd, 8,
			func(r *rig) wire.Packet { return r.resp(wire.RCAtomicAck, 0, wire.RNRNak|1, nil) }, bad},
		{"acknowledgement of a reserved type", verbs.Send, 8,
			func(r *rig) wire.Packet { return r.resp(wire.RCAck, 0, 0x40, nil) }, bad},
		{"NAK of a reserved code", verbs.Send, 8,
			func(r *rig) wire.Packet { return r.nak(wire.NAK|9, 0) }, bad},
		{"NAK: invalid request", verbs.Send, 8,
			func(r *rig) wire.Packet { return r.nak(wire.NakInvalidRequest, 0) }, "1 REM_INV_REQ_ERR"},
		{"NAK: remote access", verbs.RDMAWrite, 8,
			func(r *rig) wire.Packet { return r.nak(wire.NakRemoteAccess, 0) }, "1 REM_ACCESS_ERR"},
		{"NAK: remote access, to a READ", verbs.RDMARead, 8,
			func(r *rig) wire.Packet { return r.nak(wire.NakRemoteAccess, 0) }, "1 REM_ACCESS_ERR"},
		{"NAK with the reserved bit", verbs.RDMAWrite, 8,
			func(r *rig) wire.Packet { return r.nak(0x80|wire.NakRemoteAccess, 0) }, "1 REM_ACCESS_ERR"},
		{"NAK: remote operation", verbs.AtomicFetchAndAdd, 8,
			func(r *rig) wire.Packet { return r.nak(wire.NakRemoteOperational, 0) }, "1 REM_OP_ERR"},
	} {
		run(t, c.name, config{sqPSN: first, retry: 7, rnr: 7}, func(t *testing.T, r *rig) {
			was := bytes.Clone(r.buf)
			wr := r.wr(1, c.op, c.n)
			wr.Flags = 0 // errors always complete
			r.post(wr, r.wr(2, verbs.Send, 8), r.wr(3, verbs.RDMARead, 8))
			r.recv(9, 0, 8)
			r.take()
			r.give(c.give(r))
			r.expect()
			r.state(verbs.StateErr)
			r.completions(r.scq, c.want, "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR")
			r.completions(r.rcq, "9 WR_FLUSH_ERR")
			if !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
			r.give(r.ack(0), r.ack(1))
			r.post(r.wr(4, verbs.Send, 8))
			r.completions(r.scq, "4 WR_FLUSH_ERR")
			r.expect()
		})
	}
}

// TestNAKFailsTheRequestItNames: earlier requests complete first.
func TestNAKFailsTheRequestItNames(t *testing.T) {
	bubble(t, config{sqPSN: first}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMAWrite, 3000), r.wr(3, verbs.RDMAWrite, 8))
		r.take()
		r.give(r.nak(wire.NakRemoteAccess, 2))
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 REM_ACCESS_ERR", "3 WR_FLUSH_ERR")
		r.state(verbs.StateErr)
	})
	for name, p := range map[string]func(r *rig) wire.Packet{
		"reserved type":            func(r *rig) wire.Packet { return r.resp(wire.RCAck, 1, 0x40, nil) },
		"READ response with a NAK": func(r *rig) wire.Packet { return r.resp(wire.RCReadResponseOnly, 1, wire.NAK, fill(8, 1)) },
	} {
		run(t, name, config{sqPSN: first}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMARead, 8))
			r.give(p(r))
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 BAD_RESP_ERR")
		})
	}
}

// TestFewAcknowledgements: of messages posted together only the last requests an acknowledgement,
// and one in each share of the window. Retransmitted messages each request one.
func TestFewAcknowledgements(t *testing.T) {
	bubble(t, config{sqPSN: first, timeout: 10, retry: 7, batch: 4, maxWR: 128}, func(r *rig) {
		var wrs []*verbs.SendWR
		for i := range 100 {
			wrs = append(wrs, r.wr(uint64(i), verbs.Send, 4096))
		}
		r.post(wrs...)
		var asked []int
		for i, p := range r.take() {
			if p.AckReq {
				asked = append(asked, i)
			}
		}
		if want := []int{127, 255, 383, 399}; !slices.Equal(asked, want) {
			t.Errorf("packets %v request an acknowledgement, want %v", asked, want)
		}
		sleep(10 * time.Millisecond)
		for i, p := range r.take() {
			if i%4 == 3 && !p.AckReq {
				t.Errorf("packet %d is the last of a message without an acknowledgement request", i)
			}
		}
	})
}

// TestLocalProtection: a request without access to its local memory fails. Earlier requests
// complete, later ones are flushed. Packets of it that were sent do not matter.
func TestLocalProtection(t *testing.T) {
	bad := func(r *rig, op verbs.WROpcode) *verbs.SendWR {
		wr := r.wr(2, op, 1500)
		wr.SGList = append(wr.SGList, verbs.SGE{Addr: r.mr.Addr(), Length: 1000, LKey: r.mr.LKey() + 1})
		return wr
	}
	bubble(t, config{sqPSN: first, timeout: 10, retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8), bad(r, verbs.RDMAWrite), r.wr(3, verbs.Send, 8))
		// There is no later request to ask.
		r.expect("SEND Only 0 len 8", "WRITE First 1 len 1024 at 0+2500", "SEND Only 0 len 8 ackreq")
		r.completions(r.scq)
		r.state(verbs.StateRTS)
		sleep(6e6) // retransmitted, except the lost ones
		r.expect("SEND Only 0 len 8 ackreq")
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
		r.state(verbs.StateErr)
		r.expect()
	})
	bubble(t, config{sqPSN: first}, func(r *rig) {
		r.post(bad(r, verbs.Send), r.wr(3, verbs.Send, 8))
		r.completions(r.scq, "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
	})
	// Nothing else would request the acknowledgement of earlier packets, and no timeout is set.
	bubble(t, config{sqPSN: first}, func(r *rig) {
		wr := r.wr(2, verbs.Send, 8)
		wr.SGList[0].LKey++
		r.post(r.wr(1, verbs.Send, 8), wr)
		r.expect("SEND Only 0 len 8", "SEND Only 0 len 8 ackreq")
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_PROT_ERR")
	})
	// A READ before it has requested it.
	bubble(t, config{sqPSN: first}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), bad(r, verbs.Send))
		r.expect("READ Request 0 at 0+8 ackreq", "SEND First 1 len 1024")
		r.give(r.data(wire.RCReadResponseOnly, 0, fill(8, 1)))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 LOC_PROT_ERR")
	})
	// The result of a READ or an atomic has no destination.
	for _, op := range []verbs.WROpcode{verbs.RDMARead, verbs.AtomicFetchAndAdd} {
		run(t, fmt.Sprint(op), config{mrAccess: verbs.AccessRemoteRead}, func(t *testing.T, r *rig) {
			was := bytes.Clone(r.buf)
			r.post(r.wr(1, verbs.Send, 8), r.wr(2, op, 8), r.wr(3, verbs.Send, 8))
			p := r.data(wire.RCReadResponseOnly, 1, fill(8, 1))
			if op == verbs.AtomicFetchAndAdd {
				p = r.atomicAck(1, 1)
			}
			r.give(p)
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
			if !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
		})
	}
	// The region is deregistered in the middle of the message.
	bubble(t, config{sqPSN: first, size: 1 << 20}, func(r *rig) {
		mr := must(r.pd.RegMR(r.buf, 0))
		wr := r.wr(1, verbs.RDMAWrite, 0)
		wr.SGList = []verbs.SGE{mr.SGE(0, 1<<20)}
		r.post(wr)
		if n := len(r.take()); n != 512 {
			t.Fatalf("%d packets", n)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		r.give(r.ack(100))
		r.completions(r.scq, "1 LOC_PROT_ERR")
		r.expect()
	})
}

func TestMaxRDAtomic(t *testing.T) {
	bubble(t, config{sqPSN: first, rd: 2}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), r.wr(2, verbs.AtomicFetchAndAdd, 8), r.wr(3, verbs.RDMARead, 8),
			r.wr(4, verbs.Send, 8), r.wr(5, verbs.RDMARead, 8))
		r.expect("READ Request 0 at 0+8 ackreq", "FetchAdd 1 at 0 swap 0 compare 0 ackreq")
		r.give(r.data(wire.RCReadResponseOnly, 0, fill(8, 1)))
		r.expect("READ Request 2 at 0+8 ackreq", "SEND Only 3 len 8 ackreq")
		r.give(r.atomicAck(1, 1))
		r.expect("READ Request 4 at 0+8 ackreq")
		r.give(r.data(wire.RCReadResponseOnly, 2, fill(8, 1)), r.ack(3), r.data(wire.RCReadResponseOnly, 4, fill(8, 1)))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 SUCCESS FETCH_ADD 8", "3 SUCCESS RDMA_READ 8",
			"4 SUCCESS SEND 0", "5 SUCCESS RDMA_READ 8")
	})
	// With 0 there can be none: the request fails instead of waiting forever.
	for _, op := range []verbs.WROpcode{verbs.RDMARead, verbs.AtomicCmpAndSwp} {
		run(t, fmt.Sprint("0, ", op), config{sqPSN: first, rd: none}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.Send, 8), r.wr(2, op, 8), r.wr(3, verbs.Send, 8))
			r.expect("SEND Only 0 len 8 ackreq")
			r.give(r.ack(0))
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_QP_OP_ERR", "3 WR_FLUSH_ERR")
		})
	}
}

// TestFence: a fenced request starts after all earlier READs and atomics are complete.
func TestFence(t *testing.T) {
	for _, op := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead} {
		run(t, fmt.Sprint(op), config{sqPSN: first}, func(t *testing.T, r *rig) {
			fenced := r.wr(3, op, 0)
			fenced.Flags |= verbs.SendFence
			r.post(r.wr(1, verbs.RDMARead, 1500), r.wr(2, verbs.AtomicFetchAndAdd, 8), fenced, r.wr(4, verbs.Send, 8))
			r.expect("READ Request 0 at 0+1500 ackreq", "FetchAdd 2 at 0 swap 0 compare 0 ackreq")
			r.give(r.data(wire.RCReadResponseFirst, 0, fill(1024, 1)), r.data(wire.RCReadResponseLast, 1, fill(476, 1)))
			r.expect()
			r.give(r.atomicAck(2, 1))
			sent := r.take()
			if len(sent) != 2 || wire.PSNDiff(sent[0].PSN, first) != 3 || r.brief(&sent[1]) != "SEND Only 4 len 8 ackreq" {
				t.Errorf("after the fence: %v", sent)
			}
		})
	}
	// A fence does not wait for SENDs and WRITEs.
	bubble(t, config{sqPSN: first}, func(r *rig) {
		fenced := r.wr(2, verbs.Send, 8)
		fenced.Flags |= verbs.SendFence
		r.post(r.wr(1, verbs.RDMAWrite, 8), fenced)
		r.expect("WRITE Only 0 len 8 at 0+8 ackreq", "SEND Only 1 len 8 ackreq")
	})
}

// stopped checks that whenever sending stops, a packet in flight requests an acknowledgement.
type stopped struct {
	*rig
	lastAsk int // PSN after the last packet with a request
}

// see records the packets sent after everything before PSN acked is acknowledged.
func (s *stopped) see(acked int) {
	s.t.Helper()
	sent := s.take()
	if len(sent) == 0 {
		s.t.Errorf("nothing is sent after an acknowledgement of %d", acked)
	}
	for i := range sent {
		if sent[i].AckReq {
			s.lastAsk = int(wire.PSNDiff(sent[i].PSN, s.c.sqPSN)) + 1
		}
	}
	if s.lastAsk <= acked {
		s.t.Errorf("no packet sent after an acknowledgement of %d requests one", acked)
	}
}

// TestSmallWindowAsks checks the same if the window is smaller than a frame, or the requester has
// just gone back.
func TestSmallWindowAsks(t *testing.T) {
	small := config{goBackN: true, timeout: 14, retry: 7, batch: 60, size: 1 << 20}
	lose := func(r *rig, times int) { // shrinks the window
		r.take()
		for i := range times {
			time.Sleep(min(68*time.Millisecond<<min(i, 2), 251*time.Millisecond)) // the timeouts are longer from one to the next
			r.take()
		}
	}
	run(t, "gone back", small, func(t *testing.T, r *rig) {
		s := &stopped{rig: r}
		r.post(r.wr(1, verbs.RDMAWrite, 300*1024))
		lose(r, 6)
		r.give(r.ack(1))
		s.see(2)
		s.lastAsk = 0
		r.give(r.nak(wire.NakPSNSeq, 8))
		s.see(8)
	})
	for losses := 3; losses < 7; losses++ {
		for _, goBackN := range []bool{true, false} {
			c := small
			c.goBackN = goBackN
			run(t, fmt.Sprintf("less than a frame, %d losses, go back %v", losses, goBackN), c, func(t *testing.T, r *rig) {
				s := &stopped{rig: r}
				r.post(r.wr(1, verbs.RDMAWrite, 10*1024))
				lose(r, losses)
				r.give(r.ack(9))
				r.post(r.wr(2, verbs.RDMAWrite, 10*1024))
				s.see(10)
				r.post(r.wr(3, verbs.RDMAWrite, 200*1024))
				s.see(10)
				for s.lastAsk < 220 && !t.Failed() {
					r.give(r.ack(s.lastAsk - 1))
					s.see(s.lastAsk)
				}
			})
		}
	}
}
