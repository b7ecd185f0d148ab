package rocetransport_test

import (
	"context"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestSQD checks that started requests complete, with retransmissions, that others wait, and that
// receiving continues.
func TestSQD(t *testing.T) {
	bubble(t, config{sigAll: true, timeout: 14, retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.Send, 8))
		first := r.take()
		toSQD := &verbs.QPAttr{QPState: verbs.StateSQD, EnSQDAsyncNotify: true}
		if err := r.qp.Modify(toSQD, verbs.QPAttrState|verbs.QPAttrEnSQDAsyncNotify); err != nil {
			r.t.Fatal(err)
		}
		r.post(r.wr(2, verbs.Send, 8))
		r.expect()
		time.Sleep(time.Second / 10) // the first is retransmitted, the second is not sent
		for _, p := range r.take() {
			if p.PSN != first[0].PSN {
				r.t.Errorf("PSN %d is sent in SQD", p.PSN)
			}
		}
		r.recv(1, 0, 64)
		r.give(r.req(wire.RCSendOnly, 0, fill(8, 1), ackReq))
		r.take()
		r.completions(r.rcq, "1 SUCCESS RECV 8")

		ctx, cancel := context.WithTimeout(r.t.Context(), time.Millisecond)
		defer cancel()
		for {
			e, err := r.dev.GetAsyncEvent(ctx)
			if err != nil {
				break
			}
			if e.Type == verbs.EventSQDrained {
				r.t.Error("drained without an acknowledgement")
			}
		}
		r.give(r.ack(0))
		r.completions(r.scq, "1 SUCCESS SEND 0")
		e, err := r.dev.GetAsyncEvent(r.t.Context())
		if err != nil || e.Type != verbs.EventSQDrained || e.QP != r.qp {
			r.t.Errorf("got %+v, %v", e, err)
		}
		if a, _, _ := r.qp.Query(); a.SQDraining || a.QPState != verbs.StateSQD {
			r.t.Errorf("got %+v", a)
		}
		if err := r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState); err != nil {
			r.t.Fatal(err)
		}
		if got := r.take(); len(got) != 1 || got[0].PSN != first[0].PSN+1 {
			r.t.Errorf("back in RTS: %v", got)
		}
		r.give(r.ack(1))
		r.completions(r.scq, "2 SUCCESS SEND 0")
	})
}

// TestPathInSQD checks that congestion control forgets the old path when the QP gets a new address
// vector.
func TestPathInSQD(t *testing.T) {
	bubble(t, config{sigAll: true, timeout: 20, retry: 7, byDelay: &roce.ByDelay{}}, func(r *rig) {
		send := func() (first int) { // packets of a SEND before the first acknowledgement
			r.post(r.wr(1, verbs.Send, 64<<10))
			for got := r.take(); len(got) > 0; got = r.take() {
				if first == 0 {
					first = len(got)
				}
				time.Sleep(100 * time.Microsecond)
				r.give(r.ack(int(got[len(got)-1].PSN)))
			}
			r.completions(r.scq, "1 SUCCESS SEND 0")
			return first
		}
		const start = 16 // the initial window of a connection
		send()
		if grown := send(); grown <= start {
			t.Fatalf("%d packets are sent after all earlier ones were answered: the test checks nothing", grown)
		}
		r.modify(verbs.StateSQD)
		attr, _, err := r.qp.Query()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD, AHAttr: attr.AHAttr}, verbs.QPAttrState|verbs.QPAttrAV); err != nil {
			t.Fatal(err)
		}
		r.modify(verbs.StateRTS)
		if again := send(); again != start {
			t.Errorf("%d packets are sent on the new path, want %d", again, start)
		}
	})
}
