package verbs_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// TestCounters: the counters of a device and of a port fail for the same causes, as do other
// queries of a port. Without counters they are nil.
func TestCounters(t *testing.T) {
	l := newLoop()
	dev := must(verbs.Open(l))(t)
	ofDevice := func(uint8) error {
		m, err := dev.HWCounters()
		if m != nil {
			t.Errorf("the device has the counters %v", m)
		}
		return err
	}
	ofPort := func(port uint8) error {
		m, err := dev.PortCounters(port)
		if m != nil {
			t.Errorf("port %d has the counters %v", port, m)
		}
		return err
	}
	query := func(port uint8) error { _, err := dev.QueryPort(port); return err }
	table := func(port uint8) error { _, err := dev.GIDTable(port); return err }
	want := func(when string, port uint8, want error, calls ...func(uint8) error) {
		t.Helper()
		for i, f := range calls {
			if err := f(port); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("%s: query %d: %v, want %v", when, i, err, want)
			}
		}
	}
	want("without counters", 1, nil, ofDevice, ofPort)
	for _, port := range []uint8{0, 9} {
		want("a port that does not exist", port, verbs.ErrInvalid, ofPort, query, table)
	}
	l.counters = syscall.EIO
	want("the provider's error", 1, syscall.EIO, ofDevice, ofPort)
	check(t, dev.Close())
	want("after Close", 1, verbs.ErrClosed, ofDevice, ofPort, query, table)
	want("a port that does not exist, after Close", 9, verbs.ErrClosed, ofPort, query, table)
	if s := dev.Snapshot(); s.Device != "loop0" || s.Counters != nil || s.Ports != nil {
		t.Errorf("a snapshot after Close: %+v", s)
	}
}

// TestLatency: one request at a time is measured, from posting to completion. The latencies of a
// closed QP are kept.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.dev.MeasureLatency()
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq,
			Cap: verbs.QPCap{MaxSendWR: 8}, SQSigAll: true}))(t)
		r.qp, r.lq = qp, r.l.qps[qp.Num()]
		r.moveTo(t, verbs.StateRTS)
		r.lq.hold = true
		complete := func(n int) {
			r.lq.locked(func() {
				for range n {
					r.lq.CompleteSend(verbs.WCSuccess, 0)
				}
			})
		}
		post := func() {
			t.Helper()
			if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}); err != nil {
				t.Fatal(err)
			}
		}
		post() // measured
		time.Sleep(3 * time.Millisecond)
		post() // not measured
		complete(2)
		post()
		time.Sleep(10 * time.Microsecond)
		complete(1)
		check := func() {
			t.Helper()
			l := r.dev.Snapshot().Latencies[verbs.RoCEv2]
			if l.Count != 2 || l.Sum != 3*time.Millisecond+10*time.Microsecond {
				t.Errorf("%d requests took %v", l.Count, l.Sum)
			}
			for i, n := range l.Classes {
				if bound := l.Bound(i); (n == 1) != (bound == 4096*time.Microsecond || bound == 16*time.Microsecond) {
					t.Errorf("%d in the class below %v", n, bound)
				}
			}
		}
		check()
		if s, err := qp.Stats(); err != nil || s.State != verbs.StateRTS || s.Sends != 0 || s.SendsCompleted.Count != 2 {
			t.Errorf("%+v, %v", s, err)
		}
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
		check()
		if _, err := qp.Stats(); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestResources: Resources and QPs report the objects of a device.
func TestResources(t *testing.T) {
	r := newRig(t)
	before := r.dev.Resources()
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	if qps := r.dev.QPs(); len(qps) != before.QP+1 || qps[len(qps)-1] != qp {
		t.Errorf("%v", qps)
	}
	if now := r.dev.Resources(); now.QP != before.QP+1 || now.PD != 1 || now.CQ != 1 || now.CompChannel != 1 {
		t.Errorf("%+v, before %+v", now, before)
	}
}
