package verbs_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// TestClock: a device has the time of its provider.
func TestClock(t *testing.T) {
	sim := stacktest.NewClock(1)
	r := &rig{l: newLoop()}
	r.l.clock = clock.New(sim)
	r.open(t, verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}, 64)
	r.dev.MeasureLatency()
	r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	r.lq = r.l.qps[r.qp.Num()]
	r.lq.hold = true
	r.moveTo(t, verbs.StateRTS)

	// Moderation of events.
	check(t, r.cq.Modify(verbs.CQModeration{Count: 10, Period: time.Millisecond}))
	check(t, r.cq.ReqNotify(false))
	var next uint64
	r.fillCQ(t, &next, 2)
	sim.Advance(999 * time.Microsecond)
	early := r.events(t)
	sim.Advance(time.Microsecond)
	if late := r.events(t); early != 0 || late != 1 {
		t.Errorf("%d events within the period, %d after it", early, late)
	}

	// Latency.
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}))
	sim.Advance(time.Second)
	r.lq.locked(func() { r.lq.CompleteSend(verbs.WCSuccess, 0) })
	if s := must(r.qp.Stats())(t); s.SendsCompleted.Sum != time.Second {
		t.Errorf("latency %v of a request that took a second", s.SendsCompleted.Sum)
	}
	if raw := r.dev.RawClock(); raw != time.Second+time.Millisecond {
		t.Errorf("RawClock %v", raw)
	}
}
