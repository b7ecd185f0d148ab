package rocetransport_test

// The requester's handling of lost packets and of RNR NAKs. Time is virtual.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

func TestSequenceNAKGoesBack(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 1}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMAWrite, 3000), r.wr(3, verbs.Send, 8))
		r.take()
		again := []string{"WRITE Middle 2 len 1024", "WRITE Last 3 len 952 ackreq", "SEND Only 4 len 8 ackreq"}
		r.give(r.nak(wire.NakPSNSeq, 2))
		r.completions(r.scq, "1 SUCCESS SEND 0")
		r.expect(again...)
		// Many NAKs for one loss count once.
		r.give(r.nak(wire.NakPSNSeq, 2), r.nak(wire.NakPSNSeq, 2), r.nak(wire.NakPSNSeq, 2))
		r.expect()
		r.state(verbs.StateRTS)
		// After progress, the next loss is a new one.
		r.give(r.nak(wire.NakPSNSeq, 3))
		r.expect(again[1:]...)
		r.give(r.ack(4))
		r.completions(r.scq, "2 SUCCESS RDMA_WRITE 0", "3 SUCCESS SEND 0")
		if n := r.counter("rcvd_seq_err"); n != 5 {
			t.Errorf("%d sequence errors are counted", n)
		}
	})
	bubble(t, config{sqPSN: first, retry: 0}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(r.nak(wire.NakPSNSeq, 0))
		r.completions(r.scq, "1 RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
		r.expect()
	})
	// New requests follow the retransmission.
	bubble(t, config{sqPSN: first, retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		r.give(r.nak(wire.NakPSNSeq, 0))
		r.post(r.wr(2, verbs.Send, 8))
		r.expect("SEND Only 0 len 8 ackreq", "SEND Only 0 len 8 ackreq", "SEND Only 1 len 8 ackreq")
	})
}

// TestLateAcknowledgementAfterGoingBack: packets that the first transmission delivered are not sent
// a third time, and complete.
func TestLateAcknowledgementAfterGoingBack(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 7, timeout: 14, size: 1 << 20}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 400<<10), r.wr(2, verbs.Send, 8))
		if n := len(r.take()); n != 401 {
			t.Fatalf("%d packets", n)
		}
		r.give(r.nak(wire.NakPSNSeq, 10))
		back := len(r.take()) // fewer: the window shrinks
		if back == 0 || back >= 391 {
			t.Fatalf("%d packets again", back)
		}
		r.give(r.ack(319))
		if sent := r.take(); len(sent) == 0 || wire.PSNDiff(sent[0].PSN, first) != 320 {
			t.Fatalf("sent on from %v", sent)
		}
		r.give(r.nak(wire.NakPSNSeq, 330))
		r.take()
		r.give(r.ack(399))
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		r.take()
		r.give(r.nak(wire.NakPSNSeq, 400))
		r.expect("SEND Only 400 len 8 ackreq")
		r.give(r.ack(400))
		r.completions(r.scq, "2 SUCCESS SEND 0")
		sleep(time.Second)
		r.expect()
	})
}

// TestTimeout: when retry_cnt is exhausted, the request fails with RETRY_EXC_ERR. A timeout is
// between T and 4T (IBTA Vol 1 §9.7.6.1.3).
func TestTimeout(t *testing.T) {
	for _, c := range []struct{ timeout, retry uint8 }{{10, 0}, {10, 1}, {12, 3}, {14, 7}, {18, 2}} {
		run(t, fmt.Sprintf("%d, %d times", c.timeout, c.retry), config{sqPSN: first, timeout: c.timeout, retry: c.retry},
			func(t *testing.T, r *rig) {
				T := 4096 * time.Nanosecond << c.timeout
				var times []time.Time
				r.port.lost = func(p *wire.Packet) bool {
					if p.Opcode == wire.RCSendOnly {
						times = append(times, time.Now())
					}
					return false
				}
				r.recv(9, 0, 8)
				r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMARead, 8))
				var want []string
				for range 1 + c.retry {
					want = append(want, "SEND Only 0 len 8 ackreq", "READ Request 1 at 0+8 ackreq")
				}
				sleep(T*time.Duration(1+c.retry) - time.Microsecond)
				r.state(verbs.StateRTS)
				sleep(3*T*time.Duration(1+c.retry) + time.Microsecond)
				r.expect(want...)
				for i := range times[1:] {
					// A peer on a loaded machine may be late.
					least := max(T, min(T<<min(i, 2), 250*time.Millisecond))
					if d := times[i+1].Sub(times[i]); d < least || d > 4*T {
						t.Errorf("%v, the timeout is %v", d, T)
					}
				}
				r.state(verbs.StateErr)
				r.completions(r.scq, "1 RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
				r.completions(r.rcq, "9 WR_FLUSH_ERR")
				if n := r.counter("retry_exceeded_err"); n != 1 {
					t.Errorf("%d are counted", n)
				}
				sleep(100 * T)
				r.expect()
			})
	}
	run(t, "0 is none", config{sqPSN: first, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		r.take()
		sleep(24 * time.Hour)
		r.expect()
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0")
	})
	run(t, "progress restarts the count", config{sqPSN: first, timeout: 10, retry: 2}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 10<<10))
		for i := range 10 {
			r.take()
			sleep(9 * time.Millisecond) // two timeouts of 4.2 ms
			if len(r.take()) == 0 {
				t.Fatal("nothing is sent again")
			}
			r.give(r.ack(i))
		}
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
	})
	run(t, "counts from the retransmission", config{sqPSN: first, timeout: 10, retry: 2}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		sleep(4 * time.Millisecond)
		r.give(r.nak(wire.NakPSNSeq, 0))
		r.take()
		sleep(4 * time.Millisecond) // 8 ms after the first attempt, 4 after the second
		r.expect()
		sleep(time.Millisecond)
		r.expect("SEND Only 0 len 8 ackreq")
	})
	run(t, "acknowledgements put it off", config{sqPSN: first, timeout: 10, retry: 2}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 10<<10))
		r.take()
		for i := range 10 {
			sleep(4 * time.Millisecond)
			r.give(r.ack(i))
			r.expect()
		}
		sleep(time.Second)
		r.expect()
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
	})
}

// TestRNRWaits at least as long as the peer's code says, and not much longer.
func TestRNRWaits(t *testing.T) {
	for code, us := range []int{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
		5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520} {
		run(t, fmt.Sprint(code), config{sqPSN: first, timeout: 14, retry: 0, rnr: 1}, func(t *testing.T, r *rig) {
			wait := time.Duration(us) * time.Microsecond
			r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.Send, 8))
			r.take()
			r.give(r.nak(wire.RNRNak|uint8(code), 0))
			r.post(r.wr(3, verbs.Send, 8)) // waits, too
			sleep(wait - 1)
			r.expect()
			sleep(wait/10 + time.Microsecond)
			r.expect("SEND Only 0 len 8 ackreq", "SEND Only 1 len 8 ackreq", "SEND Only 2 len 8 ackreq")
			r.give(r.ack(2))
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS SEND 0")
		})
	}
}

func TestRNRRetries(t *testing.T) {
	for limit := range uint8(7) {
		run(t, fmt.Sprint(limit), config{sqPSN: first, rnr: limit}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.Send, 8))
			for range limit {
				r.take()
				r.give(r.nak(wire.RNRNak|1, 0))
				r.state(verbs.StateRTS)
				sleep(time.Millisecond)
				r.expect("SEND Only 0 len 8 ackreq", "SEND Only 1 len 8 ackreq")
			}
			r.give(r.nak(wire.RNRNak|1, 0))
			r.completions(r.scq, "1 RNR_RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
			r.state(verbs.StateErr)
			r.take()
			sleep(time.Second)
			r.expect()
			if n := r.counter("rcvd_rnr_err"); n != uint64(limit)+1 {
				t.Errorf("%d RNR NAKs are counted", n)
			}
			if n := r.counter("retry_rnr_exceeded_err"); n != 1 {
				t.Errorf("%d are counted", n)
			}
		})
	}
	run(t, "7 is unlimited", config{sqPSN: first, rnr: 7, timeout: 10, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		for range 1000 {
			r.expect("SEND Only 0 len 8 ackreq")
			r.give(r.nak(wire.RNRNak|1, 0), r.nak(wire.RNRNak|1, 0)) // the second is ignored
			sleep(time.Millisecond)
		}
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0")
	})
	run(t, "a second NAK while waiting does not count", config{sqPSN: first, rnr: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		r.take()
		r.give(r.nak(wire.RNRNak|20, 0))
		sleep(10 * time.Millisecond)
		// These do not extend or end the wait.
		r.give(r.nak(wire.RNRNak|20, 0), r.nak(wire.NakPSNSeq, 0))
		r.expect()
		sleep(time.Millisecond)
		r.expect("SEND Only 0 len 8 ackreq")
	})
	run(t, "progress restarts the count", config{sqPSN: first, rnr: 1}, func(t *testing.T, r *rig) {
		for i := range 5 {
			r.post(r.wr(uint64(i), verbs.Send, 8))
		}
		for i := range 5 {
			r.give(r.nak(wire.RNRNak|1, i))
			sleep(time.Millisecond)
			r.state(verbs.StateRTS)
		}
		r.give(r.ack(4))
		if n := len(poll(t, r.scq)); n != 5 {
			t.Errorf("%d completions", n)
		}
	})
	run(t, "shows that the peer is alive", config{sqPSN: first, rnr: 7, timeout: 10, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		for range 10 { // each time, one attempt is lost
			sleep(5 * time.Millisecond)
			r.state(verbs.StateRTS)
			r.give(r.nak(wire.RNRNak|1, 0))
			sleep(time.Millisecond)
		}
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0")
	})
	run(t, "acknowledges earlier packets", config{sqPSN: first, rnr: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 8), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(r.nak(wire.RNRNak|1, 1))
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		sleep(time.Millisecond)
		r.expect("SEND Only 1 len 8 ackreq")
	})
}

// TestImpliedNAK: a later answer shows that the response of a READ or atomic is lost (IBTA Vol 1
// §9.7.5.1.2).
func TestImpliedNAK(t *testing.T) {
	run(t, "acknowledgement past a READ", config{sqPSN: first, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMARead, 3000), r.wr(3, verbs.Send, 8))
		r.take()
		r.give(r.ack(4))
		r.completions(r.scq, "1 SUCCESS SEND 0")
		r.expect("READ Request 1 at 0+3000 ackreq", "SEND Only 4 len 8 ackreq")
		r.give(r.ack(4), r.nak(wire.NakPSNSeq, 4))
		r.expect()
		data := fill(3000, 3)
		r.give(r.data(wire.RCReadResponseFirst, 1, data[:1024]), r.data(wire.RCReadResponseMiddle, 2, data[1024:2048]))
		r.give(r.ack(4)) // the last response is lost
		r.expect("READ Request 3 at 2048+952 ackreq", "SEND Only 4 len 8 ackreq")
		r.give(r.data(wire.RCReadResponseLast, 3, data[2048:]), r.ack(4))
		r.completions(r.scq, "2 SUCCESS RDMA_READ 3000", "3 SUCCESS SEND 0")
		if !bytes.Equal(r.buf[:3000], data) {
			t.Error("the data are wrong")
		}
	})
	// Other packets in flight are useless, and harmless.
	run(t, "gap among READ responses", config{sqPSN: 0xfffffe, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 5000))
		r.take()
		data := fill(5000, 3)
		part := func(i int) []byte { return data[i*1024 : min(5000, (i+1)*1024)] }
		r.give(r.data(wire.RCReadResponseFirst, 0, part(0)), r.data(wire.RCReadResponseMiddle, 2, part(2)),
			r.data(wire.RCReadResponseMiddle, 3, part(3)), r.data(wire.RCReadResponseLast, 4, part(4)))
		r.expect("READ Request 1 at 1024+3976 ackreq")
		r.completions(r.scq)
		// Some responders begin a repetition with First, others continue with Middle.
		r.give(r.data(wire.RCReadResponseFirst, 1, part(1)), r.data(wire.RCReadResponseMiddle, 2, part(2)),
			r.data(wire.RCReadResponseMiddle, 3, part(3)), r.data(wire.RCReadResponseLast, 4, part(4)))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 5000")
		if !bytes.Equal(r.buf[:5000], data) {
			t.Error("the data are wrong")
		}
	})
	run(t, "response to a later READ", config{sqPSN: first, retry: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), r.wr(2, verbs.RDMARead, 8))
		r.take()
		r.give(r.data(wire.RCReadResponseOnly, 1, fill(8, 1)))
		r.expect("READ Request 0 at 0+8 ackreq", "READ Request 1 at 0+8 ackreq")
		r.give(r.data(wire.RCReadResponseOnly, 0, fill(8, 1)), r.data(wire.RCReadResponseOnly, 1, fill(8, 1)))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 SUCCESS RDMA_READ 8")
	})
	for name, p := range map[string]func(r *rig) wire.Packet{
		"acknowledgement": func(r *rig) wire.Packet { return r.ack(1) },
		"sequence NAK":    func(r *rig) wire.Packet { return r.nak(wire.NakPSNSeq, 1) },
	} {
		run(t, name+" past an atomic", config{sqPSN: first, retry: 1, rnr: 1}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.AtomicFetchAndAdd, 8), r.wr(2, verbs.Send, 8))
			r.take()
			r.give(p(r))
			r.completions(r.scq)
			r.expect("FetchAdd 0 at 0 swap 0 compare 0 ackreq", "SEND Only 1 len 8 ackreq")
			r.give(r.atomicAck(0, 7), r.ack(1))
			r.completions(r.scq, "1 SUCCESS FETCH_ADD 8", "2 SUCCESS SEND 0")
			if v := binary.NativeEndian.Uint64(r.buf); v != 7 {
				t.Errorf("the atomic brought %d", v)
			}
		})
	}
	// The peer is not ready for the SEND, but the atomic must be retransmitted.
	run(t, "RNR NAK past an atomic", config{sqPSN: first, retry: 1, rnr: 1}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.AtomicFetchAndAdd, 8), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(r.nak(wire.RNRNak|20, 1)) // 10.24 ms
		r.expect("FetchAdd 0 at 0 swap 0 compare 0 ackreq")
		r.give(r.atomicAck(0, 7))
		r.completions(r.scq, "1 SUCCESS FETCH_ADD 8")
		sleep(10 * time.Millisecond)
		r.expect()
		sleep(time.Millisecond)
		r.expect("SEND Only 1 len 8 ackreq")
		r.give(r.nak(wire.RNRNak|20, 1))
		sleep(11 * time.Millisecond)
		r.expect("SEND Only 1 len 8 ackreq")
		r.give(r.nak(wire.RNRNak|20, 1))
		r.completions(r.scq, "2 RNR_RETRY_EXC_ERR")
	})
}

// TestRefusedBehindAMissingAnswer: a NAK that ends the connection counts even if an earlier answer
// is lost. The peer will not send that answer any more, so its request is flushed. The refused
// request completes with the NAK's status.
func TestRefusedBehindAMissingAnswer(t *testing.T) {
	for nak, status := range map[uint8]string{
		wire.NakInvalidRequest: "REM_INV_REQ_ERR", wire.NakRemoteAccess: "REM_ACCESS_ERR", wire.NakRemoteOperational: "REM_OP_ERR",
		wire.NAK | 9: "BAD_RESP_ERR",
	} {
		for _, marks := range []bool{false, true} {
			run(t, fmt.Sprint(status, " marked ", marks), config{sqPSN: first, retry: 7, rnr: 7, timeout: 14}, func(t *testing.T, r *rig) {
				r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.RDMARead, 3000), r.wr(3, verbs.RDMAWrite, 8), r.wr(4, verbs.RDMAWrite, 8),
					r.wr(5, verbs.Send, 8))
				r.take()
				p := r.nak(nak, 5) // of WRITE 4
				if marks {
					p = marked(p)[0]
				}
				r.give(p)
				r.completions(r.scq, "1 SUCCESS SEND 0", "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR", "4 "+status, "5 WR_FLUSH_ERR")
				r.state(verbs.StateErr)
				r.expect()
			})
		}
	}
	run(t, "while the peer is not ready", config{sqPSN: first, retry: 7, rnr: 7}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), r.wr(2, verbs.Send, 8))
		r.give(r.nak(wire.RNRNak|20, 1), r.nak(wire.NakRemoteAccess, 0))
		r.completions(r.scq, "1 REM_ACCESS_ERR", "2 WR_FLUSH_ERR")
	})
}

// TestLossShrinksTheWindow: after each loss fewer packets are in flight.
func TestLossShrinksTheWindow(t *testing.T) {
	const whole = 512 // packets
	c := config{sqPSN: first, retry: 7, timeout: 14, size: 1 << 20}
	inFlight := func(t *testing.T, r *rig, want int) {
		t.Helper()
		if n := len(r.take()); n != want {
			t.Fatalf("%d packets are sent, want %d", n, want)
		}
	}
	run(t, "going back", c, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 1<<20))
		inFlight(t, r, whole)
		r.give(r.nak(wire.NakPSNSeq, 0))
		inFlight(t, r, whole/2)
		sleep(68 * time.Millisecond) // the timeout is 67
		inFlight(t, r, whole/4)
	})
	// Each lost packet reduces the window by one.
	run(t, "selective", c, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 1<<20))
		inFlight(t, r, whole)
		var there []uint32
		for i := uint32(100); i <= 109; i++ {
			there = append(there, i)
		}
		r.give(r.sack(0, there...))
		inFlight(t, r, 10) // of the 100; the window is 412, and 402 are in flight
	})
}

// TestLossOfTheRepetition checks the loss of the retransmission after an RNR NAK. The peer's
// sequence NAK recovers it, even if the requester went back to the same PSN before.
func TestLossOfTheRepetition(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 7, rnr: 7}, func(r *rig) {
		both := []string{"SEND Only 0 len 8 ackreq", "SEND Only 1 len 8 ackreq"}
		r.post(r.wr(1, verbs.Send, 8), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(r.nak(wire.NakPSNSeq, 0))
		r.expect(both...)
		r.give(r.nak(wire.RNRNak|1, 0))
		sleep(time.Millisecond)
		r.expect(both...)
		r.give(r.nak(wire.NakPSNSeq, 0))
		r.expect(both...)
	})
}

// TestReadIsRepeatedWithItsBounds: a long READ is requested in pieces. Each is repeated with the
// same end, by which the peer recognizes a duplicate.
func TestReadIsRepeatedWithItsBounds(t *testing.T) {
	bubble(t, config{sqPSN: 1<<24 - 100, size: 1 << 20, retry: 7}, func(r *rig) {
		data := fill(600<<10, 5)
		give := func(from, to int) {
			for i := from; i < to; i++ {
				r.give(r.data(wire.RCReadResponseMiddle, i, data[i<<10:(i+1)<<10]))
			}
		}
		r.post(r.wr(1, verbs.RDMARead, 600<<10))
		r.expect("READ Request 0 at 0+524288 ackreq")
		var d []wire.Packet
		for i := range 88 {
			d = append(d, r.data(wire.RCReadResponseMiddle, i, data[i<<10:(i+1)<<10]))
		}
		r.giveFrame(d[:87]...)
		r.expect() // the window has room for all but one packet of the rest
		r.giveFrame(d[87])
		r.expect("READ Request 512 at 524288+90112 ackreq")
		r.give(r.data(wire.RCReadResponseMiddle, 89, data[:1024])) // 88 is lost
		r.expect("READ Request 88 at 90112+434176 ackreq")
		give(88, 300)
		if sent := r.take(); len(sent) == 0 || r.brief(&sent[0]) != "READ Request 512 at 524288+90112 ackreq" {
			t.Fatalf("requested: %v", sent)
		}
		give(300, 600)
		r.completions(r.scq, fmt.Sprintf("1 SUCCESS RDMA_READ %d", 600<<10))
		if !bytes.Equal(r.buf[:600<<10], data) {
			t.Error("the data are wrong")
		}
		r.take()
	})
}

// TestLateTimer: the first timeout that is noticed late does not count as a loss. The
// acknowledgement may have arrived, and not been processed.
func TestLateTimer(t *testing.T) {
	const timeout = 4096 * time.Nanosecond << 12
	bubble(t, config{sqPSN: first, timeout: 12, retry: 7}, func(r *rig) {
		writes := 0
		r.port.lost = func(p *wire.Packet) bool { // the other QP blocks the timers' goroutine
			if p.Opcode == wire.RCWriteOnly {
				if writes++; writes == 2 {
					time.Sleep(timeout * 3 / 4)
				}
			}
			return false
		}
		slow := r.qp
		r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: r.scq, RecvCQ: r.rcq,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}))
		r.connect()
		defer slow.Close()
		if err := slow.PostSend(r.wr(1, verbs.RDMAWrite, 4)); err != nil {
			t.Fatal(err)
		}
		r.post(r.wr(2, verbs.Send, 4))
		r.expect("WRITE Only 0 len 4 at 0+4 ackreq", "SEND Only 0 len 4 ackreq")
		sleep(timeout * 15 / 8)
		r.expect("WRITE Only 0 len 4 at 0+4 ackreq")
		sleep(2 * timeout) // the second timeout of the WRITE is twice as long
		r.expect("SEND Only 0 len 4 ackreq", "WRITE Only 0 len 4 at 0+4 ackreq")
	})
}
