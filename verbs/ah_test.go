package verbs_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

func ahAttr() verbs.AHAttr {
	return verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: localGID}}
}

func TestAH(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		want string
		set  func(*verbs.AHAttr)
	}{
		{"PortNum 0", func(a *verbs.AHAttr) { a.PortNum = 0 }},
		{"PortNum 3", func(a *verbs.AHAttr) { a.PortNum = 3 }},
		{"IsGlobal", func(a *verbs.AHAttr) { a.IsGlobal = false }},
		{"SGIDIndex 1", func(a *verbs.AHAttr) { a.GRH.SGIDIndex = 1 }},
		{"DGID is zero", func(a *verbs.AHAttr) { a.GRH.DGID = verbs.GID{} }},
	} {
		attr := ahAttr()
		c.set(&attr)
		if _, err := r.pd.CreateAH(&attr); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if _, err := r.pd.CreateAH(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
	attr := ahAttr()
	var ahs []*verbs.AH
	for range r.l.attr.MaxAH {
		ahs = append(ahs, must(r.pd.CreateAH(&attr))(t))
	}
	if _, err := r.pd.CreateAH(&attr); !errors.Is(err, verbs.ErrNoMemory) {
		t.Errorf("more than MaxAH: %v", err)
	}
	if got := must(ahs[0].Query())(t); got != attr {
		t.Errorf("queried %+v", got)
	}
	check(t, r.qp.Close())
	if err := r.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("PD with AHs: %v", err)
	}
	for _, ah := range ahs {
		check(t, ah.Close())
		if err := ah.Close(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
	}
	if _, err := ahs[0].Query(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("query: %v", err)
	}
	check(t, r.pd.Close())
}

// grh4 returns the bytes that arrive before an IPv4 datagram from src to the rig's address.
func grh4(src string) []byte {
	b := make([]byte, 64)
	ip := b[20:40]
	ip[0], ip[1], ip[8], ip[9] = 0x45, 0x22, 64, 17
	binary.BigEndian.PutUint16(ip[2:], 100)
	s, d := netip.MustParseAddr(src).As4(), localGID.Addr().As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	return b
}

func TestAHFromWC(t *testing.T) {
	r := newRig(t)
	wc := &verbs.WC{Flags: verbs.WCGRH, SL: 3}
	attr := must(r.dev.InitAHFromWC(1, wc, grh4("10.0.0.7")))(t)
	if attr.GRH.DGID.Addr().String() != "10.0.0.7" || attr.GRH.TrafficClass != 0x22 || attr.SL != 3 || !attr.IsGlobal {
		t.Errorf("IPv4: %+v", attr)
	}
	ah := must(r.pd.CreateAHFromWC(1, wc, grh4("10.0.0.7")))(t)
	if got := must(ah.Query())(t); got != attr {
		t.Errorf("the handle has %+v, want %+v", got, attr)
	}
	check(t, ah.Close())

	bad := grh4("10.0.0.7")
	bad[30]++ // the checksum
	elsewhere := grh4("10.0.0.7")
	elsewhere[39], elsewhere[35] = elsewhere[35], elsewhere[39] // the same checksum
	for _, c := range []struct {
		want string
		wc   *verbs.WC
		grh  []byte
	}{
		{"no completion", nil, grh4("10.0.0.7")},
		{"no GRH flag", &verbs.WC{}, grh4("10.0.0.7")},
		{"39 bytes of grh are not a GRH", wc, grh4("10.0.0.7")[:39]},
		{"are not a GRH", wc, bad},
		{"sent to 10.0.0.7, which is not a RoCE v2 GID of port 1", wc, elsewhere},
	} {
		if _, err := r.dev.InitAHFromWC(1, c.wc, c.grh); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	v1 := make([]byte, verbs.GRHLen)
	v1[0], v1[6] = 0x60, 0x1b
	copy(v1[24:], localGID[:])
	if _, err := r.dev.InitAHFromWC(1, wc, v1); err == nil || !strings.Contains(err.Error(), "not a RoCE v1 GID") {
		t.Errorf("RoCE v1 to a GID of v2: %v", err)
	}
	if _, err := r.dev.InitAHFromWC(3, wc, grh4("10.0.0.7")); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("port 3: %v", err)
	}
}

// FuzzAHFromWC passes arbitrary bytes as a GRH. An accepted GRH gives the address handle of its
// source address.
func FuzzAHFromWC(f *testing.F) {
	f.Add(grh4("10.0.0.7"))
	v6 := make([]byte, verbs.GRHLen)
	v6[0], v6[6] = 0x60, 17
	copy(v6[24:], localGID[:])
	f.Add(v6)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRig(t)
		attr, err := r.dev.InitAHFromWC(1, &verbs.WC{Flags: verbs.WCGRH}, b)
		if err != nil {
			return
		}
		v6, v4 := verbs.GID(b[8:24]), verbs.GIDFromAddr(netip.AddrFrom4([4]byte(b[32:36])))
		if attr.GRH.DGID != v6 && attr.GRH.DGID != v4 || attr.GRH.FlowLabel >= 1<<20 {
			t.Errorf("% x gives %v", b, attr.GRH)
		}
	})
}

// unreliable creates a QP of an unreliable type, in INIT.
func unreliable(t *testing.T, r *rig, qt verbs.QPType) *verbs.QP {
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: qt, SendCQ: r.cq, RecvCQ: r.cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	mask := verbs.QPAttrQKey
	if qt == verbs.UC {
		mask = verbs.QPAttrAccessFlags
	}
	check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: 7},
		mask|verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort))
	return qp
}

func TestSQE(t *testing.T) {
	for _, qt := range []verbs.QPType{verbs.UC, verbs.UD} {
		r := newRig(t)
		qp := unreliable(t, r, qt)
		lq := r.l.qps[qp.Num()]
		if qt == verbs.UC {
			check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: verbs.MTU256, AHAttr: ahAttr()},
				verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN))
		} else {
			check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
		}
		check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		attr := ahAttr()
		ah := must(r.pd.CreateAH(&attr))(t)
		send := func(id uint64) *verbs.SendWR { return &verbs.SendWR{WRID: id, Opcode: verbs.Send, AH: ah} }
		lq.hold = true
		check(t, qp.PostSend(send(1), send(2), send(3)))
		check(t, qp.PostRecv(&verbs.RecvWR{WRID: 4}))
		lq.locked(func() {
			lq.CompleteSend(verbs.WCLocProtErr, 0)
			lq.FailSend()
			lq.FailSend() // a repeated call has no effect
		})
		check(t, qp.PostSend(send(5)))
		var wcs [8]verbs.WC
		n := must(r.cq.Poll(wcs[:]))(t)
		want := []verbs.WC{{WRID: 1, Status: verbs.WCLocProtErr}, {WRID: 2, Status: verbs.WCWRFlushErr},
			{WRID: 3, Status: verbs.WCWRFlushErr}, {WRID: 5, Status: verbs.WCWRFlushErr}}
		if n != len(want) || qp.State() != verbs.StateSQE {
			t.Fatalf("%v: %d completions, state %v", qt, n, qp.State())
		}
		for i := range want {
			if wcs[i].WRID != want[i].WRID || wcs[i].Status != want[i].Status {
				t.Errorf("%v: completion %d is %+v", qt, i, wcs[i])
			}
		}
		check(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
		lq.hold = false
		check(t, qp.PostSend(send(6)))
	}
}

func TestMcastLimits(t *testing.T) {
	r := newRig(t)
	group := func(n byte) verbs.GID { return verbs.GIDFromAddr(netip.AddrFrom4([4]byte{239, 0, 0, n})) }
	var qps []*verbs.QP
	for range r.l.attr.MaxMcastQPAttach + 1 {
		qps = append(qps, unreliable(t, r, verbs.UD))
	}
	refused := func(err error, want string) {
		t.Helper()
		if !errors.Is(err, verbs.ErrNoMemory) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, qp := range qps[:len(qps)-1] {
		check(t, qp.AttachMcast(group(1)))
	}
	refused(qps[len(qps)-1].AttachMcast(group(1)), "MaxMcastQPAttach of 2")
	check(t, qps[0].AttachMcast(group(2)))
	refused(qps[1].AttachMcast(group(2)), "MaxTotalMcastQPAttach of 3")
	refused(qps[2].AttachMcast(group(3)), "MaxMcastGrp of 2")
	check(t, qps[0].DetachMcast(group(2)))
	check(t, qps[2].AttachMcast(group(3)))
	if err := qps[2].Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("destroy: %v", err)
	}
	if err := r.qp.AttachMcast(group(1)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an RC QP: %v", err)
	}
}
