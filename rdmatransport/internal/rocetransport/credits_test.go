package rocetransport_test

// End-to-end flow control of a requester whose peer reports its receive requests.

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// credit returns an acknowledgement with a credit count code.
func (r *rig) credit(psn int, msn uint32, code uint8) wire.Packet {
	p := r.resp(wire.RCAck, psn, code, nil)
	p.AETH.MSN = msn
	return p
}

func TestCredits(t *testing.T) {
	c := config{sqPSN: first, retry: 7, rnr: 7, timeout: 14, maxWR: 128}
	sends := func(r *rig, n int) {
		var wrs []*verbs.SendWR
		for i := range n {
			wrs = append(wrs, r.wr(uint64(i), verbs.Send, 8))
		}
		r.post(wrs...)
	}
	run(t, "no credits", c, func(t *testing.T, r *rig) {
		for i := range 3 {
			sends(r, 2)
			if n := len(r.take()); n != 2 {
				t.Fatalf("%d SENDs", n)
			}
			r.give(r.ack(2*i + 1)) // its MSN is 0
		}
	})
	run(t, "one beyond the limit", c, func(t *testing.T, r *rig) {
		sends(r, 1)
		r.take()
		r.give(r.credit(0, 1, 1))
		sends(r, 6)
		r.expect("SEND Only 1 len 8", "SEND Only 2 len 8 ackreq")
		r.give(r.credit(1, 2, 0)) // nothing new
		r.expect()
		r.give(r.credit(2, 3, 0))
		r.expect("SEND Only 3 len 8 ackreq")
		r.give(r.credit(2, 3, 2)) // not requested
		r.expect("SEND Only 4 len 8", "SEND Only 5 len 8 ackreq")
		r.give(r.credit(3, 4, 4)) // a limit of 8
		r.expect("SEND Only 6 len 8 ackreq")
		r.give(r.credit(4, 5, 0)) // an older one
		sends(r, 3)
		r.expect("SEND Only 7 len 8", "SEND Only 8 len 8 ackreq")
		r.give(r.ack(5)) // no more credits
		r.expect("SEND Only 9 len 8 ackreq")
		sends(r, 2)
		r.expect("SEND Only 10 len 8", "SEND Only 11 len 8 ackreq")
	})
	run(t, "operations without a receive request", c, func(t *testing.T, r *rig) {
		sends(r, 1)
		r.take()
		r.give(r.credit(0, 1, 0))
		r.post(r.wr(1, verbs.RDMAWrite, 8), r.wr(2, verbs.RDMARead, 8), r.wr(3, verbs.AtomicFetchAndAdd, 8),
			r.wr(4, verbs.RDMAWriteWithImm, 3000), r.wr(5, verbs.RDMAWrite, 8), r.wr(6, verbs.SendWithImm, 8))
		r.expect("WRITE Only 1 len 8 at 0+8 ackreq", "READ Request 2 at 0+8 ackreq", "FetchAdd 3 at 0 swap 0 compare 0 ackreq",
			"WRITE First 4 len 1024 at 0+3000", "WRITE Middle 5 len 1024", "WRITE Last with Immediate 6 len 952 imm 0",
			"WRITE Only 7 len 8 at 0+8 ackreq")
	})
	run(t, "a long one", c, func(t *testing.T, r *rig) {
		sends(r, 1)
		r.take()
		r.give(r.credit(0, 1, 0))
		r.post(r.wr(1, verbs.Send, 3000))
		r.expect("SEND First 1 len 1024 ackreq")
		r.give(r.nak(wire.RNRNak|20, 1))
		r.expect()
		sleep(11 * time.Millisecond)
		r.expect("SEND First 1 len 1024 ackreq")
		r.give(r.credit(1, 1, 0))
		r.expect("SEND Middle 2 len 1024", "SEND Last 3 len 952 ackreq")
		r.give(r.credit(3, 2, 1))
		r.post(r.wr(2, verbs.Send, 3000))
		r.expect("SEND First 4 len 1024", "SEND Middle 5 len 1024", "SEND Last 6 len 952 ackreq")
	})
	run(t, "a long one is retransmitted", c, func(t *testing.T, r *rig) {
		sends(r, 1)
		r.take()
		r.give(r.credit(0, 1, 1))
		r.post(r.wr(1, verbs.Send, 3000), r.wr(2, verbs.Send, 8))
		all := []string{"SEND First 1 len 1024", "SEND Middle 2 len 1024", "SEND Last 3 len 952", "SEND Only 4 len 8 ackreq"}
		r.expect(all...)
		r.give(r.nak(wire.NakPSNSeq, 1))
		all[2] += " ackreq"
		r.expect(all...)
	})
	// Invalid credits of a peer only affect the use of its own receive queue.
	run(t, "invalid counts", c, func(t *testing.T, r *rig) {
		sends(r, 1)
		r.take()
		r.give(r.credit(0, 0x900000, 0))
		sends(r, 3)
		for i := range 3 {
			r.expect([]string{"SEND Only 1 len 8 ackreq", "SEND Only 2 len 8 ackreq", "SEND Only 3 len 8 ackreq"}[i])
			r.give(r.credit(1+i, 0x900000, 0))
		}
	})
	// The last packet sent left the acknowledgement request to the next one, for which the window
	// has no room.
	run(t, "credits arrive too late", c, func(t *testing.T, r *rig) {
		r.post(r.wr(0, verbs.RDMAWrite, 7*1024))
		for i := range 6 { // the window becomes 8 packets
			r.give(r.nak(wire.NakPSNSeq, 1+i))
		}
		r.give(r.ack(6))
		r.take()
		sends(r, 40)
		sent := r.take()
		if last := sent[len(sent)-1]; last.AckReq || r.brief(&last) != "SEND Only 15 len 8" {
			t.Fatalf("%s is last", r.brief(&last))
		}
		r.give(r.credit(8, 3, 0))
		r.expect("SEND Only 16 len 8 ackreq")
		r.give(r.credit(14, 9, 0))
		r.expect()
		r.give(r.credit(16, 11, 2))
		r.expect("SEND Only 17 len 8", "SEND Only 18 len 8", "SEND Only 19 len 8 ackreq")
	})
}
