//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// fault adds rules to the devices, until the end of the test.
func (u *user) fault(rules string) {
	u.Helper()
	if err := stacks.nodes[0].Faults.Add(rules); err != nil {
		u.Fatal(err)
	}
	u.Cleanup(func() { _ = stacks.nodes[0].Faults.Add("none") })
}

// TestInjectedErrnos: C's calls fail with the errno of a rule.
func TestInjectedErrnos(t *testing.T) {
	u := newUser(t, roce)
	h, _ := u.newQP(verbs.RC)
	u.fault("open_device=ENODEV; query_gid=EIO; reg_mr=ENOMEM; create_qp=ENOSPC; modify_qp:init=EPERM; query_port=EIO; destroy_qp=EBUSY;" +
		"rdma_create_event_channel=ENOMEM; alloc_pd=EAGAIN; create_cq=EINVAL; dereg_mr=EBUSY")
	var a, b cU32
	var n cInt
	fails(t, "open_device", srOpenContext(roce, &a, &n), syscall.ENODEV)
	fails(t, "query_gid", srQueryGID(roce, 1, 0, new(_Ctype_struct_sr_gid_entry)), syscall.EIO)
	fails(t, "query_port", srQueryPort(roce, 1, new(_Ctype_struct_sr_port_attr)), syscall.EIO)
	fails(t, "alloc_pd", srAllocPD(u.context, &a), syscall.EAGAIN)
	buf := make([]byte, 8)
	r := region{buf: buf}
	fails(t, "reg_mr", srRegMR(u.pd, nil, 0, r.addr(0), 0, &a, &b, &b), syscall.ENOMEM)
	r = u.register(buf)
	fails(t, "dereg_mr", srDeregMR(r.h), syscall.EBUSY)
	init := u.qpInit(verbs.RC)
	fails(t, "create_qp", srCreateQP(&init, &a, &b), syscall.ENOSPC)
	fails(t, "create_cq", srCreateCQ(u.context, 1, 0, 0, u.cqEvents, new(cU32), &a, &n), syscall.EINVAL)
	fails(t, "modify_qp", modify(h, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags), syscall.EPERM)
	fails(t, "destroy_qp", srDestroyQP(h), syscall.EBUSY)
	fails(t, "rdma_create_event_channel", srCMCreateChannel(&a, &n), syscall.ENOMEM)
}

// TestInjectedCompletion: a request of C fails with the status of a rule, after a post that fails.
func TestInjectedCompletion(t *testing.T) {
	u := newUser(t, roce)
	a, _ := u.pair()
	r := u.register(make([]byte, 64))
	u.fault("post_send=ENOMEM:2; wc:opcode=write,nth=2=REM_ACCESS_ERR")
	sge := r.sge(0, 8)
	wr := cSendWR{sg_list: &sge, num_sge: 1, opcode: cU32(verbs.RDMAWrite), send_flags: cU32(verbs.SendSignaled), remote_addr: r.addr(8),
		word1: cU64(r.rkey)}
	for i, want := range []syscall.Errno{0, syscall.ENOMEM, 0} {
		if err, done := send(a, &wr, 0); syscall.Errno(err) != want || (done == 1) != (want == 0) {
			t.Errorf("post %d: errno %d, %d posted", i, err, done)
		}
	}
	for i, want := range []verbs.WCStatus{verbs.WCSuccess, verbs.WCRemAccessErr} {
		if wc := u.poll(u.cq); verbs.WCStatus(wc.status) != want {
			t.Errorf("completion %d: status %d, want %v", i, wc.status, want)
		}
	}
}

// TestInjectedEvent: C gets an asynchronous event, and the flush after it.
func TestInjectedEvent(t *testing.T) {
	u := newUser(t, roce)
	h, _ := u.pair()
	var done cInt
	check(t, srPostRecv(h, &cRecvWR{}, &done))
	u.fault("event=QP_FATAL")
	var e _Ctype_struct_sr_async_event
	for end := time.Now().Add(20 * time.Second); srGetAsyncEvent(u.context, &e) != 0; {
		if time.Now().After(end) {
			t.Fatal("there is no event")
		}
	}
	if verbs.AsyncEventType(e._type) != verbs.EventQPFatal || e.of != u.events {
		t.Errorf("event %+v", e)
	}
	if wc := u.poll(u.cq); verbs.WCStatus(wc.status) != verbs.WCWRFlushErr {
		t.Errorf("status %d", wc.status)
	}
}

// TestInjectedBind: an injected EADDRINUSE is not taken for a listener that is retained.
func TestInjectedBind(t *testing.T) {
	u := newUser(t, roce)
	u.fault("rdma_bind_addr=EADDRINUSE")
	c := newCMUser(t, rdmacm.TCP)
	fails(t, "rdma_bind_addr", srCMBind(c.id, cAddrOf("0.0.0.0:7495")), syscall.EADDRINUSE)
	check(t, srCMBind(c.id, cAddrOf("0.0.0.0:7495")))
}

// TestInjectedListen: rlisten takes an injected EADDRINUSE for no port that only iWARP cannot have:
// it does not listen with RoCE alone.
func TestInjectedListen(t *testing.T) {
	u := newUser(t, roce)
	s := newRsocket(t, syscall.AF_INET, 0)
	check(t, srRsBind(s, cAddrOf("0.0.0.0:7498")))
	u.fault("rdma_listen=EADDRINUSE")
	fails(t, "rlisten", srRsListen(s, 1), syscall.EADDRINUSE)
	check(t, srRsListen(s, 1))
}

// TestInjectedCM: each call of rdma_cm that a program makes fails once with the errno of a rule,
// and does nothing. The engine's own calls count as none.
func TestInjectedCM(t *testing.T) {
	u := newUser(t, roce)
	c := newCMUser(t, rdmacm.TCP)
	u.fault("rdma_bind_addr=EADDRINUSE; rdma_listen=EADDRINUSE; rdma_destroy_id=EIO; rdma_create_qp=ENOMEM; rdma_create_srq=EINVAL")
	faults, err := stacks.nodes[0].Faults.Device()
	if err != nil {
		t.Fatal(err)
	}
	before := faults.Sites()
	var other cU32
	check(t, srCMCreateID(c.channel, 0x4321, cInt(rdmacm.TCP), &other))
	for again := range 2 {
		calls := []struct {
			name string
			call func(id cU32) cInt
			want syscall.Errno
		}{
			{"rdma_bind_addr", func(id cU32) cInt { return srCMBind(id, cAddrOf("0.0.0.0:7496")) }, syscall.EADDRINUSE},
			{"rdma_create_qp", func(id cU32) cInt { return srCMFault(id, 0) }, syscall.ENOMEM},
			{"rdma_create_srq", func(id cU32) cInt { return srCMFault(id, 1) }, syscall.EINVAL},
			{"rdma_listen", func(id cU32) cInt { return srCMListen(id, 1) }, syscall.EADDRINUSE},
			{"rdma_destroy_id", func(id cU32) cInt { return srCMDestroyID(id, new(cU32)) }, syscall.EIO},
		}
		for _, k := range calls {
			if again == 0 {
				fails(t, k.name, k.call(other), k.want)
			}
			check(t, k.call(other))
		}
		// The listener is retained, and the next ID takes it over.
		if again == 0 {
			check(t, srCMCreateID(c.channel, 0x4321, cInt(rdmacm.TCP), &other))
		}
		for _, k := range calls {
			if n, want := faults.Sites()[k.name]-before[k.name], uint64(2+again); n != want {
				t.Errorf("round %d: %d calls of %s, want %d", again, n, k.name, want)
			}
		}
	}
	if n := faults.Sites()["rdma_create_id"] - before["rdma_create_id"]; n != 2 {
		t.Errorf("%d calls of rdma_create_id", n)
	}
	if n := faults.Sites()["rdma_migrate_id"] - before["rdma_migrate_id"]; n != 0 {
		t.Errorf("%d calls of rdma_migrate_id", n)
	}
}
