package verbs_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestCompCntr: the values of a completion counter, and what can be attached to which QP.
func TestCompCntr(t *testing.T) {
	r := newRig(t)
	if caps := r.dev.QueryCompCntrCaps(); caps.MaxValue != 1<<64-1 || caps.MaxCounters < 1 || caps.Ops != 1<<6-1 {
		t.Errorf("%+v", caps)
	}
	if _, err := r.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Type: 2}); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("a counter of an unknown type: %v", err)
	}
	var count atomic.Uint64
	count.Store(7)
	c := must(r.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Count: &count}))(t)
	bytes := must(r.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Type: verbs.CompCntrBytes}))(t)
	c.Add(1<<64 - 1)
	c.Add(2) // after the largest value comes 0
	c.AddErr(5)
	if c.Count() != 1 || count.Load() != 1 || c.ErrCount() != 5 {
		t.Errorf("%d, in memory %d, and %d errors", c.Count(), count.Load(), c.ErrCount())
	}
	c.Set(10)
	c.SetErr(0)

	other := newRig(t)
	for _, a := range []struct {
		c    *verbs.CompCntr
		ops  verbs.CompCntrOps
		want error
	}{
		{nil, verbs.CompCntrSend, verbs.ErrInvalid}, {c, 0, verbs.ErrInvalid}, {c, 1 << 6, verbs.ErrNotSupported},
		{must(other.dev.CreateCompCntr(nil))(t), verbs.CompCntrSend, verbs.ErrInvalid},
		{c, verbs.CompCntrSend | verbs.CompCntrRecv, nil},
		{bytes, verbs.CompCntrRecv | verbs.CompCntrRead, verbs.ErrBusy},
		{bytes, verbs.CompCntrWrite, nil},
	} {
		if err := r.qp.AttachCompCntr(a.c, a.ops); !errors.Is(err, a.want) {
			t.Errorf("attached to %v: %v, want %v", a.ops, err, a.want)
		}
	}
	r.moveTo(t, verbs.StateRTS)
	if err := r.qp.AttachCompCntr(bytes, verbs.CompCntrRead); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("attached in RTS: %v", err)
	}

	mr := must(r.pd.RegMR(make([]byte, 100), verbs.AccessLocalWrite))(t)
	list := []verbs.SGE{mr.SGE(0, 60), mr.SGE(0, 40)}
	for _, op := range []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead} {
		check(t, r.qp.PostSend(&verbs.SendWR{Opcode: op, SGList: list}))
	}
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendInline, InlineData: make([]byte, 5)}))
	check(t, r.qp.PostRecv(&verbs.RecvWR{}))
	r.lq.locked(func() {
		r.lq.CountRemote(verbs.CompCntrRemoteWrite, 1, 100) // it has no counter
		r.lq.CountRemoteError(verbs.CompCntrRemoteRead)
		r.lq.Recv()
		r.lq.CompleteRecv(&verbs.WC{Status: verbs.WCLocLenErr}, false)
	})
	got := []uint64{c.Count(), c.ErrCount(), bytes.Count(), bytes.ErrCount()}
	if want := []uint64{12, 1, 205, 0}; !slices.Equal(got, want) {
		t.Errorf("counted %d, want %d", got, want)
	}

	for _, x := range []*verbs.CompCntr{c, bytes} {
		if err := x.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close while attached: %v", err)
		}
	}
	check(t, r.qp.Close())
	check(t, c.Close())
	if err := c.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	if err := qp.AttachCompCntr(c, verbs.CompCntrSend); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a closed counter: %v", err)
	}
	check(t, qp.Close())
	check(t, mr.Close())
	check(t, r.pd.Close())
	check(t, r.cq.Close())
	check(t, r.ch.Close())
	if err := r.dev.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close of the device with a counter: %v", err)
	}
	check(t, bytes.Close())
	check(t, r.dev.Close())
}
