package verbs_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestFlowLabelHas20Bits: the upper bits of a flow label are ignored, as in Linux; UCX sets all 32.
// The caller's attributes are not changed.
func TestFlowLabelHas20Bits(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateInit)
	attr := steps[verbs.StateRTR]
	attr.QPState = verbs.StateRTR
	attr.AHAttr.GRH.FlowLabel = 0xffffffff
	check(t, r.qp.Modify(&attr, verbs.QPAttrState|needs[verbs.StateRTR]))
	if l := attr.AHAttr.GRH.FlowLabel; l != 0xffffffff {
		t.Errorf("Modify has changed the caller's flow label to %#x", l)
	}
	got, _, err := r.qp.Query()
	check(t, err)
	if l := got.AHAttr.GRH.FlowLabel; l != 0xfffff {
		t.Errorf("flow label of the QP %#x, want 0xfffff", l)
	}
	ah := must(r.pd.CreateAH(&attr.AHAttr))(t)
	if a := must(ah.Query())(t); a.GRH.FlowLabel != 0xfffff {
		t.Errorf("flow label of the AH %#x, want 0xfffff", a.GRH.FlowLabel)
	}
}

// TestMaxInlineDataRoundedUp: MaxInlineData is the requested length or the size of the SGEs, as in
// rxe, whichever is larger, up to the device's limit. Requests with inline data and with SGEs do
// not affect each other.
func TestMaxInlineDataRoundedUp(t *testing.T) {
	for _, c := range []struct{ sges, requested, want int }{{0, 0, 0}, {1, 0, 16}, {4, 1, 64}, {4, 64, 64}, {4, 65, 65}, {32, 0, 512}} {
		r := newRigWith(t, verbs.QPCap{MaxSendWR: 4, MaxSendSGE: c.sges, MaxInlineData: c.requested}, 64)
		r.moveTo(t, verbs.StateRTS)
		_, init, err := r.qp.Query()
		check(t, err)
		if init.Cap.MaxInlineData != c.want || init.Cap.MaxSendSGE != c.sges {
			t.Errorf("%d SGEs and %d bytes requested: %+v, want %d bytes", c.sges, c.requested, init.Cap, c.want)
		}
		if c.sges == 0 {
			continue
		}
		r.lq.hold = true
		data := bytes.Repeat([]byte{0xa5}, c.want+1)
		mr := must(r.pd.RegMR(data, 0))(t)
		post := func(flags verbs.SendFlags, n int) error {
			return r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: flags, SGList: []verbs.SGE{mr.SGE(0, n)}})
		}
		for range 3 { // around the ring
			check(t, post(verbs.SendInline, c.want))
			check(t, post(0, 7))
			r.lq.locked(func() {
				if d := r.lq.Send(0).Inline(); !bytes.Equal(d, data[:c.want]) {
					t.Errorf("inline data %x", d)
				}
				if l := r.lq.Send(1).SGList; len(l) != 1 || l[0] != mr.SGE(0, 7) || r.lq.Send(1).Inline() != nil {
					t.Errorf("SGList %+v", l)
				}
				for r.lq.SendLen() > 0 {
					r.lq.CompleteSend(verbs.WCSuccess, 0)
				}
			})
			check(t, post(verbs.SendInline, 1)) // moves the slots by one
			r.lq.locked(func() { r.lq.CompleteSend(verbs.WCSuccess, 0) })
		}
		if err := post(verbs.SendInline, c.want+1); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%d bytes inline, with MaxInlineData %d: %v", c.want+1, c.want, err)
		}
	}
}
