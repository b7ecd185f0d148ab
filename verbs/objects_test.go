package verbs_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

func TestOpenQuery(t *testing.T) {
	if _, err := verbs.Open(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	r := newRig(t)
	if r.dev.Name() != "loop0" || r.dev.QueryDevice().MaxQP != 64 {
		t.Error("the attributes differ from the provider's")
	}
	for _, port := range []uint8{0, 3} {
		if _, err := r.dev.QueryPort(port); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if a := must(r.dev.QueryPort(2))(t); a.ActiveMTU != verbs.MTU1024 {
		t.Errorf("got %+v", a)
	}
	if e := must(r.dev.QueryGID(1, 0))(t); e.GID != localGID {
		t.Errorf("got %+v", e)
	}
	if _, err := r.dev.QueryGID(1, 1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// TestTeardown: an object cannot be closed while objects depend on it, or a second time.
func TestTeardown(t *testing.T) {
	r := newRig(t)
	mr := must(r.pd.RegMR(make([]byte, 1), 0))(t)
	busy := func(what string, f func() error) {
		t.Helper()
		if err := f(); !errors.Is(err, verbs.ErrBusy) || !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: got %v, want ErrBusy", what, err)
		}
	}
	gone := func(what string, f func() error) {
		t.Helper()
		check(t, f())
		if err := f(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s twice: got %v, want ErrClosed", what, err)
		}
	}
	busy("device", r.dev.Close)
	busy("PD", r.pd.Close)
	busy("CQ", r.cq.Close)
	busy("channel", r.ch.Close)
	gone("QP", r.qp.Close)
	if !r.lq.closed {
		t.Error("the provider's QP is not closed")
	}
	busy("PD with an MR", r.pd.Close)
	gone("MR", mr.Close)
	gone("PD", r.pd.Close)
	gone("CQ", r.cq.Close)
	gone("channel", r.ch.Close)
	gone("device", r.dev.Close)

	for what, err := range map[string]error{
		"query":    func() error { _, _, err := r.qp.Query(); return err }(),
		"modify":   r.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrState),
		"register": func() error { _, err := r.pd.RegMR(make([]byte, 1), 0); return err }(),
		"AllocPD":  func() error { _, err := r.dev.AllocPD(); return err }(),
		"channel":  func() error { _, err := r.dev.CreateCompChannel(); return err }(),
		"CQ":       func() error { _, err := r.dev.CreateCQ(1, nil); return err }(),
		"CQ on it": func() error { _, err := r.dev.CreateCQ(1, &verbs.CQInitAttr{Channel: r.ch}); return err }(),
		"QP": func() error {
			_, err := r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq})
			return err
		}(),
		"event": func() error { _, err := r.dev.GetAsyncEvent(t.Context()); return err }(),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", what, err)
		}
	}
}

func TestEitherCQIsBusy(t *testing.T) {
	r := newRig(t)
	send, recv := must(r.dev.CreateCQ(1, nil))(t), must(r.dev.CreateCQ(1, nil))(t)
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: send, RecvCQ: recv}))(t)
	for _, cq := range []*verbs.CQ{send, recv} {
		if err := cq.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
	}
	check(t, qp.Close())
	check(t, send.Close())
	check(t, recv.Close())
}

func TestLimits(t *testing.T) {
	r := newRig(t)
	full := func(what string, make func() error) {
		t.Helper()
		for range 100 {
			if err := make(); err != nil {
				if !errors.Is(err, verbs.ErrNoMemory) || !strings.Contains(err.Error(), what) {
					t.Errorf("got %v, want ErrNoMemory with %s", err, what)
				}
				return
			}
		}
		t.Errorf("%s has no effect", what)
	}
	full("MaxPD of 4", func() error { _, err := r.dev.AllocPD(); return err })
	full("MaxMR of 64", func() error { _, err := r.pd.RegMR(make([]byte, 1), 0); return err })
	full("MaxCQ of 64", func() error { _, err := r.dev.CreateCQ(1, nil); return err })
	full("MaxQP of 64", func() error {
		_, err := r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq})
		return err
	})
}

func TestCreateRejects(t *testing.T) {
	r, other := newRig(t), newRig(t)
	for _, cqe := range []int{-1, 0, 4097} {
		if _, err := r.dev.CreateCQ(cqe, nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("cqe %d: %v", cqe, err)
		}
	}
	for _, a := range []*verbs.CQInitAttr{{CompVector: 1}, {Channel: other.ch}} {
		if _, err := r.dev.CreateCQ(1, a); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
	}
	ok := verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}
	for _, c := range []struct {
		want string
		kind error
		set  func(*verbs.QPInitAttr)
	}{
		{"Type", verbs.ErrNotSupported, func(a *verbs.QPInitAttr) { a.Type = 0 }},
		{"Type invalid QP type 7", verbs.ErrNotSupported, func(a *verbs.QPInitAttr) { a.Type = 7 }},
		{"Type UD is not supported over iWARP", verbs.ErrNotSupported, func(a *verbs.QPInitAttr) {
			a.Type, a.Transport = verbs.UD, verbs.IWARP
		}},
		{"BlockSelfMcastLB", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.BlockSelfMcastLB = true }},
		{"SendCQ and RecvCQ", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.RecvCQ = nil }},
		{"another device", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.SendCQ = other.cq }},
		{"Cap.MaxSendWR 1025 is not in 0–1024", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = 1025 }},
		{"Cap.MaxRecvWR -1", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.Cap.MaxRecvWR = -1 }},
		{"Cap.MaxSendSGE 33", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = 33 }},
		{"Cap.MaxRecvSGE 33", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.Cap.MaxRecvSGE = 33 }},
		{"Cap.MaxInlineData 513", verbs.ErrInvalid, func(a *verbs.QPInitAttr) { a.Cap.MaxInlineData = 513 }},
	} {
		attr := ok
		c.set(&attr)
		if _, err := r.pd.CreateQP(&attr); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %v with %q", err, c.kind, c.want)
		}
	}
	if _, err := r.pd.CreateQP(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if err := r.qp.Modify(nil, 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestRegMRRejects(t *testing.T) {
	r := newRig(t)
	r.l.attr.MaxMRSize = 4
	small := must(verbs.Open(r.l))(t)
	pd := must(small.AllocPD())(t)
	for _, c := range []struct {
		n      int
		addr   uint64
		access verbs.Access
		kind   error
		want   string
	}{
		{5, 0, 0, verbs.ErrInvalid, "length 5 is more than the device's MaxMRSize of 4"},
		{4, math.MaxUint64 - 2, 0, verbs.ErrInvalid, "exceed 64 bits"},
		{4, 1, verbs.AccessZeroBased, verbs.ErrInvalid, "zero-based"},
		{4, 0, verbs.AccessRemoteWrite, verbs.ErrInvalid, "need LOCAL_WRITE"},
		{4, 0, verbs.AccessRemoteAtomic | verbs.AccessRemoteRead, verbs.ErrInvalid, "need LOCAL_WRITE"},
		{4, 0, 1 << 15, verbs.ErrInvalid, "0x8000"},
	} {
		_, err := pd.RegMREx(&verbs.MRInitAttr{Buf: make([]byte, c.n), IOVA: new(c.addr), Access: c.access})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %v with %q", err, c.kind, c.want)
		}
	}
	for _, ok := range []verbs.Access{0, verbs.AccessRemoteRead, verbs.AccessLocalWrite | verbs.AccessRemoteWrite |
		verbs.AccessRemoteAtomic, verbs.AccessRelaxedOrdering, verbs.AccessMWBind,
		verbs.AccessOnDemand, verbs.AccessHugeTLB} {
		must(pd.RegMR(make([]byte, 4), ok))(t)
	}
	must(pd.RegMREx(&verbs.MRInitAttr{Buf: make([]byte, 4), IOVA: new(uint64(math.MaxUint64 - 3))}))(t)
}

// TestEmptyRegion: a region of 0 bytes has keys, and gives no access to adjacent bytes.
func TestEmptyRegion(t *testing.T) {
	r := newRig(t)
	buf := make([]byte, 100)
	for _, empty := range [][]byte{nil, buf[50:50]} {
		mr := must(r.pd.RegMR(empty, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))(t)
		if _, ok := mr.Bytes(mr.Addr(), 0); !ok || mr.Length() != 0 || mr.LKey() == 0 || mr.RKey() == 0 {
			t.Errorf("%d bytes, keys %#x and %#x", mr.Length(), mr.LKey(), mr.RKey())
		}
		if _, ok := mr.Bytes(mr.Addr(), 1); ok {
			t.Error("the region contains a byte")
		}
		check(t, mr.Rereg(verbs.ReregTranslation, nil, buf, 0))
		check(t, mr.Rereg(verbs.ReregTranslation, nil, nil, 0))
		check(t, mr.Close())
	}
}

func TestMRRange(t *testing.T) {
	r := newRig(t)
	buf := make([]byte, 100)
	plain := must(r.pd.RegMR(buf, 0))(t)
	if plain.Addr() != uint64(uintptr(unsafe.Pointer(&buf[0]))) || plain.Length() != 100 || plain.PD() != r.pd {
		t.Errorf("address %#x, length %d", plain.Addr(), plain.Length())
	}
	zero := must(r.pd.RegMR(buf, verbs.AccessZeroBased))(t)
	if zero.Addr() != 0 {
		t.Errorf("zero-based region at %#x", zero.Addr())
	}
	high := must(r.pd.RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: new(uint64(math.MaxUint64 - 99))}))(t)
	for _, mr := range []*verbs.MR{plain, zero, high} {
		for _, c := range []struct {
			off, n uint64
			ok     bool
		}{
			{0, 0, true}, {0, 100, true}, {99, 1, true}, {100, 0, true},
			{0, 101, false}, {99, 2, false}, {100, 1, false}, {101, 0, false},
			{math.MaxUint64, 1, false}, {math.MaxUint64, 2, false}, {1, math.MaxUint64, false}, {50, math.MaxUint64 - 49, false},
		} {
			b, ok := mr.Bytes(mr.Addr()+c.off, c.n)
			if ok != c.ok || ok && (uint64(len(b)) != c.n || c.n > 0 && &b[0] != &buf[c.off]) {
				t.Errorf("at %#x: offset %d, length %d: %v, %d bytes", mr.Addr(), c.off, c.n, ok, len(b))
			}
		}
		for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 101}, {101, 1}, {math.MinInt, 1}, {0, math.MaxInt}} {
			s := mr.SGE(c[0], c[1])
			if _, ok := mr.Bytes(s.Addr, uint64(s.Length)); ok {
				t.Errorf("SGE(%d, %d) is within the region", c[0], c[1])
			}
		}
		if s := mr.SGE(10, 20); s != (verbs.SGE{Addr: mr.Addr() + 10, Length: 20, LKey: mr.LKey()}) {
			t.Errorf("got %+v", s)
		}
	}
}

// TestDeregWaits: an access that looked up the region before deregistration, under its QP's lock,
// ends before Close returns.
func TestDeregWaits(t *testing.T) {
	r := newRig(t)
	mr := must(r.pd.RegMR(make([]byte, 1), verbs.AccessLocalWrite))(t)
	var done atomic.Bool
	r.l.onDereg = func(*verbs.MR) {
		running := make(chan struct{})
		go r.lq.locked(func() {
			close(running)
			for range 1000 {
				mr.Buf()[0]++ // the race detector reports it if Close does not wait
				runtime.Gosched()
			}
			done.Store(true)
		})
		<-running
	}
	check(t, mr.Close())
	mr.Buf()[0] = 0
	if !done.Load() {
		t.Error("Close returned while the region was in use")
	}
}

func TestAsyncEvents(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTR)
	other := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	for range 2000 { // the number of queued events is bounded
		r.lq.locked(func() { r.lq.Event(verbs.EventCommEst) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	kept := 0
	for {
		e, err := r.dev.GetAsyncEvent(ctx)
		if err != nil {
			break
		}
		if kept++; e.Type != verbs.EventCommEst || e.QP != r.qp || e.PortNum != 1 {
			t.Errorf("got %+v", e)
		}
	}
	if kept != 16 {
		t.Errorf("%d events kept, want 16", kept)
	}
	r.lq.locked(func() { r.lq.Event(verbs.EventCommEst) })
	check(t, r.qp.Close())
	noEvent(t, r.dev)
	r.lq = r.l.qps[other.Num()]
	r.lq.locked(func() { r.lq.Event(verbs.EventQPAccessErr) })
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventQPAccessErr || e.QP != other {
		t.Errorf("got %+v", e)
	}
}

// TestAsyncEventsOfMany: when a great many QPs fail at the same time, none of their events is lost,
// even with many other events in the queue. A program can wait for all of these events and then
// destroy the SRQ.
func TestAsyncEventsOfMany(t *testing.T) {
	const count = 3000
	r := &rig{l: newLoop()}
	r.l.attr.MaxQP = count + 1
	r.open(t, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, 1)
	for range 2000 {
		r.l.event(verbs.EventPortErr, 1)
	}
	srq := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}}))(t)
	waiting := make(map[*verbs.QP]bool)
	for range count {
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, SRQ: srq}))(t)
		(&rig{qp: qp}).moveTo(t, verbs.StateInit)
		waiting[qp] = true
	}
	var hook tokens
	r.dev.OnAsyncEvent(hook.add)
	for qp := range waiting {
		check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	}
	closed := 0
	for qp := range waiting { // in another order
		check(t, qp.Close())
		delete(waiting, qp)
		if closed++; closed == 10 {
			break
		}
	}
	ports, taken := 0, 0
	for ; ; taken++ {
		e, err := r.dev.TryGetAsyncEvent()
		if err != nil {
			break
		}
		check(t, e.Ack())
		if e.QP == nil {
			ports++
			continue
		}
		if e.Type != verbs.EventQPLastWQEReached || !waiting[e.QP] {
			t.Fatalf("unexpected %v of a QP", e.Type)
		}
		check(t, e.QP.Close())
		delete(waiting, e.QP)
	}
	if ports != 1024 || len(waiting) > 0 {
		t.Errorf("%d events of ports, want 1024; %d of QPs are lost", ports, len(waiting))
	}
	hook.want(t, "events that were taken", taken)
	for qp := range waiting {
		check(t, qp.Close())
	}
	check(t, srq.Close())
}

// TestAsyncEventsOfClosed: events of closed objects use no memory, even after an event that
// stays in the queue.
func TestAsyncEventsOfClosed(t *testing.T) {
	const rounds, limit = 20_000, 256 << 10
	r := newRig(t)
	r.l.event(verbs.EventPortErr, 1)
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	for range rounds {
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
		lq := r.l.qps[qp.Num()]
		lq.locked(func() { lq.Event(verbs.EventCommEst) })
		check(t, qp.Close())
		delete(r.l.qps, qp.Num())
	}
	if grown := heap() - before; grown > limit {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if e := must(r.dev.TryGetAsyncEvent())(t); e.Type != verbs.EventPortErr {
		t.Errorf("got %+v", e)
	}
	noEvent(t, r.dev)
}

// TestAsyncEventsOfSurvivors: when many objects with events are closed, the events of the others
// are returned in order.
func TestAsyncEventsOfSurvivors(t *testing.T) {
	const count = 600
	for name, order := range map[string]func([]*verbs.QP){
		"oldest first": func([]*verbs.QP) {}, "newest first": slices.Reverse[[]*verbs.QP],
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{l: newLoop()}
			r.l.attr.MaxQP = count + 1
			r.open(t, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, 1)
			var all, closed, survivors []*verbs.QP
			for i := range count {
				qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
				if all = append(all, qp); i%3 == 1 {
					survivors = append(survivors, qp)
				} else {
					closed = append(closed, qp)
				}
			}
			types := []verbs.AsyncEventType{verbs.EventCommEst, verbs.EventSQDrained}
			for _, what := range types {
				for _, qp := range all {
					lq := r.l.qps[qp.Num()]
					lq.locked(func() { lq.Event(what) })
				}
			}
			order(closed)
			for _, qp := range closed {
				check(t, qp.Close())
			}
			for _, what := range types {
				for i, qp := range survivors {
					if e := must(r.dev.TryGetAsyncEvent())(t); e.Type != what || e.QP != qp {
						t.Fatalf("got %+v, want %v of survivor %d", e, what, i)
					}
				}
			}
			noEvent(t, r.dev)
		})
	}
}
