package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestOpcodes: a rule of completions hits the requests of its operation only.
func TestOpcodes(t *testing.T) {
	for rule, want := range map[string]verbs.WCOpcode{
		"wc:opcode=send=REM_OP_ERR":       verbs.WCSend,
		"wc:opcode=write=REM_ACCESS_ERR":  verbs.WCRDMAWrite,
		"wc:opcode=read=REM_ACCESS_ERR":   verbs.WCRDMARead,
		"wc:opcode=atomic=REM_ACCESS_ERR": verbs.WCFetchAdd,
		"wc:opcode=local=MW_BIND_ERR":     verbs.WCBindMW,
		"wc:opcode=local=GENERAL_ERR":     verbs.WCBindMW,
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			a, b := stations(t)
			ca, cb := dial(a, b)
			from, to := a.reg(8), b.reg(8)
			bound := must(a.pd.RegMR(make([]byte, 8), everyAccess|verbs.AccessMWBind))(t)
			mw := must(a.pd.AllocMW(verbs.MWType2))(t)
			ok(t, cb.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to.SGE(0, 8)}}))
			a.add(rule)
			status := a.faults.List()[0].Rule[strings.LastIndexByte(rule, '=')+1:]
			var last verbs.WC
			for _, wr := range []*verbs.SendWR{
				{Opcode: verbs.Send},
				{Opcode: verbs.RDMAWrite},
				{Opcode: verbs.RDMARead},
				{Opcode: verbs.AtomicFetchAndAdd},
				{Opcode: verbs.BindMW, Bind: &verbs.MWBind{MW: mw, RKey: 1, MWBindInfo: verbs.MWBindInfo{MR: bound, Addr: bound.Addr(), Length: 8,
					Access: verbs.AccessRemoteRead}}},
			} {
				wr.Flags = verbs.SendSignaled
				if wr.Opcode != verbs.BindMW {
					wr.SGList, wr.RemoteAddr, wr.RKey = []verbs.SGE{from.SGE(0, 8)}, to.Addr(), to.RKey()
				}
				ok(t, ca.QP().PostSend(wr))
				if last = completions(t, ca.SendCQ(), 1)[0]; last.Status != verbs.WCSuccess {
					break
				}
			}
			if last.Opcode != want || !strings.HasSuffix(last.Status.String(), status) {
				t.Errorf("%v fails with %v", last.Opcode, last.Status)
			}
			if n := a.faults.Injected(); n != 1 {
				t.Errorf("%d faults", n)
			}
			_ = mw.Close() // bound, unless that failed: it is closed before its region either way
			ok(t, bound.Close())
		})
	}
}

// TestLateFailure: with late, a completion that fails comes after this time, and the flush after
// it.
func TestLateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := stations(t)
		ca, _ := dial(a, b)
		from, to := a.reg(8), b.reg(8)
		a.add("wc:late=50ms=RETRY_EXC_ERR:2")
		began := time.Now()
		post(t, ca, from, to, 3)
		wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCSuccess)
		if ca.QP().State() != verbs.StateErr || time.Since(began) != 0 {
			t.Errorf("the QP is in %v after %v", ca.QP().State(), time.Since(began))
		}
		wantStatus(t, completions(t, ca.SendCQ(), 2), verbs.WCRetryExcErr, verbs.WCWRFlushErr)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("the failed completion comes after %v", took)
		}
	})
}

// TestStuck: the CQs of one QP stand still, those of another do not.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := stations(t)
		ca, _ := dial(a, b)
		other, _ := dial(a, b)
		from, to := a.reg(8), b.reg(8)
		a.add(fmt.Sprintf("cq:qp=%d,nth=2=2s", ca.QP().Num()))
		began := time.Now()
		post(t, ca, from, to, 1)
		completions(t, ca.SendCQ(), 1)
		post(t, ca, from, to, 1) // stalls its CQ, perhaps after it is complete
		synctest.Wait()
		post(t, ca, from, to, 1)
		post(t, other, from, to, 3)
		completions(t, other.SendCQ(), 3)
		if took := time.Since(began); took != 0 {
			t.Errorf("another CQ stood still for %v", took)
		}
		completions(t, ca.SendCQ(), 2)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the CQ stood still for %v", took)
		}
	})
}

// TestAfter: what acts, acts after its time, and once.
func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := stations(t)
		ca, _ := dial(a, b)
		mr := a.reg(8)
		began := time.Now()
		a.add(fmt.Sprintf("event:after=1s=GID_CHANGE; port:after=2s,for=1s=down; addr:after=4s=+10.0.0.7/24; addr:after=5s=-10.0.0.7; "+
			"mr:after=6s,lkey=%d=revoked; event:after=7s=QP_REQ_ERR; mtu:after=8s=1400", mr.LKey()))
		for i, want := range []struct {
			after time.Duration
			event verbs.AsyncEventType
		}{
			{1, verbs.EventGIDChange}, {2, verbs.EventPortErr}, {3, verbs.EventPortActive}, {4, verbs.EventGIDChange},
			{5, verbs.EventGIDChange}, {7, verbs.EventQPReqErr},
		} {
			if a.event(want.event); time.Since(began) != want.after*time.Second {
				t.Errorf("event %d comes after %v, want %d s", i, time.Since(began), want.after)
			}
		}
		time.Sleep(time.Hour)
		if p := must(a.dev.QueryPort(1))(t); ca.QP().State() != verbs.StateErr || p.ActiveMTU != verbs.MTU1024 {
			t.Errorf("the QP is in %v, the MTU is %v", ca.QP().State(), p.ActiveMTU)
		}
		a.noEvent()
		for _, s := range a.faults.List() {
			if s.Injected != 1 || s.Error != "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestAfterNothing: a rule whose object is gone when its time comes says so, and does nothing.
func TestAfterNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stations(t)
		s.add("event:after=1s=QP_FATAL; cq:after=1s=2s; mr:after=1s=revoked; " +
			"cm:after=1s=ADDR_CHANGE; addr:after=1s=-10.0.0.9; mtu:after=1s=65000")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for i, want := range []string{"no QP", "no QP", "no region", "no ID", "does not have it", "576"} {
			if st := s.faults.List()[i]; !strings.Contains(st.Error, want) || st.Injected != 0 {
				t.Errorf("%+v, want %q", st, want)
			}
		}
		s.add("none; event:after=1s=GID_CHANGE")
		s.faults.End() // before its time
		time.Sleep(2 * time.Second)
		s.noEvent()
	})
}

// TestCommEst: a QP in RTR reports COMM_EST.
func TestCommEst(t *testing.T) {
	s, _ := stations(t)
	cq := must(s.dev.CreateCQ(16, nil))(t)
	qp := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: cq, RecvCQ: cq}))(t)
	ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: 1},
		verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrQKey))
	if got := s.refused("event=COMM_EST"); !strings.Contains(got, "INIT") {
		t.Error(got)
	}
	ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
	s.add("event=COMM_EST")
	if e := s.event(verbs.EventCommEst); e.QP != qp {
		t.Errorf("QP %p", e.QP)
	}
	if qp.State() != verbs.StateRTR {
		t.Errorf("the QP is in %v", qp.State())
	}
	ok(t, qp.Close())
	ok(t, cq.Close())
}

// TestWhichConnect: an outcome of rdma_cm hits the connections that its number says.
func TestWhichConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := stations(t)
		a.add("cm=REJECTED:2; cm:nth=3=UNREACHABLE")
		for i, want := range []rdmacm.EventType{0, rdmacm.Rejected, rdmacm.Unreachable, 0} {
			l := must(rdmacm.Listen(b.dev, ":0", nil))(t)
			var served sync.WaitGroup
			if want == 0 {
				served.Go(func() {
					if c, err := l.Accept(t.Context()); err == nil {
						<-c.Done()
						_ = c.Close()
					}
				})
			}
			c, err := rdmacm.Dial(t.Context(), a.dev, netip.AddrPortFrom(b.addr, l.Addr().Port()).String(), nil)
			var failed *rdmacm.EventError
			switch {
			case want == 0 && err == nil:
				ok(t, c.Close())
			case want == 0 || !errors.As(err, &failed) || failed.Type != want:
				t.Errorf("connection %d: %v, want %v", i, err, want)
			}
			ok(t, l.Close())
			served.Wait()
		}
	})
}

// everyRule are rules of every kind, some of which do not apply at a given moment.
var everyRule = strings.Split("wc:nth=2=RETRY_EXC_ERR|wc:opcode=write,late=1ms=REM_ACCESS_ERR|wc=1ms:*|wc:opcode=recv=LOC_LEN_ERR|cq=2ms|"+
	"cq:nth=3=1ms|event=QP_FATAL|event:late=1ms=QP_ACCESS_ERR|event:nth=3=QP_REQ_ERR|event:after=1ms=QP_FATAL|event=CQ_ERR|event=COMM_EST|"+
	"event=SRQ_LIMIT_REACHED|event=GID_CHANGE|event=CLIENT_REREGISTER|cm=REJECTED|cm=UNREACHABLE|cm=ADDR_CHANGE|cm:late=1ms=TIMEWAIT_EXIT|"+
	"cm:after=1ms=ADDR_CHANGE|port:for=1ms=down|port=up|addr=+10.0.0.77/24|addr=-10.0.0.77|mtu=1500|mtu=4096|mr=revoked|mr:after=1ms=revoked|"+
	"post_send=ENOMEM:50%|reg_mr=ENOMEM:50%|destroy_qp=EBUSY:10%|modify_qp:rtr=ETIMEDOUT:20%|poll_cq=EIO:5%|rdma_destroy_id=EBUSY:10%", "|")

// TestRaceWithDestroy: rules of every kind come while objects with SRQs, and then the device itself
// is gone, and all is destroyed.
func TestRaceWithDestroy(t *testing.T) {
	lan := new(pipe.Switch)
	for round := range 3 {
		a := newStation(t, lan, fmt.Sprintf("10.0.0.%d/24", round+1))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					a.useOnce(i == 0)
				}
			})
		}
		random := rand.New(rand.NewPCG(uint64(round), 0))
		for i := range 400 {
			if i%7 == 6 {
				a.faults.End()
			}
			_ = a.faults.Add(must(fault.Parse(everyRule[random.IntN(len(everyRule))]))(t)...) // some do not apply at the moment
			a.faults.List()
			runtime.Gosched()
		}
		a.add("none; device=gone")
		cancel()
		all.Wait()
	}
}

// useOnce creates a QP, which it connects to itself, uses it and destroys everything, as far as the
// rules allow.
func (s *station) useOnce(withSRQ bool) {
	cq, err := s.dev.CreateCQ(8, nil)
	if err != nil {
		return
	}
	closers := []func() error{cq.Close}
	init := &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if withSRQ {
		if init.SRQ, err = s.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}); err == nil {
			closers = append(closers, init.SRQ.Close)
			_ = init.SRQ.Modify(&verbs.SRQAttr{Limit: 1}, verbs.SRQLimit)
		}
	}
	mr, err := s.pd.RegMR(make([]byte, 64), everyAccess)
	if err == nil {
		closers = append(closers, mr.Close)
	}
	if qp, err := s.pd.CreateQP(init); err == nil {
		closers = append(closers, qp.Close)
		_ = qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccessFlags)
		if mr != nil {
			_ = qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 8)}})
		}
		_ = qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: qp.Num(), MaxDestRDAtomic: 1,
			AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GIDFromAddr(s.addr), SGIDIndex: 1, HopLimit: 64}}},
			verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|
				verbs.QPAttrMinRNRTimer)
		_ = qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 1, RetryCnt: 1, MaxRDAtomic: 1},
			verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxQPRDAtomic)
		for range 4 {
			if mr != nil {
				_ = qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 8)},
					RemoteAddr: mr.Addr() + 8, RKey: mr.RKey()})
			}
			_, _ = cq.Poll(make([]verbs.WC, 4))
		}
	}
	for i := range closers {
		c := closers[len(closers)-1-i]
		for n := 0; n < 1000 && errors.Is(c(), verbs.ErrBusy); n++ { // a fault, or a rule that holds a region
			continue
		}
	}
}
