package verbs_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// sequence returns a function for PostSendAll that returns the requests one by one, all in the same
// structure.
func sequence(wrs ...verbs.SendWR) func() *verbs.SendWR {
	var wr verbs.SendWR
	return func() *verbs.SendWR {
		if len(wrs) == 0 {
			return nil
		}
		wr, wrs = wrs[0], wrs[1:]
		return &wr
	}
}

func TestPostSendAll(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessMWBind))(t)
	mw := must(r.pd.AllocMW(verbs.MWType2))(t)
	data := []byte("inline")
	bind := &verbs.MWBind{MW: mw, RKey: verbs.IncRKey(mw.RKey()), MWBindInfo: verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 4}}
	want := []verbs.SendWR{
		{WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: 7, RemoteAddr: 8,
			SGList: []verbs.SGE{mr.SGE(0, 10), mr.SGE(20, 5)}},
		{WRID: 2, Opcode: verbs.SendWithImm, Flags: verbs.SendInline, ImmData: 9, InlineData: data},
		{WRID: 3, Opcode: verbs.AtomicCmpAndSwp, RKey: 7, RemoteAddr: 16, CompareAdd: 4, Swap: 5, SGList: []verbs.SGE{mr.SGE(0, 8)}},
		{WRID: 4, Opcode: verbs.BindMW, Bind: bind},
		{WRID: 5, Opcode: verbs.LocalInv, InvalidateRKey: 11},
	}
	check(t, r.qp.PostSendAll(sequence(want...)))
	data[0] = 'X'
	r.lq.locked(func() {
		if r.lq.SendLen() != len(want) || r.lq.doorbells != 1 {
			t.Fatalf("%d requests, %d doorbells", r.lq.SendLen(), r.lq.doorbells)
		}
		for i, w := range want {
			g := r.lq.Send(i)
			same := g.WRID == w.WRID && g.Opcode == w.Opcode && g.Flags == w.Flags && slices.Equal(g.SGList, w.SGList)
			same = same && g.RKey == w.RKey && g.RemoteAddr == w.RemoteAddr && g.InvalidateRKey == w.InvalidateRKey
			if !same || g.ImmData != w.ImmData || g.CompareAdd != w.CompareAdd || g.Swap != w.Swap {
				t.Errorf("request %d: %+v, want %+v", i, g, w)
			}
		}
		if g := r.lq.Send(0); g.Length() != 15 {
			t.Errorf("got %+v", g)
		}
		if g := r.lq.Send(1); string(g.Inline()) != "inline" {
			t.Errorf("inline %q", g.Inline())
		}
		if g := r.lq.Send(3); g.Bind.MW != mw || g.Bind.Length != 4 {
			t.Errorf("got %+v", g.Bind)
		}
	})
	check(t, r.qp.PostSendAll(sequence()))
}

// TestPostSendAllOrNothing: after a rejected request or a panic, the queue and the windows are
// unchanged, and the QP is unlocked.
func TestPostSendAllOrNothing(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	mr := must(r.pd.RegMR(make([]byte, 64), verbs.AccessMWBind))(t)
	mw := must(r.pd.AllocMW(verbs.MWType2))(t)
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: 1}))
	key := mw.RKey()
	first := []verbs.SendWR{
		{Opcode: verbs.Send},
		{Opcode: verbs.BindMW, Bind: &verbs.MWBind{
			MW: mw, RKey: verbs.IncRKey(key), MWBindInfo: verbs.MWBindInfo{MR: mr, Addr: mr.Addr(), Length: 1}}},
	}
	for _, c := range []struct {
		want string
		last []verbs.SendWR
	}{
		{"SGList of 5", []verbs.SendWR{{Opcode: verbs.Send, SGList: make([]verbs.SGE, 5)}}},
		{"inline length 65", []verbs.SendWR{{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: make([]byte, 65)}}},
		{"READ", []verbs.SendWR{{Opcode: verbs.RDMARead, Flags: verbs.SendInline, InlineData: make([]byte, 1)}}},
		{"has no inline data", []verbs.SendWR{{Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendInline, InlineData: make([]byte, 8)}}},
		{"MaxSendWR of 8", make([]verbs.SendWR, 6)},
	} {
		var pe *verbs.PostError
		err := r.qp.PostSendAll(sequence(slices.Concat(first, c.last)...))
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) || pe.Index < 2 {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	func() {
		defer func() { _ = recover() }()
		next := sequence(first...)
		_ = r.qp.PostSendAll(func() *verbs.SendWR {
			if wr := next(); wr != nil {
				return wr
			}
			panic("mine")
		})
	}()
	r.lq.locked(func() {
		if r.lq.SendLen() != 1 || r.lq.doorbells != 1 {
			t.Errorf("%d requests, %d doorbells", r.lq.SendLen(), r.lq.doorbells)
		}
	})
	if mw.RKey() != key {
		t.Errorf("the window's rkey is %#x, was %#x", mw.RKey(), key)
	}
	check(t, r.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrState))
	if err := r.qp.PostSendAll(sequence(first...)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("in RESET: %v", err)
	}
}

// InlineData needs no lkey, and is copied when the request is posted.
func TestInlineData(t *testing.T) {
	r := newMWRig(t)
	r.lq.hold = true
	data := []byte("inline")
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: data}))
	data[0] = 'X'
	r.lq.locked(func() {
		if g := r.lq.Send(0); string(g.Inline()) != "inline" || len(g.SGList) != 0 {
			t.Errorf("posted %q and %d SGEs", g.Inline(), len(g.SGList))
		}
	})
}

func TestRegMREx(t *testing.T) {
	r := newMWRig(t)
	buf := make([]byte, 16)
	for _, c := range []struct {
		attr *verbs.MRInitAttr
		want string
	}{
		{nil, "no attributes"},
		{&verbs.MRInitAttr{File: os.Stdin, FileLength: 1, Buf: buf}, "cannot be combined with Buf or Mapped"},
		{&verbs.MRInitAttr{File: os.Stdin, FileLength: 1, Mapped: true}, "cannot be combined with Buf or Mapped"},
		{&verbs.MRInitAttr{Buf: buf, FileLength: 1}, "File is nil"},
		{&verbs.MRInitAttr{Buf: buf, FileOffset: 1}, "File is nil"},
	} {
		if _, err := r.pd.RegMREx(c.attr); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.attr, err, c.want)
		}
	}
	mr := must(r.pd.RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: new(uint64(1 << 40)), Access: verbs.AccessLocalWrite, Mapped: true}))(t)
	if b, ok := mr.Bytes(1<<40+4, 8); !ok || &b[0] != &buf[4] || !registered(mr).BeginAccess() {
		t.Errorf("Bytes is %v, BeginAccess %v", ok, registered(mr).BeginAccess())
	}
	check(t, mr.Close())

	none := must(r.pd.RegMREx(&verbs.MRInitAttr{Buf: buf[:0], IOVA: new(uint64(0)), Access: verbs.AccessLocalWrite, Mapped: true}))(t)
	if b, ok := none.Bytes(0, 0); !ok || len(b) != 0 {
		t.Errorf("0 bytes of an empty region are %v, %v", b, ok)
	}
	if b, ok := none.Bytes(0, 1); ok {
		t.Errorf("an empty region has %v", b)
	}
	if err := none.Rereg(verbs.ReregAccess, nil, nil, 0); err != nil {
		t.Error(err)
	}
	check(t, none.Close())
}
