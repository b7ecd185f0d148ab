package send

import (
	"testing"
	"time"
)

// TestProbeAfterEarlyLosses: a peer that goes back is probed as soon as it has answered any new
// packet, also if each packet that requests an answer is sent again before it is answered. Without
// probes, each loss at the end of what is in flight would take the whole timeout.
func TestProbeAfterEarlyLosses(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(r *requester)
	}{
		{"a packet before the lost one", func(r *requester) {
			r.expect("0.0@0+1 0.2@2+3 0.6@6+3 0.10@10+3 0.14@14+3 0.18@18+1!", InOrder)
			r.OnSequenceNAK(3)
		}},
		{"a new packet after those that are sent again", func(r *requester) {
			var b Burst
			for range 7 {
				r.Next(Paced, &b)
				r.Sent(&b)
			}
			r.OnSequenceNAK(0)
			r.expect("0.0@0+1 0.2@2+3 0.6@6+3 0.10@10+3 0.14@14+3 0.18@18+1!", GoneBack)
			if r.now += time.Millisecond; r.Deadline() < r.now+minTimeout {
				t.Error("a probe before any answer")
			}
			r.OnSequenceNAK(8)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequester(t)
			r.post(Write, 20)
			c.lose(r)
			r.send()
			sent := r.now
			if o := r.pass(); o.Action != Probed || r.now != sent+backProbeWait {
				t.Errorf("action %d after %v", o.Action, r.now-sent)
			}
		})
	}
}
