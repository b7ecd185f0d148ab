package verbs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

func TestBuilder(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessMWBind))(t)
	mw := must(r.pd.AllocMW(verbs.MWType2))(t)
	b := r.qp.Start()
	b.ID, b.Flags = 1, verbs.SendSignaled
	b.RDMAWrite(7, 8)
	b.SetSGE(mr.SGE(0, 10), mr.SGE(20, 5))
	b.ID, b.Flags = 2, 0
	b.SendImm(9)
	data := []byte("inline")
	b.SetInline(data)
	b.ID = 3
	b.AtomicCmpSwp(7, 16, 4, 5)
	b.SetSGE(mr.SGE(0, 8))
	b.AtomicFetchAdd(7, 16, 6)
	b.SetSGE(mr.SGE(0, 8))
	b.BindMW(mw, verbs.IncRKey(mw.RKey()), verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 4})
	b.LocalInv(11)
	b.SendInv(12)
	check(t, b.Complete())
	data[0] = 'X'
	want := []verbs.SendWR{
		{ID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: 7, RemoteAddr: 8},
		{ID: 2, Opcode: verbs.SendWithImm, Flags: verbs.SendInline, ImmData: 9},
		{ID: 3, Opcode: verbs.AtomicCmpAndSwp, RKey: 7, RemoteAddr: 16, CompareAdd: 4, Swap: 5},
		{ID: 3, Opcode: verbs.AtomicFetchAndAdd, RKey: 7, RemoteAddr: 16, CompareAdd: 6},
		{ID: 3, Opcode: verbs.BindMW},
		{ID: 3, Opcode: verbs.LocalInv, InvalidateRKey: 11},
		{ID: 3, Opcode: verbs.SendWithInv, InvalidateRKey: 12},
	}
	r.lq.locked(func() {
		if r.lq.SendLen() != len(want) || r.lq.doorbells != 1 {
			t.Fatalf("%d requests, %d doorbells", r.lq.SendLen(), r.lq.doorbells)
		}
		for i, w := range want {
			g := r.lq.Send(i)
			if g.ID != w.ID || g.Opcode != w.Opcode || g.RKey != w.RKey || g.RemoteAddr != w.RemoteAddr || g.ImmData != w.ImmData ||
				g.CompareAdd != w.CompareAdd || g.Swap != w.Swap || g.InvalidateRKey != w.InvalidateRKey {
				t.Errorf("request %d: %+v, want %+v", i, g, w)
			}
		}
		if g := r.lq.Send(0); g.Length() != 15 || len(g.SGList) != 2 || g.Flags != verbs.SendSignaled {
			t.Errorf("got %+v", g)
		}
		if g := r.lq.Send(1); string(g.Inline()) != "inline" {
			t.Errorf("inline %q", g.Inline())
		}
		if g := r.lq.Send(4); g.Bind.MW != mw || g.Bind.Length != 4 {
			t.Errorf("got %+v", g.Bind)
		}
	})
}

// TestBuilderAllOrNothing: Abort, and a request that is rejected, leave the queue and the windows as they were.
func TestBuilderAllOrNothing(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessMWBind))(t)
	mw := must(r.pd.AllocMW(verbs.MWType2))(t)
	check(t, r.qp.PostSend(&verbs.SendWR{ID: 1}))
	key := mw.RKey()
	build := func(last func(b *verbs.Builder)) verbs.Builder {
		b := r.qp.Start()
		b.Send()
		b.BindMW(mw, verbs.IncRKey(key), verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 1})
		last(&b)
		return b
	}
	b := build((*verbs.Builder).Send)
	b.Abort()
	for _, c := range []struct {
		want string
		last func(b *verbs.Builder)
	}{
		{"SGList of 5", func(b *verbs.Builder) { b.Send(); b.SetSGE(make([]verbs.SGE, 5)...) }},
		{"inline length 65", func(b *verbs.Builder) { b.Send(); b.SetInline(make([]byte, 65)) }},
		{"READ", func(b *verbs.Builder) { b.RDMARead(1, 2); b.SetInline(make([]byte, 1)) }},
		{"has no inline data", func(b *verbs.Builder) { b.AtomicFetchAdd(1, 2, 3); b.SetInline(make([]byte, 8)) }},
		{"MaxSendWR of 8", func(b *verbs.Builder) {
			for range 6 {
				b.Send()
			}
		}},
	} {
		b := build(c.last)
		var pe *verbs.PostError
		if err := b.Complete(); !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) || pe.Index < 2 {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	r.lq.locked(func() {
		if r.lq.SendLen() != 1 || r.lq.doorbells != 1 {
			t.Errorf("%d requests, %d doorbells", r.lq.SendLen(), r.lq.doorbells)
		}
	})
	if mw.RKey() != key {
		t.Errorf("the window's rkey is %#x, was %#x", mw.RKey(), key)
	}
	check(t, r.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrState))
	b = r.qp.Start()
	b.Send()
	if err := b.Complete(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("in RESET: %v", err)
	}
}

// Data of InlineData needs no lkey, and is copied when the request is posted.
func TestInlineData(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	data := []byte("inline")
	check(t, r.qp.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: data}))
	data[0] = 'X'
	r.lq.locked(func() {
		if g := r.lq.Send(0); string(g.Inline()) != "inline" || len(g.SGList) != 0 {
			t.Errorf("posted %q and %d SGEs", g.Inline(), len(g.SGList))
		}
	})
}

func TestRegMappingIOVA(t *testing.T) {
	r := newMWRig(t)
	buf := make([]byte, 16)
	mr := must(r.pd.RegMappingIOVA(buf, 1<<40, verbs.AccessLocalWrite))(t)
	if b, ok := mr.Bytes(1<<40+4, 8); !ok || &b[0] != &buf[4] || !registered(mr).MayFault() {
		t.Errorf("Bytes is %v, MayFault %v", ok, registered(mr).MayFault())
	}
	check(t, mr.Dereg())

	none := must(r.pd.RegMappingIOVA(buf[:0], 0, verbs.AccessLocalWrite))(t)
	if b, ok := none.Bytes(0, 0); !ok || len(b) != 0 {
		t.Errorf("of a region of no bytes, no bytes are %v, %v", b, ok)
	}
	if b, ok := none.Bytes(0, 1); ok {
		t.Errorf("a region of no bytes has %v", b)
	}
	if err := none.Rereg(verbs.ReregAccess, nil, nil, 0); err != nil {
		t.Error(err)
	}
	check(t, none.Dereg())
}
