package rdmatransport_test

import (
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// TestRateLimitInProcess checks that messages are sent in packets if either QP has a rate limit.
func TestRateLimitInProcess(t *testing.T) {
	lan := new(pipe.Switch)
	a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
	am, bm := a.reg(make([]byte, 4096), everyAccess), b.reg(make([]byte, 4096), everyAccess)
	qa, qb := dial(a, b, verbs.RoCEv2, nil)
	direct := func(limitA, limitB uint32) bool {
		t.Helper()
		ok(t, qa.QP().Modify(&verbs.QPAttr{RateLimit: limitA}, verbs.QPAttrRateLimit))
		ok(t, qb.QP().Modify(&verbs.QPAttr{RateLimit: limitB}, verbs.QPAttrRateLimit))
		before := must(a.dev.HWCounters())(t)["direct_msgs"]
		ok(t, qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, RemoteAddr: bm.Addr(), RKey: bm.RKey(),
			SGList: []verbs.SGE{am.SGE(0, 4096)}}))
		if wc := poll(t, qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		return must(a.dev.HWCounters())(t)["direct_msgs"] > before
	}
	if !direct(0, 0) || direct(1e6, 0) || direct(0, 1e6) || !direct(0, 0) {
		t.Error("a limit is not respected, or other QPs are slowed down")
	}
}
