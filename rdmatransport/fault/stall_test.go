package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// flushing returns a QP that flushes n receive requests, with the CQ for them.
func flushing(s *station, cqe int) (flush func(n int), qp *verbs.QP, cq *verbs.CQ) {
	t := s.t
	cq = must(s.dev.CreateCQ(cqe, nil))(t)
	t.Cleanup(func() { _ = cq.Close() }) // the test may have closed it
	qp = must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 100, MaxRecvSGE: 1}}))(t)
	t.Cleanup(func() { _ = qp.Close() })
	return func(n int) {
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccessFlags))
		for range n {
			ok(t, qp.PostRecv(&verbs.RecvWR{}))
		}
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	}, qp, cq
}

// TestStallOverrun: a completion that does not fit into a CQ when its stall ends makes the CQ
// overrun, and wakes a program that waits for an event.
func TestStallOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := stations(t)
		ca, _ := dial(a, b)
		from, to := a.reg(8), b.reg(8)
		cq := ca.SendCQ()
		ok(t, cq.Resize(2))
		post(t, ca, from, to, 2)
		time.Sleep(time.Millisecond)
		ok(t, cq.ReqNotify(false))
		a.add("cq=50ms")
		post(t, ca, from, to, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := must(cq.Channel().GetEvent(ctx))(t); got != cq {
			t.Error("the event is another CQ's")
		}
		ok(t, cq.AckEvents(1))
		a.event(verbs.EventCQErr)
		wantStatus(t, completions(t, cq, 2), verbs.WCSuccess, verbs.WCSuccess)
		if _, err := cq.Poll(make([]verbs.WC, 1)); err == nil {
			t.Error("the CQ is not overrun")
		}
	})
}

// TestStallReset: a QP in RESET gets no completion of its former life when a stall ends meanwhile.
func TestStallReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stations(t)
		flush, qp, cq := flushing(s, 100)
		for i := range 200 {
			s.add(fmt.Sprintf("none; cq:qp=%d=1ms", qp.Num()))
			flush(50)
			time.Sleep(time.Millisecond) // the stall ends now
			ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
			synctest.Wait()
			if n, err := cq.Poll(make([]verbs.WC, 100)); n != 0 || err != nil {
				t.Fatalf("round %d: %d completions, error %v", i, n, err)
			}
		}
	})
}

// TestStallResize: a stalled CQ cannot become smaller than its completions, the held ones included.
func TestStallResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stations(t)
		flush, qp, cq := flushing(s, 10)
		s.add("cq=1s")
		flush(3)
		if err := cq.Resize(2); err == nil {
			t.Error("the CQ has room for 2")
		}
		ok(t, cq.Resize(3))
		if n, err := cq.Poll(make([]verbs.WC, 10)); n != 0 || err != nil {
			t.Errorf("%d completions, error %v", n, err)
		}
		completions(t, cq, 3)
		ok(t, qp.Close())
		ok(t, cq.Close())
	})
}

// TestPollOnce: a poll of several completions is one call.
func TestPollOnce(t *testing.T) {
	s, _ := stations(t)
	flush, _, cq := flushing(s, 10)
	flush(5)
	n, p := 0, cq.StartPoll()
	for p.Next() {
		n++
	}
	ok(t, p.End())
	if calls := s.faults.Sites()["poll_cq"]; n != 5 || calls != 1 {
		t.Errorf("%d completions in %d calls", n, calls)
	}
}

// TestDevices: the rules of each of a channel's devices count the same calls.
func TestDevices(t *testing.T) {
	a, b := stations(t)
	for _, s := range []*station{a, b} {
		s.add("rdma_create_event_channel=ENOMEM; rdma_create_id=ENOMEM")
	}
	var ch *rdmacm.EventChannel
	for i := range 3 {
		var err error
		if ch, err = rdmacm.CreateEventChannel(a.dev, b.dev); (err != nil) != (i == 0) {
			t.Fatalf("channel %d: %v", i, err)
		}
	}
	for i := range 3 {
		if id, err := ch.CreateID(rdmacm.TCP, nil); (err != nil) != (i == 0) {
			t.Fatalf("ID %d: %v", i, err)
		} else if err == nil {
			ok(t, id.Close())
		}
	}
	for _, name := range []string{"rdma_create_event_channel", "rdma_create_id"} {
		if one, other := a.faults.Sites()[name], b.faults.Sites()[name]; one != 3 || other != 3 {
			t.Errorf("%d and %d calls of %s", one, other, name)
		}
	}
}

// TestStallClose: a CQ that is closed while it is stalled gets no completion, neither when the
// stall would have ended nor from a goroutine that was about to add one.
func TestStallClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stations(t)
		for i := range 300 {
			flush, qp, cq := flushing(s, 100)
			s.add(fmt.Sprintf("none; cq:qp=%d=1ms", qp.Num()))
			flush(50)
			ok(t, qp.Close())
			if i%3 != 0 {
				time.Sleep(time.Millisecond) // the stall ends now
			}
			ok(t, cq.Close())
			time.Sleep(time.Second)
			if n, err := cq.Poll(make([]verbs.WC, 100)); n != 0 || !errors.Is(err, verbs.ErrClosed) {
				t.Fatalf("round %d: %d completions, error %v", i, n, err)
			}
		}
	})
}

// TestCountedOnce: what a program does once counts once.
func TestCountedOnce(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	count := func() uint64 { return must(a.dev.HWCounters())(t)["injected_faults"] }

	wr := &verbs.RecvWR{}
	ok(t, ca.QP().PostRecv(wr, wr, wr))
	mw := must(a.pd.AllocMW(verbs.MWType1))(t)
	ok(t, ca.QP().BindMW(mw, 1, verbs.SendSignaled, verbs.MWBindInfo{}))
	completions(t, ca.SendCQ(), 1)
	ok(t, mw.Close())
	for name, want := range map[string]uint64{"post_recv": 1, "bind_mw": 1, "post_send": 0} {
		if n := a.faults.Sites()[name]; n != want {
			t.Errorf("%d calls of %s, want %d", n, name, want)
		}
	}

	// A request that is not posted after all is none.
	a.add("wc:opcode=write,nth=2=5ms; event:nth=2=QP_FATAL; wc:opcode=write,nth=3,late=5ms=RETRY_EXC_ERR")
	write := &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 1)}, RemoteAddr: to.Addr(),
		RKey: to.RKey()}
	n := 0
	if err := ca.QP().PostSendAll(func() *verbs.SendWR {
		if n++; n == 3 {
			return &verbs.SendWR{Opcode: 77}
		}
		return write
	}); err == nil {
		t.Error("an unknown opcode is posted")
	}
	for i, s := range a.faults.List() {
		if s.Seen != 0 || s.Injected != 0 {
			t.Errorf("rule %d: %+v", i, s)
		}
	}

	// A failure that is late, and lateness, are one fault each.
	a.add("none; wc:opcode=write,nth=2=5ms; wc:opcode=write,nth=3,late=5ms=RETRY_EXC_ERR")
	before := count()
	ok(t, ca.QP().PostSend(write, write, write))
	wantStatus(t, completions(t, ca.SendCQ(), 3), verbs.WCSuccess, verbs.WCSuccess, verbs.WCRetryExcErr)
	if n, of := count()-before, a.faults.Injected(); n != 2 || of != 2 {
		t.Errorf("%d and %d faults, want 2", n, of)
	}
}
