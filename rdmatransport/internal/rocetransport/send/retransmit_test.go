package send

import (
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
)

// TestRetransmit: the state that is and is not forgotten in a retransmission.
func TestRetransmit(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *requester)
	}{
		{"a NAK comes before the probe is sent", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Write, 4)
			r.send()
			r.pass()
			r.OnSequenceNAK(1)
			r.expect("0.0@1+1 0.2@3+1!", GoneBack)
		}},
		{"an acknowledgement comes before the probe is sent", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Write, 4)
			r.send()
			r.pass()
			r.OnAck(2)
			r.expect("", InOrder)
		}},
		{"a probe waits twice as long as the one before", func(r *requester) {
			r.measure(2 * time.Millisecond)
			r.post(Write, 4)
			r.send()
			first := r.Deadline() - r.now
			r.pass()
			r.send()
			if second := r.Deadline() - r.now; second != 2*first {
				r.t.Errorf("%v, then %v", first, second)
			}
		}},
		{"probes count as no retries", func(r *requester) {
			r.measure(time.Millisecond)
			r.post(Write, 4)
			r.send()
			for range 2 {
				probes := 0
				o := r.pass()
				for ; o.Action == Probed; o = r.pass() {
					probes++
					r.send()
				}
				if probes == 0 || o.Action != WentBack {
					r.t.Fatalf("%d probes, then %+v", probes, o)
				}
				r.send()
			}
			for range maxProbes {
				if o := r.pass(); o.Action != Probed {
					if o.Action != RetriesExceeded {
						r.t.Errorf("%+v", o)
					}
					return
				}
				r.send()
			}
			r.t.Error("retries are not bounded")
		}},
		{"retransmitted packets have a timeout of their own", func(r *requester) {
			r.post(Write, 2)
			r.send()
			r.now += 60 * time.Millisecond
			r.OnSequenceNAK(0)
			r.send()
			if d := r.Deadline() - r.now; d != 100*time.Millisecond {
				r.t.Errorf("%v", d)
			}
		}},
		{"no timeout any more", func(r *requester) {
			r.post(Write, 2)
			r.send()
			r.SetLimits(Limits{})
			if r.SetAlarm(true); r.Deadline() != 0 {
				r.t.Error("an alarm is set")
			}
		}},
		{"the round trip of retransmitted packets is not measured, gone back", func(r *requester) {
			r.post(Write, 4)
			r.send()
			r.OnSequenceNAK(0)
			r.send()
			r.now += 50 * time.Millisecond
			if r.OnAck(4); r.rtt.measured() {
				r.t.Errorf("%v", r.rtt.smoothed.duration())
			}
		}},
		{"the round trip of retransmitted packets is not measured, selective", func(r *requester) {
			r.peer(true)
			r.post(Write, 12)
			r.send()
			r.OnSelectiveNAK(0, sacktest.Of(3, 4, 5))
			r.send()
			r.now += 50 * time.Millisecond
			if r.OnAck(12); r.rtt.measured() {
				r.t.Errorf("%v", r.rtt.smoothed.duration())
			}
		}},
		{"while a packet is missing, none is sent that the peer does not keep", func(r *requester) {
			const window = 16
			for _, span := range []uint32{window, 2 * window, 8 * window} {
				r.Begin(&Connection{MTU: 1024, Path: Path{Window: window, Span: span, Batch: 4, Congestion: Conservation{}}})
				r.peer(true)
				r.post(Write, 1000)
				r.send()
				var kept []uint32
				for max := uint32(0); max != r.flight.max; r.send() {
					for max = r.flight.max; len(kept)+1 < int(max); {
						kept = append(kept, uint32(len(kept)+1))
					}
					r.OnSelectiveNAK(0, sacktest.Of(kept...))
				}
				if r.flight.max != span {
					r.t.Errorf("span %d: %d packets are sent", span, r.flight.max)
				}
			}
		}},
		{"of a window of the largest size only lost packets are retransmitted", func(r *requester) {
			const window = MaxWindow / 1024
			r.Begin(&Connection{MTU: 1024, Path: pathOf(window, 64, Conservation{})})
			r.peer(true)
			r.post(Write, 1<<20)
			r.send()
			var kept []uint32
			for d := uint32(1); d < window; d++ {
				if d != 9000 {
					kept = append(kept, d)
				}
			}
			r.OnSelectiveNAK(0, sacktest.Of(kept...))
			r.DetectLosses()
			var again []uint32
			for b := (Burst{}); r.State.Next(0, &b) == Transmit && b.Repeats(); r.Sent(&b) {
				again = append(again, b.PSN)
			}
			if !equal(again, []uint32{0, 9000}) {
				r.t.Errorf("%v are retransmitted", again)
			}
		}},
		{"READs are retransmitted although the maximum is outstanding", func(r *requester) {
			r.post(Atomic, 1)
			r.post(Atomic, 1)
			r.expect("0.0@0! 1.0@1!", InOrder)
			r.OnSequenceNAK(0)
			r.expect("0.0@0! 1.0@1!", GoneBack)
		}},
		{"READs that are not retransmitted yet are outstanding in a recovery", func(r *requester) {
			r.peer(true)
			for range 3 {
				r.post(Atomic, 1)
			}
			r.expect("0.0@0! 1.0@1!", InOrder)
			r.until(WentBack)
			if _, _, _, ok := r.OnAnswer(1); !ok {
				r.t.Error("an answer is dropped")
			}
			r.OnAnswered(1)
			r.expect("0.0@0!", Selective)
			r.OnAnswer(0)
			r.OnAnswered(0)
			r.expect("0.0@2!", InOrder)
		}},
		{"a window that is full within a frame requests an acknowledgement again", func(r *requester) {
			r.Begin(&Connection{MTU: 1024, Path: pathOf(512, 64, Conservation{})})
			r.post(Write, 400)
			r.send()
			for psn := uint32(5); psn < 15; psn++ { // halves the window each time
				r.OnSequenceNAK(psn)
				if sent := r.send(); !strings.HasSuffix(sent, "!") {
					r.t.Errorf("window %d: %s", r.window.size, sent)
				}
			}
		}},
		{"nothing is awaited after half of all PSNs were read", func(r *requester) {
			r.post(Read, 1<<24-1)
			for n := 0; n <= 1<<23; {
				var b Burst
				if r.Next(0, &b) != Transmit {
					r.t.Fatalf("nothing is sent after %d", n)
				}
				n += int(b.Packets)
				r.Sent(&b)
				r.OnAnswered(b.PSN + b.Packets - 1)
			}
			if r.acks.awaited(r.flight.una) {
				r.t.Error("an acknowledgement is")
			}
		}},
		{"a selective NAK in an RNR wait", func(r *requester) {
			r.peer(true)
			r.post(Send, 1)
			r.post(Send, 1)
			r.send()
			r.OnRNR(0, 20*time.Millisecond)
			if _, counts := r.OnSelectiveNAK(0, sacktest.Of(1)); counts {
				r.t.Error("it counts")
			}
			r.expect("", RNRWait)
		}},
		{"an RNR NAK in a recovery", func(r *requester) {
			r.peer(true)
			r.post(Read, 1)
			r.post(Send, 1)
			r.send()
			r.OnRNR(1, time.Second)
			r.expect("", Selective) // the response may still be in flight
			r.OnAnswered(0)
			r.expect("", Selective)
			r.pass()
			r.expect("0.0@1!", Selective)
			r.OnAck(2)
			r.expect("", InOrder)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newRequester(t)) })
	}
}
