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

// What each transition of an RC QP takes besides QPAttrState (IBTA §11.2.5.3), stated apart from the code's table. Path
// migration attributes are legal there but not supported.
var optional = map[[2]verbs.QPState]verbs.QPAttrMask{
	{verbs.StateReset, verbs.StateInit}: 0,
	{verbs.StateInit, verbs.StateInit}:  verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags,
	{verbs.StateInit, verbs.StateRTR}:   verbs.QPAttrAccessFlags | verbs.QPAttrPKeyIndex,
	{verbs.StateRTR, verbs.StateRTS}:    verbs.QPAttrCurState | verbs.QPAttrAccessFlags | verbs.QPAttrMinRNRTimer,
	{verbs.StateRTS, verbs.StateRTS}:    verbs.QPAttrCurState | verbs.QPAttrAccessFlags | verbs.QPAttrMinRNRTimer,
}

func required(from, to verbs.QPState) verbs.QPAttrMask {
	if from == to {
		return 0
	}
	return needs[to]
}

// everything is valid values for every attribute.
func everything(from, to verbs.QPState) *verbs.QPAttr {
	return &verbs.QPAttr{QPState: to, CurQPState: from, PathMTU: verbs.MTU256, DestQPNum: 1, PortNum: 1,
		AHAttr: steps[verbs.StateRTR].AHAttr}
}

func TestTransitions(t *testing.T) {
	for _, from := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateErr} {
		for to := verbs.StateReset; to <= verbs.StateErr+1; to++ {
			t.Run(fmt.Sprintf("%v→%v", from, to), func(t *testing.T) {
				r := newRig(t)
				try := func(mask verbs.QPAttrMask) error {
					t.Helper()
					check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
					r.bring(t, from)
					before := len(r.lq.modified)
					err := r.qp.Modify(everything(from, to), mask|verbs.QPAttrState)
					asked := len(r.lq.modified) > before
					if want := map[bool]verbs.QPState{true: to, false: from}[err == nil]; r.qp.State() != want {
						t.Errorf("mask %v: state %v after error %v, want %v", mask, r.qp.State(), err, want)
					}
					if asked != (err == nil) {
						t.Errorf("mask %v: provider asked: %v; error: %v", mask, asked, err)
					}
					return err
				}
				req := required(from, to)
				opt, legal := optional[[2]verbs.QPState{from, to}]
				if to == verbs.StateReset || to == verbs.StateErr {
					req, legal = 0, true
				}
				if !legal {
					if err := try(needs[to]); !errors.Is(err, verbs.ErrInvalid) {
						t.Errorf("got %v, want ErrInvalid", err)
					}
					return
				}
				check(t, try(req))
				check(t, try(req|opt))
				for bit := verbs.QPAttrCurState; bit <= verbs.QPAttrDestQPN; bit <<= 1 {
					switch err := try(req ^ bit); {
					case opt&bit != 0:
						check(t, err)
					case err == nil:
						t.Errorf("mask %v accepted", req^bit)
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
			})
		}
	}
}

func TestModifyNeedsNoStateForAttributes(t *testing.T) {
	r := newRig(t)
	r.bring(t, verbs.StateRTS)
	check(t, r.qp.Modify(&verbs.QPAttr{MinRNRTimer: 30}, verbs.QPAttrMinRNRTimer))
	attr, _, err := r.qp.Query(0)
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
		{verbs.StateRTR, "AHAttr.PortNum is 2, the QP's port 1", func(a *verbs.QPAttr) { a.AHAttr.PortNum = 2 }},
		{verbs.StateRTR, "SL 16", func(a *verbs.QPAttr) { a.AHAttr.SL = 16 }},
		{verbs.StateRTR, "FlowLabel 0x100000", func(a *verbs.QPAttr) { a.AHAttr.GRH.FlowLabel = 1 << 20 }},
		{verbs.StateRTR, "DGID", func(a *verbs.QPAttr) { a.AHAttr.GRH.DGID = verbs.GID{} }},
		{verbs.StateRTR, "SGIDIndex 1", func(a *verbs.QPAttr) { a.AHAttr.GRH.SGIDIndex = 1 }},
		{verbs.StateRTS, "Timeout 32", func(a *verbs.QPAttr) { a.Timeout = 32 }},
		{verbs.StateRTS, "RetryCnt 8", func(a *verbs.QPAttr) { a.RetryCnt = 8 }},
		{verbs.StateRTS, "RNRRetry 8", func(a *verbs.QPAttr) { a.RNRRetry = 8 }},
		{verbs.StateRTS, "SQPSN", func(a *verbs.QPAttr) { a.SQPSN = 1<<32 - 1 }},
		{verbs.StateRTS, "MaxRDAtomic 9 is not in 0–8", func(a *verbs.QPAttr) { a.MaxRDAtomic = 9 }},
	} {
		r := newRig(t)
		r.bring(t, c.to-1)
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
	r.bring(t, verbs.StateRTS)
	err := r.qp.Modify(&verbs.QPAttr{CurQPState: verbs.StateSQD}, verbs.QPAttrCurState)
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestModifyRefusedByProvider(t *testing.T) {
	r := newRig(t)
	r.lq.refuse = errors.New("no route to 10.0.0.2")
	attr := steps[verbs.StateInit]
	attr.QPState = verbs.StateInit
	err := r.qp.Modify(&attr, verbs.QPAttrState|needs[verbs.StateInit])
	if !errors.Is(err, r.lq.refuse) {
		t.Errorf("got %v", err)
	}
	if a, _, _ := r.qp.Query(0); a.QPState != verbs.StateReset || a.PortNum != 0 {
		t.Errorf("the QP changed: %+v", a)
	}
}

func TestQuery(t *testing.T) {
	r := newRig(t)
	r.bring(t, verbs.StateRTS)
	attr, init, err := r.qp.Query(verbs.QPAttrSQPSN)
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
	if attr, _, _ = r.qp.Query(0); attr.DestQPNum != 0 || attr.PortNum != 0 {
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
