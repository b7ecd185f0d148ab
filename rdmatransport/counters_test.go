package rdmatransport_test

import (
	"errors"
	"testing"
)

// TestCountersRise: no counter becomes less while QPs are closed, whose counters are then added to
// those of the device.
func TestCountersRise(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		const qps = 200
		a, b := udNodes(t, m, qps, 1)
		ah := a.ah(b.at(false))
		for i := range qps {
			a.send(i, ah, b.qps[0].Num(), "text")
		}
		if !eventually(func() bool { return must(a.dev.HWCounters())(t)["sent_pkts"] == qps }) {
			t.Fatalf("sent_pkts is %d, want %d", must(a.dev.HWCounters())(t)["sent_pkts"], qps)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			for _, qp := range a.qps {
				if err := errors.Join(qp.Close(), qp.SendCQ().Close()); err != nil {
					t.Error(err)
				}
			}
			a.qps = nil
		}()
		last := must(a.dev.HWCounters())(t)
		for ended := false; !ended; {
			select {
			case <-closed:
				ended = true
			default:
			}
			now := must(a.dev.HWCounters())(t)
			for name, v := range now {
				if v < last[name] {
					t.Errorf("%s was %d, and then %d", name, last[name], v)
				}
			}
			last = now
		}
		if last["sent_pkts"] != qps {
			t.Errorf("in the end sent_pkts is %d, want %d", last["sent_pkts"], qps)
		}
		const packet uint64 = 20 + 8 + 12 + 8 + 4 + 4 + 4 // IPv4, UDP, BTH, DETH, ImmDt, payload, ICRC
		if !eventually(func() bool {                      // packets whose neighbour is not known yet are counted later
			last = must(a.dev.HWCounters())(t)
			return last["sent_bytes"] > 0 && last["sent_bytes"] == last["port_xmit_packets"]*packet
		}) {
			t.Errorf("%d bytes sent in %d packets, want %d each", last["sent_bytes"], last["port_xmit_packets"], packet)
		}
	})
}
