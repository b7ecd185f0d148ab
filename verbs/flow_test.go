package verbs_test

import (
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestFlow checks the arguments of CreateFlow, and that no object can be closed while a flow
// uses it.
func TestFlow(t *testing.T) {
	r := newRig(t)
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RawPacket, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	rejected := func(what string, qp *verbs.QP, want error, attr verbs.FlowAttr) {
		t.Helper()
		if _, err := qp.CreateFlow(&attr); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	rejected("RESET", qp, verbs.ErrInvalid, verbs.FlowAttr{Port: 1})
	check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1}, verbs.QPAttrState|verbs.QPAttrPort))
	if _, err := qp.CreateFlow(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
	eth := func(v, mask uint16) verbs.FlowSpec {
		return &verbs.FlowSpecEth{Val: verbs.FlowEthFilter{EtherType: v}, Mask: verbs.FlowEthFilter{EtherType: mask}}
	}
	specs := func(s ...verbs.FlowSpec) verbs.FlowAttr { return verbs.FlowAttr{Port: 1, Specs: s} }
	rejected("of an RC QP", r.qp, verbs.ErrInvalid, specs())
	rejected("port", qp, verbs.ErrInvalid, verbs.FlowAttr{Port: 2})
	rejected("type", qp, verbs.ErrInvalid, verbs.FlowAttr{Port: 1, Type: 4})
	rejected("flags", qp, verbs.ErrNotSupported, verbs.FlowAttr{Port: 1, Flags: 1 << 2})
	rejected("a sniffer with DontTrap", qp, verbs.ErrInvalid, verbs.FlowAttr{Port: 1, Type: verbs.FlowSniffer, Flags: verbs.FlowDontTrap})
	rejected("a sniffer with specs", qp, verbs.ErrInvalid,
		verbs.FlowAttr{Port: 1, Type: verbs.FlowSniffer, Specs: []verbs.FlowSpec{eth(0, 0)}})
	rejected("order", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecUDP{}, &verbs.FlowSpecIPv4{}))
	rejected("twice", qp, verbs.ErrInvalid, specs(eth(1, 1), eth(1, 1)))
	rejected("IPv4 and IPv6", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecIPv4{}, &verbs.FlowSpecIPv6{}))
	rejected("header after an action", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecActionDrop{}, &verbs.FlowSpecUDP{}))
	rejected("IPv6 after EtherType IPv4", qp, verbs.ErrInvalid, specs(eth(0x0800, 0xffff), &verbs.FlowSpecIPv6{}))
	rejected("flow label", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecIPv6{Mask: verbs.FlowIPv6Filter{FlowLabel: 1 << 20}}))
	rejected("flags of IPv4", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecIPv4Ext{Val: verbs.FlowIPv4ExtFilter{Flags: 8}}))
	rejected("mask of flags of IPv4", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecIPv4Ext{Mask: verbs.FlowIPv4ExtFilter{Flags: 8}}))
	rejected("tag", qp, verbs.ErrInvalid, specs(&verbs.FlowSpecActionTag{TagID: 1 << 24}))
	rejected("nil spec", qp, verbs.ErrInvalid, specs(nil))
	rejected("nil pointer", qp, verbs.ErrInvalid, specs((*verbs.FlowSpecTCP)(nil)))

	r.l.onFlow = func() error { return verbs.ErrNoMemory }
	rejected("provider's error", qp, verbs.ErrNoMemory, specs())
	r.l.onFlow = nil

	mine := &verbs.FlowSpecIPv4{}
	f := must(qp.CreateFlow(&verbs.FlowAttr{Port: 1, Priority: 3, Specs: []verbs.FlowSpec{eth(0x0800, 0xffff), mine}}))(t)
	mine.Val.DstIP[0] = 9
	if got := r.l.flow.Specs[1].(*verbs.FlowSpecIPv4); r.l.flow.Priority != 3 || got.Val.DstIP[0] != 0 {
		t.Errorf("the provider has %+v", r.l.flow)
	}
	if err := qp.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a QP with a flow: %v", err)
	}
	check(t, f.Close())
	if err := f.Close(); !errors.Is(err, verbs.ErrClosed) || r.l.flow != nil {
		t.Errorf("twice: %v", err)
	}
	check(t, qp.Close())
}
