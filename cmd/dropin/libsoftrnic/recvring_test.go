//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"bytes"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

type (
	cRing   = _Ctype_struct_sr_recv_ring
	cRingWR = _Ctype_struct_sr_ring_wr
)

// TestRecvRing: messages are received in what C writes to a ring, without a call.
func TestRecvRing(t *testing.T) {
	if unsafe.Sizeof(cRingWR{}) != unsafe.Sizeof(verbs.RingRecvWR{}) {
		t.Fatal("the structures differ")
	}
	u := newUser(t, roce)
	if verbs.InjectorOf(stacks.devices[roce].dev) != nil { // by another test; it is asked at each post
		out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRecvRing$", "-test.v").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestRecvRing")) {
			t.Fatalf("in a process of its own: %v\n%s", err, out)
		}
		return
	}
	a, numA := u.newQP(verbs.RC)
	b, numB := u.newQP(verbs.RC)
	var wrs [32]cRingWR
	var sges [32 * 4]cSGE
	ring := &cRing{size: 32, wrs: &wrs[0], sges: &sges[0]}
	short := *ring
	short.size = 31
	fails(t, "a ring of 31", srUseRecvRing(b, &short), syscall.EINVAL)
	check(t, srUseRecvRing(b, ring))
	fails(t, "a second ring", srUseRecvRing(b, ring), syscall.EINVAL)
	u.connect(a, numB)
	u.connect(b, numA)
	if ring.closed != 0 {
		t.Fatal("the ring is closed")
	}
	r := u.register(make([]byte, 64))
	from := r.sge(0, 8)
	wr := cSendWR{sg_list: &from, num_sge: 1, opcode: cU32(verbs.Send)}
	for i := range 100 {
		slot := i % 32
		wrs[slot] = cRingWR{wr_id: cU64(i), num_sge: 2}
		sges[slot*4], sges[slot*4+1] = r.sge(8, 4), r.sge(32, 4)
		atomic.AddUint32((*uint32)(&ring.posted), 1)
		copy(r.buf, []byte{byte(i), 1, 2, 3, 4, 5, 6, 7})
		err, _ := send(a, &wr, 0)
		check(t, err)
		if wc := u.poll(u.cq); wc.wr_id != cU64(i) || wc.status != 0 || wc.byte_len != 8 || wc.qp_num != numB {
			t.Fatalf("message %d: %+v", i, wc)
		}
		if r.buf[8] != byte(i) || r.buf[11] != 3 || r.buf[32] != 4 || r.buf[35] != 7 {
			t.Fatalf("message %d was received as % x", i, r.buf)
		}
	}
	if ring.completed != 100 {
		t.Errorf("%d requests are complete, want 100", ring.completed)
	}
	atomic.AddUint32((*uint32)(&ring.posted), 1) // with the request that was in this slot
	check(t, modify(b, cQPAttr{qp_state: cU32(verbs.StateErr)}, verbs.QPAttrState))
	if wc := u.poll(u.cq); wc.status != cU32(verbs.WCWRFlushErr) || ring.closed == 0 {
		t.Errorf("%+v in ERR, and the ring is closed: %d", wc, ring.closed)
	}
	atomic.AddUint32((*uint32)(&ring.posted), 1)
	var done cInt
	check(t, srPostRecv(b, nil, &done))
	if wc := u.poll(u.cq); wc.status != cU32(verbs.WCWRFlushErr) {
		t.Errorf("%+v after ERR", wc)
	}
}

// TestRecvRingOverIWARP: a sender waits for the receive request there, and the post wakes it.
func TestRecvRingOverIWARP(t *testing.T) {
	u := newUser(t, iwarp)
	h, _ := u.newQP(verbs.RC)
	var wrs [32]cRingWR
	var sges [32 * 4]cSGE
	fails(t, "a ring", srUseRecvRing(h, &cRing{size: 32, wrs: &wrs[0], sges: &sges[0]}), syscall.EOPNOTSUPP)
}
