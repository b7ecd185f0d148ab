package memory_test

import (
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// bindTo tries to bind and returns the status.
func bindTo(r *memory.Regions, qp verbs.QPHandle, mw *verbs.MW, rkey uint32, mr *verbs.MR,
	off, n uint64, access verbs.Access) verbs.WCStatus {
	b := &verbs.MWBind{MW: mw, RKey: rkey, MWBindInfo: verbs.MWBindInfo{MR: mr, Length: n, Access: access}}
	if mr != nil {
		b.Addr = mr.Addr() + off
	}
	return r.Bind(qp, b)
}

func newMW(t *testing.T, pd *verbs.PD, typ verbs.MWType) *verbs.MW {
	t.Helper()
	mw, err := pd.AllocMW(typ)
	if err != nil {
		t.Fatal(err)
	}
	return mw
}

func TestBindRefuses(t *testing.T) {
	r, pd, other := setup(t, nil)
	qp := newQP(t, pd)
	mr := register(t, pd, make([]byte, 100), verbs.AccessLocalWrite|verbs.AccessMWBind)
	noBind := register(t, pd, make([]byte, 100), all)
	readOnly := register(t, pd, make([]byte, 100), verbs.AccessMWBind)
	foreign := register(t, other, make([]byte, 100), verbs.AccessLocalWrite|verbs.AccessMWBind)
	gone := register(t, pd, make([]byte, 100), verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	null, err := pd.AllocNullMR()
	if err != nil {
		t.Fatal(err)
	}
	const write, read = verbs.AccessRemoteWrite, verbs.AccessRemoteRead
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		mw, othersMW := newMW(t, pd, typ), newMW(t, other, typ)
		key := verbs.IncRKey(mw.RKey())
		for _, c := range []struct {
			name   string
			mw     *verbs.MW
			rkey   uint32
			mr     *verbs.MR
			off, n uint64
			access verbs.Access
		}{
			{"another window's key", mw, key + 256, mr, 0, 100, write},
			{"a region's key", mw, noBind.RKey(), mr, 0, 100, write},
			{"a window of another PD", othersMW, verbs.IncRKey(othersMW.RKey()), mr, 0, 100, write},
			{"a region of another PD", mw, key, foreign, 0, 100, write},
			{"a region without MW_BIND", mw, key, noBind, 0, 100, read},
			{"to write where only reading is allowed", mw, key, readOnly, 0, 100, write},
			{"atomics where only reading is allowed", mw, key, readOnly, 0, 100, verbs.AccessRemoteAtomic},
			{"one byte too many", mw, key, mr, 0, 101, write},
			{"one byte before", mw, key, mr, 1<<64 - 1, 2, write},
			{"a range that wraps", mw, key, mr, 1, 1<<64 - 1, write},
			{"a deregistered region", mw, key, gone, 0, 100, write},
			{"a null region", mw, key, null, 0, 1, read},
		} {
			if s := bindTo(r, qp, c.mw, c.rkey, c.mr, c.off, c.n, c.access); s != verbs.WCMWBindErr {
				t.Errorf("%v, %s: %v", typ, c.name, s)
			}
		}
		if s := bindTo(r, qp, mw, key, readOnly, 0, 100, read); s != verbs.WCSuccess {
			t.Errorf("%v: %v", typ, s)
		}
		if err := mw.Close(); err != nil {
			t.Fatal(err)
		}
		if s := bindTo(r, qp, mw, key+1, mr, 0, 100, write); s != verbs.WCMWBindErr {
			t.Errorf("%v, gone: %v", typ, s)
		}
	}
	for _, mr := range []*verbs.MR{mr, noBind, readOnly, foreign} { // no window holds them
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestThroughWindow(t *testing.T) {
	r, pd, other := setup(t, nil)
	const write, read = verbs.AccessRemoteWrite, verbs.AccessRemoteRead
	qp, second, foreign := newQP(t, pd), newQP(t, pd), newQP(t, other)
	buf := pattern(100)
	mr := register(t, pd, buf, verbs.AccessLocalWrite|verbs.AccessMWBind)
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		for _, zero := range []verbs.Access{0, verbs.AccessZeroBased} {
			mw := newMW(t, pd, typ)
			if s := bindTo(r, qp, mw, verbs.IncRKey(mw.RKey()), mr, 10, 50, read|zero); s != verbs.WCSuccess {
				t.Fatal(s)
			}
			key, base := verbs.IncRKey(mw.RKey()), mr.Addr()+10
			if zero != 0 {
				base = 0
			}
			for _, c := range []struct {
				name   string
				qp     verbs.QPHandle
				rkey   uint32
				off, n uint64
				need   verbs.Access
				want   memory.Denial
			}{
				{"all of it", qp, key, 0, 50, read, memory.Allowed},
				{"the last byte", qp, key, 49, 1, read, memory.Allowed},
				{"behind", qp, key, 50, 1, read, memory.OutOfRange},
				{"one too many", qp, key, 1, 50, read, memory.OutOfRange},
				{"before", qp, key, 1<<64 - 1, 1, read, memory.OutOfRange},
				{"wraps", qp, key, 1, 1<<64 - 1, read, memory.OutOfRange},
				{"no right", qp, key, 0, 50, write, memory.NoRight},
				{"old key", qp, key - 1, 0, 50, read, memory.UnknownKey},
				{"no window", qp, key ^ 1<<20, 0, 50, read, memory.UnknownKey},
				{"other PD", foreign, key, 0, 50, read, memory.OtherPD},
				{"other QP", second, key, 0, 50, read, map[verbs.MWType]memory.Denial{verbs.MWType1: memory.Allowed,
					verbs.MWType2: memory.OtherPD}[typ]},
			} {
				s, d := r.Remote(c.qp, c.rkey, base+c.off, c.n, c.need)
				if d != c.want {
					t.Errorf("%v, %s: %v, want %v", typ, c.name, d, c.want)
				}
				if b, _ := s.Bytes(); d == memory.Allowed && (uint64(len(b)) != c.n || &b[0] != &buf[10+c.off]) {
					t.Errorf("%v, %s: not the bytes named", typ, c.name)
				}
			}
			if err := mw.Close(); err != nil {
				t.Fatal(err)
			}
			if _, d := r.Remote(qp, key, base, 1, read); d != memory.UnknownKey {
				t.Errorf("%v, deallocated: %v", typ, d)
			}
		}
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

// TestWindowLife checks that a window of type 1 may be bound again. One of type 2 must be
// invalidated by its QP first.
func TestWindowLife(t *testing.T) {
	r, pd, _ := setup(t, nil)
	const read = verbs.AccessRemoteRead
	qp, second := newQP(t, pd), newQP(t, pd)
	a := register(t, pd, make([]byte, 100), verbs.AccessMWBind)
	b := register(t, pd, make([]byte, 100), verbs.AccessMWBind)
	opens := func(what string, key uint32, mr *verbs.MR, want bool) {
		t.Helper()
		if _, d := r.Remote(qp, key, mr.Addr(), 1, read); (d == memory.Allowed) != want {
			t.Errorf("%s: %v", what, d)
		}
	}
	bind := func(mw *verbs.MW, key uint32, mr *verbs.MR, n uint64, want verbs.WCStatus) {
		t.Helper()
		if s := bindTo(r, qp, mw, key, mr, 0, n, read); s != want {
			t.Errorf("bind: %v, want %v", s, want)
		}
	}

	one := newMW(t, pd, verbs.MWType1)
	k := one.RKey()
	bind(one, k+1, a, 100, verbs.WCSuccess)
	opens("bound", k+1, a, true)
	if err := a.Close(); err == nil {
		t.Error("a region with a window was deregistered")
	}
	bind(one, k+2, b, 100, verbs.WCSuccess)
	opens("bound elsewhere", k+1, a, false)
	opens("bound elsewhere", k+2, b, true)
	if d := r.InvalidateWindow(qp, k+2); d != memory.NoRight {
		t.Errorf("invalidating type 1: %v", d)
	}
	bind(one, k+3, nil, 0, verbs.WCSuccess)
	opens("zero-length bind", k+2, b, false)
	opens("zero-length bind", k+3, b, false)

	two := newMW(t, pd, verbs.MWType2)
	k = two.RKey()
	bind(two, k+1, a, 0, verbs.WCMWBindErr)
	bind(two, k+1, a, 100, verbs.WCSuccess)
	bind(two, k+2, a, 100, verbs.WCMWBindErr)
	opens("still bound", k+1, a, true)
	for what, d := range map[string]memory.Denial{"another QP": r.InvalidateWindow(second, k+1), "another key": r.InvalidateWindow(qp, k+2),
		"a region": r.InvalidateWindow(qp, b.RKey())} {
		if d == memory.Allowed {
			t.Errorf("%s invalidated", what)
		}
	}
	if d := r.InvalidateWindow(qp, k+1); d != memory.Allowed {
		t.Error(d)
	}
	if d := r.InvalidateWindow(qp, k+1); d != memory.UnknownKey {
		t.Errorf("twice: %v", d)
	}
	opens("invalidated", k+1, a, false)
	// The key is the caller's: it may be the window's previous one.
	bind(two, k+1, a, 100, verbs.WCSuccess)
	opens("bound with the same key", k+1, a, true)
	if d := r.InvalidateWindow(qp, k+1); d != memory.Allowed {
		t.Error(d)
	}
	bind(two, k+2, a, 100, verbs.WCSuccess)
	if d := r.Invalidate(qp, a.RKey()); d != memory.NoRight {
		t.Errorf("the region under the window: %v", d)
	}
	if d := r.Invalidate(qp, k+2); d != memory.Allowed {
		t.Error(d)
	}
	if d := r.Invalidate(qp, a.RKey()); d != memory.Allowed {
		t.Error(d)
	}
	for _, mr := range []*verbs.MR{a, b} {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNullMR(t *testing.T) {
	r, pd, _ := setup(t, nil)
	null, err := pd.AllocNullMR()
	if err != nil {
		t.Fatal(err)
	}
	mr := register(t, pd, pattern(64), verbs.AccessLocalWrite)
	const n = 200 << 10
	sgl := []verbs.SGE{mr.SGE(0, 8), {Addr: 1<<64 - 5, Length: n, LKey: null.LKey()}, mr.SGE(8, 8)}
	got := pattern(n + 16)
	if s := r.Gather(got, pd, sgl, 0, nil); s != verbs.WCSuccess {
		t.Fatal(s)
	}
	for i, v := range got[8 : 8+n] {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	src := pattern(n + 16)
	if s := r.Scatter(src, pd, sgl, 0); s != verbs.WCSuccess {
		t.Fatal(s)
	}
	if string(mr.Buf()[:8]) != string(src[:8]) || string(mr.Buf()[8:16]) != string(src[8+n:]) {
		t.Error("the parts around a null region's part are wrong")
	}
	if s := r.Gather(got[:8], pd, sgl[1:2], 0, nil); s != verbs.WCSuccess || got[0] != 0 {
		t.Error("a null region kept written data")
	}
	list, _, s := r.Pieces(nil, n, pd, sgl[1:2], 0)
	total := 0
	for _, b := range list {
		total += len(b)
	}
	if s != verbs.WCSuccess || total != n {
		t.Errorf("%v, %d bytes", s, total)
	}
}
