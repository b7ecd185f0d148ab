package fault_test

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/cable"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// station is a device with a PD. Faults hit it.
type station struct {
	t      testing.TB
	addr   netip.Addr
	dev    *verbs.Device
	pd     *verbs.PD
	faults *fault.Device
	traced chan trace.Event
}

const everyAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// newStation opens a device until the end of the test.
func newStation(t testing.TB, lan *pipe.Switch, addr string) *station {
	t.Helper()
	l := cable.New(lan.Port())
	host := must(netstack.New(l, &netstack.Config{Addrs: []string{addr}}))(t)
	s := &station{t: t, addr: netip.MustParsePrefix(addr).Addr(), traced: make(chan trace.Event, 1000)}
	s.dev = must(rdmatransport.Open(host, nil))(t)
	s.faults = must(fault.New(s.dev, &fault.Config{Ports: []fault.Port{l}, Addresses: []fault.Addresses{host.Interfaces()[0]},
		Trace: func(e trace.Event) {
			select {
			case s.traced <- e:
			default: // the test does not look
			}
		}}))(t)
	s.pd = must(s.dev.AllocPD())(t)
	t.Cleanup(func() {
		_ = s.pd.Close() // fails if the device is gone
		_ = s.dev.Close()
		_ = host.Close()
	})
	return s
}

// stations opens two devices on a network.
func stations(t testing.TB) (a, b *station) {
	lan := new(pipe.Switch)
	return newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
}

func (s *station) add(rules string) {
	s.t.Helper()
	ok(s.t, s.faults.Add(must(fault.Parse(rules))(s.t)...))
}

// refused checks that rules are refused with a text.
func (s *station) refused(rules string) string {
	s.t.Helper()
	err := s.faults.Add(must(fault.Parse(rules))(s.t)...)
	if err == nil {
		s.t.Errorf("%s applies", rules)
		return ""
	}
	return err.Error()
}

func (s *station) reg(n int) *verbs.MR {
	s.t.Helper()
	mr := must(s.pd.RegMR(make([]byte, n), everyAccess))(s.t)
	s.t.Cleanup(func() { _ = mr.Close() }) // the test may have closed it
	return mr
}

func (s *station) event(want verbs.AsyncEventType) verbs.AsyncEvent {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	e := must(s.dev.GetAsyncEvent(ctx))(s.t)
	if e.Type != want {
		s.t.Errorf("event %v, want %v", e.Type, want)
	}
	return e
}

// noEvent checks that no event is in the queue.
func (s *station) noEvent() {
	s.t.Helper()
	if e, err := s.dev.TryGetAsyncEvent(); !errors.Is(err, verbs.ErrAgain) {
		s.t.Errorf("event %v, error %v", e.Type, err)
	}
}

// dial connects two stations.
func dial(a, b *station) (onA, onB *rdmacm.Conn) {
	t := a.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	size := verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4}
	l := must(rdmacm.Listen(b.dev, ":0", &rdmacm.Config{PD: b.pd, Cap: size}))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		onB, err = l.Accept(ctx)
		accepted <- err
	}()
	to := netip.AddrPortFrom(b.addr, l.Addr().Port()).String()
	onA = must(rdmacm.Dial(ctx, a.dev, to, &rdmacm.Config{PD: a.pd, Cap: size}))(t)
	ok(t, <-accepted)
	t.Cleanup(func() {
		_ = onA.Close() // fails if the device is gone
		_ = onB.Close()
	})
	return onA, onB
}

// completions waits for n completions.
func completions(t testing.TB, cq *verbs.CQ, n int) (all []verbs.WC) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(all) < n {
		wcs := make([]verbs.WC, n-len(all))
		k, err := cq.Wait(ctx, wcs)
		ok(t, err)
		all = append(all, wcs[:k]...)
	}
	return all
}

func wantStatus(t testing.TB, all []verbs.WC, want ...verbs.WCStatus) {
	t.Helper()
	for i, w := range want {
		if all[i].Status != w {
			t.Errorf("completion %d of %d: %v, want %v", i, len(all), all[i].Status, w)
		}
	}
}

func wantErrno(t testing.TB, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
