package fault_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// elsewhere are the calls that other tests let fail: TestPostSend, and those of the drop-in
// libraries for the call that this API lacks.
var elsewhere = []string{"post_send", "post_recv", "poll_cq", "open_device"}

// calls returns a call for each name that a rule may have, without elsewhere, and a function that
// destroys the objects of these calls. None of them has an effect if it fails.
func (s *station) calls() (all map[string]func() error, end func()) {
	t := s.t
	pd, dev := s.pd, s.dev
	cq := must(dev.CreateCQ(16, nil))(t)
	ch := must(dev.CreateCompChannel())(t)
	heard := must(dev.CreateCQ(16, &verbs.CQInitAttr{Channel: ch}))(t)
	srq := must(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}))(t)
	qp := must(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	raw := must(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RawPacket, SendCQ: cq, RecvCQ: cq}))(t)
	ok(t, raw.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1}, verbs.QPAttrState|verbs.QPAttrPort))
	flow := must(raw.CreateFlow(&verbs.FlowAttr{Type: verbs.FlowSniffer, Port: 1}))(t)
	other := must(dev.AllocPD())(t)
	mr := s.reg(100)
	mw := must(pd.AllocMW(verbs.MWType1))(t)
	ah := must(pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GIDFromAddr(s.addr),
		SGIDIndex: s.gid(s.addr), HopLimit: 64}}))(t)
	xrcd := must(dev.OpenXRCD(nil, 0))(t)
	events := must(rdmacm.CreateEventChannel(dev))(t)
	id := must(events.CreateID(rdmacm.TCP, nil))(t)
	to := func(state verbs.QPState) func() error {
		return func() error { return qp.Modify(&verbs.QPAttr{QPState: state, PortNum: 1}, verbs.QPAttrState) }
	}
	all = map[string]func() error{
		"alloc_pd":             func() error { _, err := dev.AllocPD(); return err },
		"dealloc_pd":           other.Close,
		"reg_mr":               func() error { _, err := pd.RegMR(make([]byte, 8), 0); return err },
		"rereg_mr":             func() error { return mr.Rereg(verbs.ReregAccess, nil, nil, everyAccess) },
		"dereg_mr":             mr.Close,
		"alloc_null_mr":        func() error { _, err := pd.AllocNullMR(); return err },
		"alloc_mw":             func() error { _, err := pd.AllocMW(verbs.MWType2); return err },
		"bind_mw":              func() error { return qp.BindMW(mw, 1, 0, verbs.MWBindInfo{}) },
		"dealloc_mw":           mw.Close,
		"create_comp_channel":  func() error { _, err := dev.CreateCompChannel(); return err },
		"destroy_comp_channel": ch.Close,
		"create_cq":            func() error { _, err := dev.CreateCQ(1, nil); return err },
		"resize_cq":            func() error { return cq.Resize(32) },
		"modify_cq":            func() error { return heard.Modify(verbs.CQModeration{Count: 2}) },
		"req_notify_cq":        func() error { return heard.ReqNotify(false) },
		"destroy_cq":           cq.Close,
		"create_srq": func() error {
			_, err := pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}})
			return err
		},
		"modify_srq":    func() error { return srq.Modify(&verbs.SRQAttr{Limit: 1}, verbs.SRQLimit) },
		"query_srq":     func() error { _, err := srq.Query(); return err },
		"post_srq_recv": func() error { return srq.PostRecv(&verbs.RecvWR{}) },
		"destroy_srq":   srq.Close,
		"create_qp": func() error {
			_, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
			return err
		},
		"query_qp":        func() error { _, _, err := qp.Query(); return err },
		"modify_qp":       to(verbs.StateInit),
		"modify_qp:reset": to(verbs.StateReset),
		"modify_qp:init":  to(verbs.StateInit),
		"modify_qp:rtr":   to(verbs.StateRTR),
		"modify_qp:rts":   to(verbs.StateRTS),
		"modify_qp:sqd":   to(verbs.StateSQD),
		"modify_qp:sqe":   to(verbs.StateSQE),
		"modify_qp:err":   to(verbs.StateErr),
		"destroy_qp":      qp.Close,
		"open_qp":         func() error { _, err := xrcd.OpenQP(7); return err },
		"open_xrcd":       func() error { _, err := dev.OpenXRCD(nil, 0); return err },
		"close_xrcd":      xrcd.Close,
		"create_ah":       func() error { _, err := pd.CreateAH(nil); return err },
		"destroy_ah":      ah.Close,
		"attach_mcast":    func() error { return qp.AttachMcast(verbs.GID{0xff}) },
		"detach_mcast":    func() error { return qp.DetachMcast(verbs.GID{0xff}) },
		"create_flow":     func() error { _, err := raw.CreateFlow(nil); return err },
		"destroy_flow":    flow.Close,
		"query_port":      func() error { _, err := dev.QueryPort(1); return err },
		"query_gid":       func() error { _, err := dev.QueryGID(1, 0); return err },
		"query_gid_table": func() error { _, err := dev.GIDTable(1); return err },
		"query_pkey":      func() error { _, err := dev.QueryPKey(1, 0); return err },

		"rdma_create_event_channel": func() error { _, err := rdmacm.CreateEventChannel(dev); return err },
		"rdma_create_id":            func() error { _, err := events.CreateID(rdmacm.TCP, nil); return err },
		"rdma_bind_addr":            func() error { return id.Bind(netip.AddrPort{}) },
		"rdma_listen":               func() error { return id.Listen(1) },
		"rdma_resolve_addr":         func() error { return id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:1"), 0) },
		"rdma_resolve_route":        id.ResolveRoute,
		"rdma_create_qp":            func() error { return id.CreateQP(pd, &verbs.QPInitAttr{}) },
		"rdma_create_srq":           func() error { return id.CreateSRQ(pd, &verbs.SRQInitAttr{}) },
		"rdma_init_qp_attr":         func() error { _, _, err := id.QPAttr(verbs.StateInit); return err },
		"rdma_connect":              func() error { return id.Connect(nil) },
		"rdma_accept":               func() error { return id.Accept(nil) },
		"rdma_reject":               func() error { return id.Reject(nil) },
		"rdma_establish":            id.Establish,
		"rdma_disconnect":           id.Disconnect,
		"rdma_notify":               id.Notify,
		"rdma_join_multicast":       func() error { return id.JoinMulticast(netip.MustParseAddr("239.0.0.1")) },
		"rdma_leave_multicast":      func() error { return id.LeaveMulticast(netip.MustParseAddr("239.0.0.1")) },
		"rdma_migrate_id":           func() error { return id.Migrate(context.Background(), events) },
		"rdma_set_option":           func() error { return id.SetTOS(0) },
		"rdma_destroy_id":           id.Close,
	}
	return all, func() {
		for _, c := range []func() error{id.Close, events.Close, flow.Close, raw.Close, qp.Close, srq.Close, ah.Close, xrcd.Close, mw.Close,
			mr.Close, other.Close, heard.Close, ch.Close, cq.Close} {
			ok(t, c())
		}
	}
}

// gid returns the index of an address's GID for RoCE v2.
func (s *station) gid(a netip.Addr) uint8 {
	for _, g := range must(s.dev.GIDTable(1))(s.t) {
		if g.GID.Addr().Unmap() == a && g.Type == verbs.GIDTypeRoCEv2 {
			return uint8(g.Index)
		}
	}
	s.t.Fatalf("no GID of %v", a)
	return 0
}

// TestCalls: each call fails with each errno that its rules may name, once, and has done nothing.
func TestCalls(t *testing.T) {
	s, _ := stations(t)
	all, end := s.calls()
	for _, name := range fault.Calls() {
		if all[name] == nil && !slices.Contains(elsewhere, name) {
			t.Errorf("%s has no test", name)
		}
	}
	before := s.faults.Injected()
	for name, call := range all {
		for _, errno := range fault.Errnos(name) {
			s.faults.End()
			s.add(name + "=" + errno)
			err := call()
			wantErrno(t, name, err, errnos[errno])
			if list := s.faults.List(); len(list) != 1 || list[0].Injected != 1 || !strings.Contains(fmt.Sprint(err), "injected") {
				t.Errorf("%s: %+v, error %v", name, list, err)
			}
			before++
		}
	}
	s.faults.End()
	end()
	if n := must(s.dev.HWCounters())(t)["injected_faults"]; n != s.faults.Injected() || n != before {
		t.Errorf("injected_faults is %d, %d were injected, %d calls failed", n, s.faults.Injected(), before)
	}
}

var errnos = map[string]syscall.Errno{"EACCES": syscall.EACCES, "EADDRINUSE": syscall.EADDRINUSE, "EADDRNOTAVAIL": syscall.EADDRNOTAVAIL,
	"EAFNOSUPPORT": syscall.EAFNOSUPPORT, "EAGAIN": syscall.EAGAIN, "EBUSY": syscall.EBUSY, "ECONNREFUSED": syscall.ECONNREFUSED,
	"ECONNRESET": syscall.ECONNRESET, "EFAULT": syscall.EFAULT, "EHOSTUNREACH": syscall.EHOSTUNREACH, "EINVAL": syscall.EINVAL,
	"EIO": syscall.EIO, "EISCONN": syscall.EISCONN, "ENETUNREACH": syscall.ENETUNREACH, "ENODEV": syscall.ENODEV, "ENOENT": syscall.ENOENT,
	"ENOMEM": syscall.ENOMEM, "ENOSPC": syscall.ENOSPC, "ENOSYS": syscall.ENOSYS, "ENOTCONN": syscall.ENOTCONN, "ENXIO": syscall.ENXIO,
	"EOPNOTSUPP": syscall.EOPNOTSUPP, "EOVERFLOW": syscall.EOVERFLOW, "EPERM": syscall.EPERM, "ETIMEDOUT": syscall.ETIMEDOUT}

// TestCallsOfGoneDevice: every verb that reaches the kernel gives EIO after the device is gone, as
// those of a disassociated ib_uverbs do. Posts and polls of queues in the program's memory do not.
func TestCallsOfGoneDevice(t *testing.T) {
	s, _ := stations(t)
	all, _ := s.calls()
	s.add("device=gone")
	s.event(verbs.EventDeviceFatal)
	for name, call := range all {
		if strings.HasPrefix(name, "rdma_") {
			continue
		}
		switch err := call(); {
		case strings.HasPrefix(name, "post_"):
			ok(t, err)
		default:
			wantErrno(t, name, err, syscall.EIO)
		}
	}
}

// TestSelected: a rule for a QP, and one for a state, hit no other.
func TestSelected(t *testing.T) {
	s, _ := stations(t)
	cq := must(s.dev.CreateCQ(16, nil))(t)
	var qps [2]*verbs.QP
	for i := range qps {
		qps[i] = must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 4}}))(t)
	}
	s.add(fmt.Sprintf("query_qp:qp=%d=ENOMEM; modify_qp:qp=%d,rtr=ETIMEDOUT; post_recv:qp=%#x=ENOMEM",
		qps[1].Num(), qps[1].Num(), qps[1].Num()))
	for i, qp := range qps {
		failed := func(what string, err error, want syscall.Errno) {
			t.Helper()
			if i == 1 {
				wantErrno(t, what, err, want)
			} else if err != nil && strings.Contains(err.Error(), "injected") {
				t.Errorf("%s of another QP: %v", what, err)
			}
		}
		_, _, err := qp.Query()
		failed("query_qp", err, syscall.ENOMEM)
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccessFlags))
		failed("post_recv", qp.PostRecv(&verbs.RecvWR{}), syscall.ENOMEM)
		ok(t, qp.PostRecv(&verbs.RecvWR{}))
		failed("modify_qp:rtr", qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState), syscall.ETIMEDOUT)
		if qp.State() != verbs.StateInit {
			t.Errorf("the QP is in %v", qp.State())
		}
		ok(t, qp.Close())
	}
	ok(t, cq.Close())
}
