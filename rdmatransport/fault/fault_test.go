package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestWhich: a rule hits the calls that its numbers or its seed say.
func TestWhich(t *testing.T) {
	s, _ := stations(t)
	failed := func(rule string, n int) (which []int) {
		s.faults.End()
		s.add(rule)
		for i := range n {
			cq, err := s.dev.CreateCQ(1, nil)
			if err != nil {
				which = append(which, i+1)
			} else {
				ok(t, cq.Close())
			}
		}
		return which
	}
	for rule, want := range map[string][]int{
		"create_cq=ENOMEM": {1}, "create_cq:nth=2=ENOMEM": {2}, "create_cq=ENOMEM:2-3": {2, 3}, "create_cq=ENOMEM:4-": {4, 5},
		"create_cq=ENOMEM:*": {1, 2, 3, 4, 5}, "create_cq=ENOMEM:100%": {1, 2, 3, 4, 5}, "create_qp=ENOMEM": nil,
	} {
		if got := failed(rule, 5); !slices.Equal(got, want) {
			t.Errorf("%s hits %v, want %v", rule, got, want)
		}
	}
	one := failed("create_cq:seed=7=ENOMEM:20%", 200)
	if again := failed("create_cq:seed=7=ENOMEM:20%", 200); !slices.Equal(one, again) || len(one) < 10 || len(one) > 90 {
		t.Errorf("with one seed, %v and %v", one, again)
	}
	if other := failed("create_cq:seed=8=ENOMEM:20%", 200); slices.Equal(one, other) {
		t.Errorf("with another seed, %v too", other)
	}
}

// post posts n WRITEs of a byte.
func post(t testing.TB, c *rdmacm.Conn, from, to *verbs.MR, n int) {
	t.Helper()
	for i := range n {
		ok(t, c.QP().PostSend(&verbs.SendWR{WRID: uint64(i + 1), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{from.SGE(0, 1)}, RemoteAddr: to.Addr(), RKey: to.RKey()}))
	}
}

// TestPostSend: a post fails with bad_wr, and the requests before it are posted.
func TestPostSend(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	a.add("post_send=ENOMEM:2")
	wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 1)}, RemoteAddr: to.Addr(),
		RKey: to.RKey()}
	err := ca.QP().PostSend(wr, wr, wr)
	var refused *verbs.PostError
	if !errors.As(err, &refused) || refused.Index != 1 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("error %v", err)
	}
	wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCSuccess)
	n, err := ca.SendCQ().Poll(make([]verbs.WC, 1))
	if n != 0 || err != nil {
		t.Errorf("%d completions more, error %v", n, err)
	}
	if e := <-a.traced; e.Type != trace.FaultInjected || e.QPN != ca.QP().Num() || e.Detail != "post_send=ENOMEM:2" {
		t.Errorf("traced %+v", e)
	}
	a.add("post_recv=ENOMEM")
	wantErrno(t, "post_recv", ca.QP().PostRecv(&verbs.RecvWR{}), syscall.ENOMEM)
	ok(t, ca.QP().PostRecv(&verbs.RecvWR{}))
	a.add("poll_cq=EIO")
	post(t, ca, from, to, 1)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err = ca.SendCQ().Poll(make([]verbs.WC, 1)); err != nil || time.Now().After(deadline) {
			break
		}
	}
	wantErrno(t, "poll_cq", err, syscall.EIO)
}

// TestCompletions: a request fails with the status of the rule, in its place, the QP is in ERR, and
// the rest is flushed. The peer's QP hears nothing.
func TestCompletions(t *testing.T) {
	for _, status := range []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr,
		verbs.WCLocProtErr, verbs.WCLocLenErr, verbs.WCLocQPOpErr, verbs.WCRemAbortErr, verbs.WCGeneralErr,
		verbs.WCBadRespErr, verbs.WCLocAccessErr} {
		t.Run(status.String(), func(t *testing.T) {
			t.Parallel()
			a, b := stations(t)
			ca, cb := dial(a, b)
			from, to := a.reg(8), b.reg(8)
			a.add(fmt.Sprintf("wc:qp=%d,opcode=write,nth=3=%v", ca.QP().Num(), status))
			post(t, ca, from, to, 6)
			all := completions(t, ca.SendCQ(), 6)
			flushed := verbs.WCWRFlushErr
			wantStatus(t, all, verbs.WCSuccess, verbs.WCSuccess, status, flushed, flushed, flushed)
			if ca.QP().State() != verbs.StateErr || cb.QP().State() != verbs.StateRTS {
				t.Errorf("the QP is in %v, the peer's in %v", ca.QP().State(), cb.QP().State())
			}
			a.noEvent()
		})
	}
}

// TestRNR: only a request that consumes a receive request can fail because there is none.
func TestRNR(t *testing.T) {
	a, b := stations(t)
	ca, cb := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	ok(t, cb.QP().PostRecv(&verbs.RecvWR{}))
	a.add("wc=RNR_RETRY_EXC_ERR")
	post(t, ca, from, to, 1)
	ok(t, ca.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send}))
	wantStatus(t, completions(t, ca.SendCQ(), 2), verbs.WCSuccess, verbs.WCRNRRetryExcErr)
}

// TestReceiveFails: a receive request fails as one whose memory is not registered, or too short;
// the sender gets the NAK that follows.
func TestReceiveFails(t *testing.T) {
	for rule, want := range map[string][2]verbs.WCStatus{
		"wc:opcode=recv,nth=2=LOC_PROT_ERR": {verbs.WCLocProtErr, verbs.WCRemOpErr},
		"wc:opcode=recv,nth=2=LOC_LEN_ERR":  {verbs.WCLocLenErr, verbs.WCRemInvReqErr},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			a, b := stations(t)
			ca, cb := dial(a, b)
			from, to := a.reg(8), b.reg(8)
			b.add(rule)
			for range 3 {
				ok(t, cb.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to.SGE(0, 8)}}))
			}
			for range 2 {
				ok(t, ca.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 8)}}))
			}
			wantStatus(t, completions(t, cb.RecvCQ(), 3), verbs.WCSuccess, want[0], verbs.WCWRFlushErr)
			wantStatus(t, completions(t, ca.SendCQ(), 2), verbs.WCSuccess, want[1])
		})
	}
}

// TestLate: a completion, and those after it, come late; an event comes before the completion that
// fails.
func TestLate(t *testing.T) { synctest.Test(t, testLate) }

func testLate(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	const late = 50 * time.Millisecond
	a.add("wc:nth=2=50ms")
	began := time.Now()
	post(t, ca, from, to, 3)
	wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCSuccess)
	all := completions(t, ca.SendCQ(), 2)
	if took := time.Since(began); took != late || all[0].WRID != 2 || all[1].WRID != 3 {
		t.Errorf("%+v after %v", all, took)
	}
	a.add("cq=50ms")
	began = time.Now()
	post(t, ca, from, to, 2)
	all = completions(t, ca.SendCQ(), 2)
	if took := time.Since(began); took != late || all[0].WRID != 1 || all[1].WRID != 2 {
		t.Errorf("%+v after %v", all, took)
	}
	a.add("event:late=50ms=QP_FATAL")
	ok(t, ca.QP().PostRecv(&verbs.RecvWR{}))
	a.event(verbs.EventQPFatal)
	if n, err := ca.RecvCQ().Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions with the event, error %v", n, err)
	}
}

// TestQPEvents: a QP fails with an event, its requests are flushed, and events that cannot be are
// refused.
func TestQPEvents(t *testing.T) {
	for _, e := range []verbs.AsyncEventType{verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr} {
		a, b := stations(t)
		ca, _ := dial(a, b)
		ok(t, ca.QP().PostRecv(&verbs.RecvWR{}))
		a.add(fmt.Sprintf("event:qp=%d=%v", ca.QP().Num(), e))
		if got := a.event(e); got.QP != ca.QP() {
			t.Errorf("%v of QP %v", e, got.QP)
		}
		wantStatus(t, completions(t, ca.RecvCQ(), 1), verbs.WCWRFlushErr)
		for rules, want := range map[string]string{fmt.Sprintf("event:qp=%d=%v", ca.QP().Num(), e): "ERR", "event:qp=77=QP_FATAL": "no QP 0x4d",
			"event=COMM_EST": "RTR", "event=SRQ_LIMIT_REACHED": "no SRQ"} {
			if got := a.refused(rules); !strings.Contains(got, want) {
				t.Errorf("%s: %s", rules, got)
			}
		}
	}
}

// TestEventOfPost: a rule acts with the nth request that is posted, on its QP.
func TestEventOfPost(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	other, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	a.add(fmt.Sprintf("event:qp=%d,nth=3=QP_FATAL", ca.QP().Num()))
	post(t, other, from, to, 5)
	post(t, ca, from, to, 3)
	if e := a.event(verbs.EventQPFatal); e.QP != ca.QP() || other.QP().State() != verbs.StateRTS {
		t.Errorf("QP %#x failed", e.QP.Num())
	}
}

// TestCQError: a CQ fails; polling it fails too, and so does a QP that completes to it.
func TestCQError(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	a.add("event=CQ_ERR")
	if e := a.event(verbs.EventCQErr); e.CQ != ca.SendCQ() {
		t.Errorf("CQ %p", e.CQ)
	}
	_, err := ca.SendCQ().Poll(make([]verbs.WC, 1))
	wantErrno(t, "poll", err, syscall.EOVERFLOW)
	post(t, ca, from, to, 1)
	if e := a.event(verbs.EventQPFatal); e.QP != ca.QP() {
		t.Errorf("QP %p", e.QP)
	}
}

// TestSRQLimit: the limit's event is raised if it is armed, and then no more.
func TestSRQLimit(t *testing.T) {
	s, _ := stations(t)
	cq := must(s.dev.CreateCQ(16, nil))(t)
	srq := must(s.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}))(t)
	qp := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	if got := s.refused("event=SRQ_LIMIT_REACHED"); !strings.Contains(got, "not armed") {
		t.Error(got)
	}
	ok(t, srq.PostRecv(&verbs.RecvWR{}, &verbs.RecvWR{}))
	ok(t, srq.Modify(&verbs.SRQAttr{Limit: 1}, verbs.SRQLimit))
	s.add("event=SRQ_LIMIT_REACHED")
	if e := s.event(verbs.EventSRQLimitReached); e.SRQ != srq {
		t.Errorf("SRQ %p", e.SRQ)
	}
	if got := s.refused("event=SRQ_LIMIT_REACHED"); !strings.Contains(got, "not armed") {
		t.Error(got)
	}
	for _, c := range []func() error{qp.Close, srq.Close, cq.Close} {
		ok(t, c())
	}
}

// TestDeviceEvents: events of the port and the state of the link.
func TestDeviceEvents(t *testing.T) { synctest.Test(t, testDeviceEvents) }

func testDeviceEvents(t *testing.T) {
	s, _ := stations(t)
	for _, e := range []verbs.AsyncEventType{verbs.EventGIDChange, verbs.EventClientReregister} {
		s.add("event=" + e.String())
		if got := s.event(e); got.PortNum != 1 {
			t.Errorf("%v of port %d", e, got.PortNum)
		}
	}
	state := func(want verbs.PortState) {
		t.Helper()
		if p := must(s.dev.QueryPort(1))(t); p.State != want {
			t.Errorf("the port is %v, want %v", p.State, want)
		}
	}
	s.add("port:for=50ms=down")
	state(verbs.PortDown)
	s.event(verbs.EventPortErr)
	s.event(verbs.EventPortActive)
	state(verbs.PortActive)
	s.add("port:for=50ms=down")
	s.event(verbs.EventPortErr)
	time.Sleep(40 * time.Millisecond)
	began := time.Now()
	s.add("port:for=50ms=down") // from now on
	s.event(verbs.EventPortActive)
	if took := time.Since(began); took != 50*time.Millisecond {
		t.Errorf("the port was down for %v more", took)
	}
	s.add("port=down")
	s.event(verbs.EventPortErr)
	s.add("port=up")
	s.event(verbs.EventPortActive)

	mtu := must(s.dev.QueryPort(1))(t).ActiveMTU
	s.add("mtu=1500")
	if got := must(s.dev.QueryPort(1))(t).ActiveMTU; got != verbs.MTU1024 || got >= mtu {
		t.Errorf("active MTU %v, before %v", got, mtu)
	}
	if got := s.refused("mtu=65000"); !strings.Contains(got, "576") {
		t.Error(got)
	}
	index := func(addr string) int {
		for _, g := range must(s.dev.GIDTable(1))(t) {
			if g.GID.Addr().Unmap() == netip.MustParseAddr(addr) && g.Type == verbs.GIDTypeRoCEv2 {
				return g.Index
			}
		}
		return -1
	}
	before := index("10.0.0.1")
	s.add("addr=-10.0.0.1; addr=+10.0.0.7/24; addr=+10.0.0.1/24") // the GID index moves
	for range 3 {
		s.event(verbs.EventGIDChange)
	}
	if index("10.0.0.7") != before || index("10.0.0.1") != before+1 {
		t.Errorf("indices %d and %d, before %d", index("10.0.0.7"), index("10.0.0.1"), before)
	}
	if got := s.refused("addr=-10.0.0.99"); !strings.Contains(got, "does not have it") {
		t.Error(got)
	}
	if got := s.refused("port:port=2=down"); !strings.Contains(got, "1 ports") {
		t.Error(got)
	}
}

// TestPortDown: a connection whose port is down gives up as over a pulled cable.
func TestPortDown(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	a.add("port:nth=2=down")
	post(t, ca, from, to, 2)
	a.event(verbs.EventPortErr)
	post(t, ca, from, to, 1)
	a.add("port=up")
	a.event(verbs.EventPortActive)
	completions(t, ca.SendCQ(), 3)
}

// TestDeviceGone: the device raises DEVICE_FATAL, and every call gives EIO.
func TestDeviceGone(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	mr := a.reg(8)
	ok(t, ca.QP().PostRecv(&verbs.RecvWR{}))
	a.add("event=DEVICE_FATAL")
	a.event(verbs.EventDeviceFatal)
	wantStatus(t, completions(t, ca.RecvCQ(), 1), verbs.WCWRFlushErr)
	<-ca.Done()
	_, err := a.pd.RegMR(make([]byte, 8), 0)
	wantErrno(t, "reg_mr", err, syscall.EIO)
	_, err = a.dev.CreateCQ(1, nil)
	wantErrno(t, "create_cq", err, syscall.EIO)
	_, err = a.dev.QueryPort(1)
	wantErrno(t, "query_port", err, syscall.EIO)
	wantErrno(t, "dereg_mr", mr.Close(), syscall.EIO)
	wantErrno(t, "modify_qp", ca.QP().Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState), syscall.EIO)
	wantErrno(t, "destroy_qp", ca.QP().Close(), syscall.EIO)
	// rdma_cm continues, and its IDs can be destroyed. An ID cannot be bound to the device.
	_, err = rdmacm.Dial(t.Context(), a.dev, netip.AddrPortFrom(b.addr, 1).String(), nil)
	wantErrno(t, "dial", err, syscall.ENODEV)
	ch := must(rdmacm.CreateEventChannel(a.dev))(t)
	id := must(ch.CreateID(rdmacm.TCP, nil))(t)
	wantErrno(t, "rdma_bind_addr", id.Bind(netip.AddrPortFrom(a.addr, 1)), syscall.ENODEV)
	ok(t, id.Close())
	ok(t, ch.Close())
	a.faults.End()
	_, err = a.dev.AllocPD()
	wantErrno(t, "alloc_pd after none", err, syscall.EIO)
	if got := a.refused("device=gone"); !strings.Contains(got, "already gone") {
		t.Error(got)
	}
}

// TestRevoked: a region's keys are invalid for the peer and for this side, and it can be closed.
func TestRevoked(t *testing.T) {
	a, b := stations(t)
	ca, _ := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	b.add(fmt.Sprintf("mr:lkey=%#x=revoked", to.LKey()))
	post(t, ca, from, to, 1)
	wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCRemAccessErr)
	if got := b.refused(fmt.Sprintf("mr:lkey=%d=revoked", to.LKey())); !strings.Contains(got, "no region") {
		t.Error(got)
	}
	ok(t, to.Close())
	b.event(verbs.EventQPAccessErr)

	ca, _ = dial(a, b)
	a.add("mr=revoked")
	post(t, ca, from, b.reg(8), 1)
	wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCLocProtErr)
	ok(t, from.Rereg(verbs.ReregTranslation, nil, make([]byte, 8), everyAccess))
	ca, _ = dial(a, b)
	post(t, ca, from, b.reg(8), 1)
	wantStatus(t, completions(t, ca.SendCQ(), 1), verbs.WCSuccess)
	ok(t, from.Close())
}

// TestCM: outcomes and events of rdma_cm.
func TestCM(t *testing.T) { synctest.Test(t, testCM) }

func testCM(t *testing.T) {
	a, b := stations(t)
	l := must(rdmacm.Listen(b.dev, ":0", nil))(t)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	to := netip.AddrPortFrom(b.addr, l.Addr().Port()).String()
	for rule, want := range map[string]rdmacm.EventError{
		"cm:reason=3=REJECTED": {Type: rdmacm.Rejected, Status: rdmacm.RejectNoResources},
		"cm=REJECTED":          {Type: rdmacm.Rejected, Status: rdmacm.RejectConsumerDefined},
		"cm=UNREACHABLE":       {Type: rdmacm.Unreachable, Status: -int(syscall.ETIMEDOUT)},
		"cm=CONNECT_ERROR":     {Type: rdmacm.ConnectError, Status: -int(syscall.EINVAL)},
		"cm=ADDR_ERROR":        {Type: rdmacm.AddrError, Status: -int(syscall.ETIMEDOUT)},
		"cm=ROUTE_ERROR":       {Type: rdmacm.RouteError, Status: -int(syscall.ETIMEDOUT)},
	} {
		a.faults.End()
		a.add(rule)
		_, err := rdmacm.Dial(ctx, a.dev, to, nil)
		var got *rdmacm.EventError
		if !errors.As(err, &got) || got.Type != want.Type || got.Status != want.Status {
			t.Errorf("%s: %v", rule, err)
		}
	}
	a.faults.End()

	ch := must(rdmacm.CreateEventChannel(a.dev))(t)
	next := func(want rdmacm.EventType) {
		t.Helper()
		e := must(ch.GetEvent(ctx))(t)
		if e.Type != want {
			t.Fatalf("event %v, want %v", e.Type, want)
		}
		ok(t, e.Ack())
	}
	go func() {
		if c, err := l.Accept(ctx); err == nil {
			<-c.Done()
			_ = c.Close()
		}
	}()
	id := must(ch.CreateID(rdmacm.TCP, nil))(t)
	ok(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(to), 0))
	next(rdmacm.AddrResolved)
	a.add("cm=ADDR_CHANGE")
	next(rdmacm.AddrChange)
	ok(t, id.ResolveRoute())
	next(rdmacm.RouteResolved)
	ok(t, id.CreateQP(a.pd, &verbs.QPInitAttr{}))
	ok(t, id.Connect(nil))
	next(rdmacm.Established)
	a.add("cm:late=20s=TIMEWAIT_EXIT")
	ok(t, id.Disconnect())
	next(rdmacm.Disconnected)
	began := time.Now()
	next(rdmacm.TimewaitExit)
	if took := time.Since(began); took < 20*time.Second {
		t.Errorf("TIMEWAIT_EXIT after %v", took)
	}
	if list := a.faults.List(); list[len(list)-1].Injected != 1 {
		t.Errorf("%+v", list)
	}
	ok(t, id.Close())
	ok(t, ch.Close())
}

// TestRefused: rules that cannot apply to a device say why.
func TestRefused(t *testing.T) {
	lan := new(pipe.Switch)
	s := newStation(t, lan, "10.0.0.1/24")
	cq := must(s.dev.CreateCQ(16, nil))(t)
	ud := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: cq, RecvCQ: cq}))(t)
	for rule, want := range map[string]string{
		fmt.Sprintf("wc:qp=%d=RETRY_EXC_ERR", ud.Num()): "UD",
		"mr=revoked":     "no region",
		"cm=ADDR_CHANGE": "no ID",
	} {
		if got := s.refused(rule); !strings.Contains(got, want) {
			t.Errorf("%s: %s", rule, got)
		}
	}
	ok(t, ud.Close())
	ok(t, cq.Close())
}

// TestRace: rules come and go while QPs, CQs and regions are created, used and destroyed.
func TestRace(t *testing.T) {
	a, b := stations(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() {
		cancel()
		all.Wait()
	}()
	l := must(rdmacm.Listen(b.dev, ":0", nil))(t)
	defer l.Close()
	all.Go(func() {
		for ctx.Err() == nil {
			if c, err := l.Accept(ctx); err == nil {
				all.Go(func() {
					select {
					case <-c.Done():
					case <-ctx.Done():
					}
					_ = c.Close()
				})
			}
		}
	})
	to := netip.AddrPortFrom(b.addr, l.Addr().Port()).String()
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := rdmacm.Dial(ctx, a.dev, to, nil)
				if err != nil {
					continue
				}
				mr, err := c.PD().RegMR(make([]byte, 64), verbs.AccessLocalWrite)
				if err == nil {
					for i := range 10 {
						_ = c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 64)}})
						_ = c.QP().PostSend(&verbs.SendWR{WRID: uint64(i), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
							SGList: []verbs.SGE{mr.SGE(0, 8)}})
						_, _ = c.SendCQ().Poll(make([]verbs.WC, 4))
					}
				}
				for deadline := 0; c.Close() != nil && deadline < 100; deadline++ {
					continue
				}
				for mr != nil && errors.Is(mr.Close(), verbs.ErrBusy) {
					continue
				}
			}
		})
	}
	rules := []string{"wc:nth=2=RETRY_EXC_ERR", "event=QP_FATAL", "cq=2ms", "mr=revoked", "wc=1ms:*", "event=CQ_ERR", "post_send=ENOMEM:50%",
		"reg_mr=ENOMEM:50%", "cm=REJECTED", "event:nth=3=QP_FATAL", "event:after=1ms=QP_FATAL",
		"destroy_qp=EBUSY:10%", "wc:opcode=recv=LOC_LEN_ERR"}
	for i := range 1000 {
		if i%5 == 4 {
			a.faults.End()
		}
		_ = a.faults.Add(must(fault.Parse(rules[i%len(rules)]))(t)...) // some do not apply at the moment
		a.faults.List()
		a.faults.Sites()
		for len(a.traced) > 0 {
			<-a.traced
		}
		runtime.Gosched()
	}
	a.faults.End()
}

// TestSeen: a fault counts, and is traced, when a request completes with it. One that is flushed
// before, or fails anyway, has none.
func TestSeen(t *testing.T) {
	a, b := stations(t)
	ca, cb := dial(a, b)
	from, to := a.reg(8), b.reg(8)
	for range 3 {
		ok(t, cb.QP().PostRecv(&verbs.RecvWR{}))
	}
	a.add("wc:opcode=write=RETRY_EXC_ERR:*")
	b.add("wc:opcode=recv=LOC_LEN_ERR:*") // comes too late for these
	wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{from.SGE(0, 1)}, RemoteAddr: to.Addr(), RKey: to.RKey()}
	ok(t, ca.QP().PostSend(wr, wr, wr))
	wantStatus(t, completions(t, ca.SendCQ(), 3), verbs.WCRetryExcErr, verbs.WCWRFlushErr, verbs.WCWRFlushErr)
	post(t, ca, from, to, 2) // in ERR
	completions(t, ca.SendCQ(), 2)
	ok(t, cb.QP().PostRecv(&verbs.RecvWR{}))
	ok(t, cb.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	completions(t, cb.RecvCQ(), 4)
	for i, s := range []*station{a, b} {
		want := uint64(1 - i)
		if n := s.faults.Injected(); n != want || must(s.dev.HWCounters())(t)["injected_faults"] != want || len(s.traced) != int(want) {
			t.Errorf("station %d: %d faults were injected, %d traced, want %d", i, n, len(s.traced), want)
		}
	}
	if list := a.faults.List(); list[0].Seen != 3 {
		t.Errorf("%+v: in ERR nothing can fail", list)
	}
}

// TestNone: none ends the rules before it, also with rules after it.
func TestNone(t *testing.T) {
	s, _ := stations(t)
	s.add("reg_mr=ENOMEM:*")
	s.add("none;create_cq=EIO")
	s.reg(8)
	if list := s.faults.List(); len(list) != 1 || list[0].Rule != "create_cq=EIO" {
		t.Errorf("%+v", list)
	}
}
