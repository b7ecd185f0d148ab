package rdmatransport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// departures is a link that reports departures on the test's request.
type departures struct {
	link.Link
	left func(mac [6]byte)
}

func (d *departures) WatchDepartures(left func(mac [6]byte)) { d.left = left }

// TestDeparture checks that requests to a host that has left fail half a second later, long before
// their retries are exhausted. A QP without requests does not change, and neither does a QP whose
// requests were answered within that half second.
func TestDeparture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		near, far := &departures{Link: lan.Port()}, lan.Port()
		devs := [2]*device{newDevice(t, near, "10.0.0.1", nil), newDevice(t, cable{far}, "10.0.0.2", nil)}
		var cqs [2]*verbs.CQ
		var mrs [2]*verbs.MR
		var qps [2][3]*verbs.QP
		for i, d := range devs {
			pd := must(d.AllocPD())(t)
			cqs[i] = must(d.CreateCQ(16, nil))(t)
			mrs[i] = must(pd.RegMR(make([]byte, 8), everyAccess))(t)
			for j := range qps[i] {
				qps[i][j] = must(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cqs[i],
					RecvCQ: cqs[i], Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}))(t)
			}
			t.Cleanup(func() {
				for _, qp := range qps[i] {
					ok(t, qp.Close())
				}
				ok(t, mrs[i].Close())
				ok(t, cqs[i].Close())
				ok(t, pd.Close())
			})
		}
		for j := range qps[0] {
			connectQP(t, devs[0], qps[0][j], devs[1], qps[1][j], nil)
			connectQP(t, devs[1], qps[1][j], devs[0], qps[0][j], nil)
		}
		write := func(qp *verbs.QP) {
			t.Helper()
			ok(t, qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[0].SGE(0, 8)},
				RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey()}))
		}
		next := func() (wc verbs.WC, took time.Duration) {
			t.Helper()
			var wcs [1]verbs.WC
			for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				if took = time.Since(begin); took > time.Minute {
					t.Fatal("no completion")
				}
				if must(cqs[0].Poll(wcs[:]))(t) == 1 {
					return wcs[0], took
				}
			}
		}
		lost, idle, answered := qps[0][0], qps[0][1], qps[0][2]
		for _, qp := range qps[0] {
			write(qp)
			if wc, _ := next(); wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
		}

		// The host leaves, and another takes its address within half a second. One request is
		// retransmitted to it, and answered.
		far.SetCarrier(false)
		write(answered)
		near.left([6]byte(far.MAC()))
		far.SetCarrier(true)
		if wc, _ := next(); wc.Status != verbs.WCSuccess {
			t.Errorf("the request whose peer was away for a moment: %v", wc.Status)
		}

		far.SetCarrier(false)
		write(lost)
		near.left([6]byte(far.MAC()))
		wc, took := next()
		if wc.Status != verbs.WCRetryExcErr || wc.QPNum != lost.Num() || took < 400*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("%v of QP %d after %v, want %v of QP %d after half a second", wc.Status, wc.QPNum,
				took, verbs.WCRetryExcErr, lost.Num())
		}
		for qp, want := range map[*verbs.QP]verbs.QPState{lost: verbs.StateErr, idle: verbs.StateRTS, answered: verbs.StateRTS} {
			attr, _, err := qp.Query()
			if ok(t, err); attr.QPState != want {
				t.Errorf("QP %d is in %v, want %v", qp.Num(), attr.QPState, want)
			}
		}
	})
}
