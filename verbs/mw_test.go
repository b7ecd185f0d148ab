package verbs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// newMWRig returns a rig whose device supports 4 memory windows.
func newMWRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{l: newLoop()}
	r.l.attr.MaxMW = 4
	r.open(t, verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}, 64)
	r.moveTo(t, verbs.StateRTS)
	return r
}

func TestMWObjects(t *testing.T) {
	r := newMWRig(t)
	if _, err := r.pd.AllocMW(3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	var mws []*verbs.MW
	for i := range 4 {
		mws = append(mws, must(r.pd.AllocMW(verbs.MWType(1+i%2)))(t))
	}
	if _, err := r.pd.AllocMW(1); !errors.Is(err, verbs.ErrNoMemory) || !strings.Contains(err.Error(), "MaxMW of 4") {
		t.Errorf("got %v", err)
	}
	if mws[1].Type() != verbs.MWType2 || mws[1].PD() != r.pd {
		t.Error("wrong attributes")
	}
	check(t, r.qp.Close())
	if err := r.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	for _, mw := range mws {
		check(t, mw.Close())
		if err := mw.Close(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("twice: %v", err)
		}
	}
	check(t, r.pd.Close())
	if _, err := r.pd.AllocMW(1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestIncRKey(t *testing.T) {
	for in, want := range map[uint32]uint32{0x12345600: 0x12345601, 0x123456ff: 0x12345600, 0xffffffff: 0xffffff00} {
		if got := verbs.IncRKey(in); got != want {
			t.Errorf("%#x → %#x, want %#x", in, got, want)
		}
	}
}

// TestPostBind: the provider gets the posted requests, and the window has its new key immediately.
func TestPostBind(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessMWBind))(t)
	info := verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteRead}
	one, two := must(r.pd.AllocMW(verbs.MWType1))(t), must(r.pd.AllocMW(verbs.MWType2))(t)
	key := verbs.IncRKey(one.RKey())
	check(t, r.qp.BindMW(one, 5, verbs.SendSignaled, info))
	if one.RKey() != key {
		t.Errorf("rkey %#x, want %#x", one.RKey(), key)
	}
	bind := &verbs.MWBind{MW: two, RKey: verbs.IncRKey(two.RKey()), MWBindInfo: info}
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: 6, Opcode: verbs.BindMW, Bind: bind}))
	if two.RKey() != bind.RKey {
		t.Errorf("rkey %#x, want %#x", two.RKey(), bind.RKey)
	}
	bind.Length = 1 // does not change the posted copy
	r.lq.locked(func() {
		a, b := r.lq.Send(0), r.lq.Send(1)
		if a.WRID != 5 || a.Opcode != verbs.BindMW || a.Bind.MW != one || a.Bind.RKey != key || a.Bind.MWBindInfo != info {
			t.Errorf("got %+v", a)
		}
		if b.WRID != 6 || b.Bind.MW != two || b.Bind.MWBindInfo != info {
			t.Errorf("got %+v", b)
		}
		r.lq.CompleteSend(verbs.WCSuccess, 0)
	})
	if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].Opcode != verbs.WCBindMW {
		t.Errorf("got %+v", wcs)
	}
}

// TestBindUsesLowerBits: the window's new key has only the lower 8 bits of the requested key. A
// rejected list restores the window's previous key.
func TestBindUsesLowerBits(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessMWBind))(t)
	info := verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteRead}
	mw := must(r.pd.AllocMW(verbs.MWType2))(t)
	index := mw.RKey() &^ 0xff
	for i, key := range []uint32{^mw.RKey(), 0x400, mw.RKey(), index | 0x77} {
		bind := &verbs.MWBind{MW: mw, RKey: key, MWBindInfo: info}
		check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.BindMW, Bind: bind}))
		want := index | key&0xff
		if mw.RKey() != want || bind.RKey != key {
			t.Errorf("requested %#x: the window has %#x, want %#x; the request has %#x", key, mw.RKey(), want, bind.RKey)
		}
		r.lq.locked(func() {
			if got := r.lq.Send(i).Bind.RKey; got != want {
				t.Errorf("the provider has %#x, want %#x", got, want)
			}
		})
	}
	bind := func(mw *verbs.MW) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.BindMW, Bind: &verbs.MWBind{MW: mw, RKey: 0x12345678, MWBindInfo: info}}
	}
	if err := r.qp.PostSendAll(sequence(bind(mw), bind(nil))); err == nil || mw.RKey() != index|0x77 {
		t.Errorf("%v; the window has %#x", err, mw.RKey())
	}
}

func TestPostBindRejects(t *testing.T) {
	r := newMWRig(t)
	other := newMWRig(t)
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessMWBind))(t)
	foreign := must(other.pd.RegMR(make([]byte, 64), verbs.AccessMWBind))(t)
	one, two := must(r.pd.AllocMW(verbs.MWType1))(t), must(r.pd.AllocMW(verbs.MWType2))(t)
	dead := must(r.pd.AllocMW(verbs.MWType2))(t)
	check(t, dead.Close())
	for _, c := range []struct {
		want string
		wr   verbs.SendWR
	}{
		{"without Bind", verbs.SendWR{}},
		{"type 1", verbs.SendWR{Bind: &verbs.MWBind{MW: one}}},
		{"closed", verbs.SendWR{Bind: &verbs.MWBind{MW: dead}}},
		{"without an MR", verbs.SendWR{Bind: &verbs.MWBind{MW: two, RKey: two.RKey()}}},
		{"another device", verbs.SendWR{Bind: &verbs.MWBind{MW: two, RKey: two.RKey(), MWBindInfo: verbs.MWBindInfo{MR: foreign}}}},
		{"LOCAL_WRITE", verbs.SendWR{Bind: &verbs.MWBind{MW: two, RKey: two.RKey(), MWBindInfo: verbs.MWBindInfo{MR: mr,
			Access: verbs.AccessLocalWrite}}}},
		{"no SGList", verbs.SendWR{SGList: make([]verbs.SGE, 1), Bind: &verbs.MWBind{MW: two, RKey: two.RKey(),
			MWBindInfo: verbs.MWBindInfo{MR: mr}}}},
		{"no inline", verbs.SendWR{Flags: verbs.SendInline, Bind: &verbs.MWBind{MW: two, RKey: two.RKey(),
			MWBindInfo: verbs.MWBindInfo{MR: mr}}}},
	} {
		c.wr.Opcode = verbs.BindMW
		if err := r.qp.PostSend(&c.wr); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	for _, mw := range []*verbs.MW{nil, two} {
		if err := r.qp.BindMW(mw, 0, 0, verbs.MWBindInfo{MR: mr}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("BindMW of %v: %v", mw, err)
		}
	}
	zero := verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 1, Access: verbs.AccessZeroBased}
	if err := r.qp.BindMW(one, 0, 0, zero); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("BindMW of type 1, zero-based: %v", err)
	}
}
