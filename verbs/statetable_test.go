package verbs_test

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// attrs has the attributes that a transition requires and allows, in addition to QPAttrState.
type attrs struct{ required, optional verbs.QPAttrMask }

// machines has the state machine of each QP type (IBTA §11.2.5.3; RAW_PACKET and XRC as in Linux),
// independent of the code's table. Some transitions allow path migration attributes, which are
// rejected because the device lacks the capability.
var machines = func() map[verbs.QPType]map[string]attrs {
	const (
		pk, port, acc, qk     = verbs.QPAttrPKeyIndex, verbs.QPAttrPort, verbs.QPAttrAccessFlags, verbs.QPAttrQKey
		av, mtu, dest, rq     = verbs.QPAttrAV, verbs.QPAttrPathMTU, verbs.QPAttrDestQPN, verbs.QPAttrRQPSN
		destRD, rnrTimer, tmo = verbs.QPAttrMaxDestRDAtomic, verbs.QPAttrMinRNRTimer, verbs.QPAttrTimeout
		retry, rnr, sq        = verbs.QPAttrRetryCnt, verbs.QPAttrRNRRetry, verbs.QPAttrSQPSN
		rd, cur, notify       = verbs.QPAttrMaxQPRDAtomic, verbs.QPAttrCurState, verbs.QPAttrEnSQDAsyncNotify
	)
	return map[verbs.QPType]map[string]attrs{
		verbs.RC: {
			"RESET→INIT": {pk | port | acc, 0},
			"INIT→INIT":  {0, pk | port | acc},
			"INIT→RTR":   {av | mtu | dest | rq | destRD | rnrTimer, acc | pk},
			"RTR→RTS":    {tmo | retry | rnr | sq | rd, cur | acc | rnrTimer},
			"RTS→RTS":    {0, cur | acc | rnrTimer},
			"RTS→SQD":    {0, notify},
			"SQD→SQD":    {0, av | tmo | retry | rnr | rd | destRD | acc | pk | rnrTimer},
			"SQD→RTS":    {0, cur | acc | rnrTimer},
		},
		verbs.UC: {
			"RESET→INIT": {pk | port | acc, 0},
			"INIT→INIT":  {0, pk | port | acc},
			"INIT→RTR":   {av | mtu | dest | rq, acc | pk},
			"RTR→RTS":    {sq, cur | acc},
			"RTS→RTS":    {0, cur | acc},
			"RTS→SQD":    {0, notify},
			"SQD→SQD":    {0, av | acc | pk},
			"SQD→RTS":    {0, cur | acc},
			"SQE→RTS":    {0, cur | acc},
		},
		verbs.UD: {
			"RESET→INIT": {pk | port | qk, 0},
			"INIT→INIT":  {0, pk | port | qk},
			"INIT→RTR":   {0, pk | qk},
			"RTR→RTS":    {sq, cur | qk},
			"RTS→RTS":    {0, cur | qk},
			"RTS→SQD":    {0, notify},
			"SQD→SQD":    {0, pk | qk},
			"SQD→RTS":    {0, cur | qk},
			"SQE→RTS":    {0, cur | qk},
		},
		verbs.RawPacket: {
			"RESET→INIT": {port, 0},
			"INIT→INIT":  {0, port},
			"INIT→RTR":   {0, 0},
			"RTR→RTS":    {0, cur},
			"RTS→RTS":    {0, cur},
			"RTS→SQD":    {0, notify},
			"SQD→RTS":    {0, cur},
			"SQE→RTS":    {0, cur},
		},
		verbs.XRCSend: {
			"RESET→INIT": {pk | port | acc, 0},
			"INIT→INIT":  {0, pk | port | acc},
			"INIT→RTR":   {av | mtu | dest | rq, acc | pk},
			"RTR→RTS":    {tmo | retry | rnr | sq | rd, cur | acc},
			"RTS→RTS":    {0, cur | acc},
			"RTS→SQD":    {0, notify},
			"SQD→SQD":    {0, av | tmo | retry | rnr | rd | acc | pk},
			"SQD→RTS":    {0, cur | acc},
		},
		verbs.XRCRecv: {
			"RESET→INIT": {pk | port | acc, 0},
			"INIT→INIT":  {0, pk | port | acc},
			"INIT→RTR":   {av | mtu | dest | rq | destRD | rnrTimer, acc | pk},
			"RTR→RTS":    {tmo | sq, cur | acc | rnrTimer},
			"RTS→RTS":    {0, cur | acc | rnrTimer},
			"RTS→SQD":    {0, notify},
			"SQD→SQD":    {0, av | tmo | destRD | acc | pk | rnrTimer},
			"SQD→RTS":    {0, cur | acc | rnrTimer},
		},
	}
}()

// ignored has the attributes of the other side of an XRC connection, which programs set as for RC.
var ignored = map[verbs.QPType]verbs.QPAttrMask{
	verbs.XRCSend: verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
	verbs.XRCRecv: verbs.QPAttrMaxQPRDAtomic | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry,
}

// validAttr returns valid values for all attributes.
func validAttr(from, to verbs.QPState) *verbs.QPAttr {
	return &verbs.QPAttr{QPState: to, CurQPState: from, PathMTU: verbs.MTU256, DestQPNum: 1, PortNum: 1,
		AHAttr: steps[verbs.StateRTR].AHAttr}
}

// moveThrough moves the QP from any state to a state.
func (r *rig) moveThrough(t *testing.T, machine map[string]attrs, to verbs.QPState) {
	t.Helper()
	ways := map[verbs.QPState][]verbs.QPState{
		verbs.StateInit: {verbs.StateInit},
		verbs.StateRTR:  {verbs.StateInit, verbs.StateRTR},
		verbs.StateRTS:  {verbs.StateInit, verbs.StateRTR, verbs.StateRTS},
		verbs.StateSQD:  {verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateSQD},
		verbs.StateSQE:  {verbs.StateInit, verbs.StateRTR, verbs.StateRTS},
		verbs.StateErr:  {verbs.StateErr},
	}
	at := verbs.StateReset
	check(t, r.qp.Modify(&verbs.QPAttr{QPState: at}, verbs.QPAttrState))
	for _, s := range ways[to] {
		check(t, r.qp.Modify(validAttr(at, s), verbs.QPAttrState|machine[fmt.Sprintf("%v→%v", at, s)].required))
		at = s
	}
	if to == verbs.StateSQE {
		r.lq.locked(func() { r.lq.FailSend() })
	}
	if s := r.qp.State(); s != to {
		t.Fatalf("the QP is in %v, not %v", s, to)
	}
}

// TestTransitions tries every transition of every QP type with the required attributes and with all
// allowed ones. It also tries each case of one attribute that is missing or not allowed.
func TestTransitions(t *testing.T) {
	for typ, machine := range machines {
		for from := verbs.StateReset; from <= verbs.StateErr; from++ {
			for to := verbs.StateReset; to <= verbs.StateErr+1; to++ {
				t.Run(fmt.Sprintf("%v/%v→%v", typ, from, to), func(t *testing.T) { tryTransition(t, typ, machine, from, to) })
			}
		}
	}
}

func tryTransition(t *testing.T, typ verbs.QPType, machine map[string]attrs, from, to verbs.QPState) {
	r := newRig(t)
	switch typ {
	case verbs.XRCSend:
		r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: typ, SendCQ: r.cq}))(t)
	case verbs.XRCRecv:
		x := must(r.dev.OpenXRCD(nil, 0))(t)
		r.qp = must(x.CreateQP(&verbs.QPInitAttr{Type: typ}))(t)
	default:
		r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: typ, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	}
	r.lq = r.l.qps[r.qp.Num()]
	try := func(mask verbs.QPAttrMask) error {
		t.Helper()
		r.moveThrough(t, machine, from)
		before := len(r.lq.modified)
		err := r.qp.Modify(validAttr(from, to), mask|verbs.QPAttrState)
		called := len(r.lq.modified) > before
		if want := map[bool]verbs.QPState{true: to, false: from}[err == nil]; r.qp.State() != want {
			t.Errorf("mask %v: state %v after error %v, want %v", mask, r.qp.State(), err, want)
		}
		if called != (err == nil) {
			t.Errorf("mask %v: provider called: %v; error: %v", mask, called, err)
		}
		return err
	}
	c, legal := machine[fmt.Sprintf("%v→%v", from, to)]
	if to == verbs.StateReset || to == verbs.StateErr {
		c, legal = attrs{}, true
	}
	if !legal {
		for _, mask := range []verbs.QPAttrMask{0, needs[to]} {
			if err := try(mask); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("mask %v: got %v, want ErrInvalid", mask, err)
			}
		}
		return
	}
	check(t, try(c.required))
	check(t, try(c.required|c.optional))
	for bit := verbs.QPAttrCurState; bit <= verbs.QPAttrDestQPN; bit <<= 1 {
		switch err := try(c.required ^ bit); {
		case c.optional&bit != 0, ignored[typ]&bit != 0:
			check(t, err)
		case err == nil:
			t.Errorf("mask %v accepted", c.required^bit)
		case bit == verbs.QPAttrAltPath || bit == verbs.QPAttrPathMigState:
			if !errors.Is(err, verbs.ErrInvalid) && !errors.Is(err, verbs.ErrNotSupported) {
				t.Errorf("%v: %v", bit, err)
			}
		default:
			if !errors.Is(err, verbs.ErrInvalid) || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v: %v is not ErrInvalid and EINVAL", bit, err)
			}
			if !strings.Contains(err.Error(), bit.String()) {
				t.Errorf("%q does not name %v", err, bit)
			}
		}
	}
}

// TestAlternatePath: an alternate path is accepted if the device supports migration, and otherwise
// rejected.
func TestAlternatePath(t *testing.T) {
	alt := &verbs.AltPath{PortNum: 1, AHAttr: steps[verbs.StateRTR].AHAttr}
	mask := verbs.QPAttrAltPath | verbs.QPAttrPathMigState
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	err := r.qp.Modify(&verbs.QPAttr{Alt: alt, PathMigState: verbs.MigArmed}, mask)
	if !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "AUTO_PATH_MIG") {
		t.Errorf("got %v", err)
	}
	if err := r.qp.Modify(&verbs.QPAttr{RateLimit: 1}, verbs.QPAttrRateLimit); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("rate limit: %v", err)
	}
	r = &rig{l: newLoop()}
	r.l.attr.DeviceCapFlags |= verbs.DeviceAutoPathMig
	r.open(t, verbs.QPCap{}, 1)
	r.moveTo(t, verbs.StateRTS)
	check(t, r.qp.Modify(&verbs.QPAttr{Alt: alt, PathMigState: verbs.MigArmed}, mask))
	if a, _, _ := r.qp.Query(); a.Alt != alt || a.PathMigState != verbs.MigArmed {
		t.Errorf("got %+v", a)
	}
	for _, a := range []*verbs.QPAttr{{}, {Alt: alt, PathMigState: 3}} {
		if err := r.qp.Modify(a, mask); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
}

// TestDrained: the event is raised once if it was requested, and requests posted in SQD wait for
// RTS.
func TestDrained(t *testing.T) {
	for _, notify := range []bool{true, false} {
		r := newRig(t)
		r.moveTo(t, verbs.StateRTS)
		r.lq.hold = true
		send := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}
		check(t, r.qp.PostSend(send))
		check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD, EnSQDAsyncNotify: notify},
			verbs.QPAttrState|verbs.QPAttrEnSQDAsyncNotify))
		if a, _, _ := r.qp.Query(); !a.SQDraining || a.EnSQDAsyncNotify != notify {
			t.Errorf("got %+v", a)
		}
		check(t, r.qp.PostSend(send))
		noEvent(t, r.dev)
		r.lq.locked(func() {
			r.lq.CompleteSend(verbs.WCSuccess, 0)
			r.lq.Drained()
			r.lq.Drained()
		})
		if a, _, _ := r.qp.Query(); a.SQDraining {
			t.Error("SQDraining without requests in flight")
		}
		if notify {
			if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventSQDrained || e.QP != r.qp {
				t.Errorf("got %+v", e)
			}
		}
		noEvent(t, r.dev)
		r.lq.hold = false
		check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
		if n := len(pollAll(t, r.cq)); n != 2 {
			t.Errorf("%d completions, want 2", n)
		}
	}
}

// TestDrainingEndsInError: a QP that fails while it drains stops draining, and raises no
// EventSQDrained.
func TestDrainingEndsInError(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}))
	check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD, EnSQDAsyncNotify: true}, verbs.QPAttrState|verbs.QPAttrEnSQDAsyncNotify))
	check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	if a, _, _ := r.qp.Query(); a.SQDraining {
		t.Error("SQDraining in ERR")
	}
	noEvent(t, r.dev)
}

func TestModifyWithoutTransition(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	check(t, r.qp.Modify(&verbs.QPAttr{MinRNRTimer: 30}, verbs.QPAttrMinRNRTimer))
	attr, _, err := r.qp.Query()
	check(t, err)
	if attr.MinRNRTimer != 30 || attr.QPState != verbs.StateRTS {
		t.Errorf("got MinRNRTimer %d in %v", attr.MinRNRTimer, attr.QPState)
	}
}

func TestModifyBounds(t *testing.T) {
	for _, c := range []struct {
		to   verbs.QPState
		want string // in the error
		set  func(*verbs.QPAttr)
	}{
		{verbs.StateInit, "PortNum 0 is not in 1–2", func(a *verbs.QPAttr) { a.PortNum = 0 }},
		{verbs.StateInit, "PortNum 3 is not in 1–2", func(a *verbs.QPAttr) { a.PortNum = 3 }},
		{verbs.StateInit, "PKeyIndex 1 is not in 0–0", func(a *verbs.QPAttr) { a.PKeyIndex = 1 }},
		{verbs.StateInit, "QPAccessFlags", func(a *verbs.QPAttr) { a.QPAccessFlags = verbs.AccessZeroBased }},
		{verbs.StateRTR, "PathMTU 0 is not in 1–5", func(a *verbs.QPAttr) { a.PathMTU = 0 }},
		{verbs.StateRTR, "PathMTU 6 is not in 1–5", func(a *verbs.QPAttr) { a.PathMTU = 6 }},
		{verbs.StateRTR, "PathMTU 2048 is more than the active MTU of 1024", func(a *verbs.QPAttr) { a.PathMTU = verbs.MTU2048 }},
		{verbs.StateRTR, "DestQPNum 16777216 is not in 0–16777215", func(a *verbs.QPAttr) { a.DestQPNum = 1 << 24 }},
		{verbs.StateRTR, "RQPSN", func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }},
		{verbs.StateRTR, "MaxDestRDAtomic 17 is not in 0–16", func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 17 }},
		{verbs.StateRTR, "MinRNRTimer 32", func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }},
		{verbs.StateRTR, "IsGlobal", func(a *verbs.QPAttr) { a.AHAttr.IsGlobal = false }},
		{verbs.StateRTR, "AHAttr.PortNum is 2, but the port is 1", func(a *verbs.QPAttr) { a.AHAttr.PortNum = 2 }},
		{verbs.StateRTR, "SL 16", func(a *verbs.QPAttr) { a.AHAttr.SL = 16 }},
		{verbs.StateRTR, "DGID", func(a *verbs.QPAttr) { a.AHAttr.GRH.DGID = verbs.GID{} }},
		{verbs.StateRTR, "SGIDIndex 1", func(a *verbs.QPAttr) { a.AHAttr.GRH.SGIDIndex = 1 }},
		{verbs.StateRTS, "Timeout 32", func(a *verbs.QPAttr) { a.Timeout = 32 }},
		{verbs.StateRTS, "RetryCnt 8", func(a *verbs.QPAttr) { a.RetryCnt = 8 }},
		{verbs.StateRTS, "RNRRetry 8", func(a *verbs.QPAttr) { a.RNRRetry = 8 }},
		{verbs.StateRTS, "SQPSN", func(a *verbs.QPAttr) { a.SQPSN = 1<<32 - 1 }},
		{verbs.StateRTS, "MaxRDAtomic 9 is not in 0–8", func(a *verbs.QPAttr) { a.MaxRDAtomic = 9 }},
	} {
		r := newRig(t)
		r.moveTo(t, c.to-1)
		attr := steps[c.to]
		attr.QPState = c.to
		c.set(&attr)
		err := r.qp.Modify(&attr, verbs.QPAttrState|needs[c.to])
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want ErrInvalid with %q on one line", err, c.want)
		}
		if r.qp.State() != c.to-1 {
			t.Errorf("%s: state %v after the error", c.want, r.qp.State())
		}
	}
}

func TestModifyCurState(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	err := r.qp.Modify(&verbs.QPAttr{CurQPState: verbs.StateSQD}, verbs.QPAttrCurState)
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestModifyRejectedByProvider(t *testing.T) {
	r := newRig(t)
	r.lq.modifyErr = errors.New("no route to 10.0.0.2")
	attr := steps[verbs.StateInit]
	attr.QPState = verbs.StateInit
	err := r.qp.Modify(&attr, verbs.QPAttrState|needs[verbs.StateInit])
	if !errors.Is(err, r.lq.modifyErr) {
		t.Errorf("got %v", err)
	}
	if a, _, _ := r.qp.Query(); a.QPState != verbs.StateReset || a.PortNum != 0 {
		t.Errorf("the QP changed: %+v", a)
	}
}

func TestQuery(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	attr, init, err := r.qp.Query()
	check(t, err)
	if attr.SQPSN != 0x111111 || attr.RQPSN != 0x222222 {
		t.Errorf("PSNs are not the provider's: %#x, %#x", attr.SQPSN, attr.RQPSN)
	}
	if attr.DestQPNum != 0x123 || attr.Timeout != 14 || attr.PortNum != 1 || attr.AHAttr.GRH.DGID != localGID {
		t.Errorf("attributes lost: %+v", attr)
	}
	if init.SendCQ != r.cq || init.Cap.MaxSendWR != 8 || attr.Cap != init.Cap {
		t.Errorf("init attributes lost: %+v", init)
	}
	check(t, r.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrState))
	if attr, _, _ = r.qp.Query(); attr.DestQPNum != 0 || attr.PortNum != 0 {
		t.Errorf("RESET keeps attributes: %+v", attr)
	}
}

func TestAttrMaskNames(t *testing.T) {
	for i := range 21 {
		if s := verbs.QPAttrMask(1 << i).String(); !strings.HasPrefix(s, "QPAttr") {
			t.Errorf("bit %d: %s", i, s)
		}
	}
	if bits.TrailingZeros32(uint32(verbs.QPAttrDestQPN)) != 20 {
		t.Error("QPAttrDestQPN is not bit 20")
	}
}

// TestRateLimit: on a device with packet pacing, a QP in RTS accepts a rate limit within the
// bounds, and its removal.
func TestRateLimit(t *testing.T) {
	r := &rig{l: newLoop()}
	r.l.attr.PacketPacing = verbs.PacketPacingCaps{RateLimitMin: 10, RateLimitMax: 1000, SupportedQPTs: 1 << verbs.RC}
	r.open(t, verbs.QPCap{}, 1)
	r.moveTo(t, verbs.StateRTS)
	for _, limit := range []uint32{10, 1000, 0} {
		check(t, r.qp.Modify(&verbs.QPAttr{RateLimit: limit}, verbs.QPAttrRateLimit))
		if a, _, _ := r.qp.Query(); a.RateLimit != limit {
			t.Errorf("limit %d, want %d", a.RateLimit, limit)
		}
	}
	for _, c := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{RateLimit: 9}, 0},
		{verbs.QPAttr{RateLimit: 1001}, 0},
		{verbs.QPAttr{RateLimit: 10, QPState: verbs.StateSQD}, verbs.QPAttrState},
	} {
		if err := r.qp.Modify(&c.attr, c.mask|verbs.QPAttrRateLimit); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", c.attr, err)
		}
	}
}
