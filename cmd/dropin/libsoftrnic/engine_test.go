//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// The types of softrnic.h, under the names that cgo gives them: a test file cannot import "C".
type (
	cInt     = _Ctype_int
	cU8      = _Ctype_uint8_t
	cU16     = _Ctype_uint16_t
	cU32     = _Ctype_uint32_t
	cU64     = _Ctype_uint64_t
	cSize    = _Ctype_size_t
	cSGE     = _Ctype_struct_sr_sge
	cSendWR  = _Ctype_struct_sr_send_wr
	cRecvWR  = _Ctype_struct_sr_recv_wr
	cWC      = _Ctype_struct_sr_wc
	cQPInit  = _Ctype_struct_sr_qp_init_attr
	cQPAttr  = _Ctype_struct_sr_qp_attr
	cAHAttr  = _Ctype_struct_sr_ah_attr
	cSRQInit = _Ctype_struct_sr_srq_init_attr
	cSRQAttr = _Ctype_struct_sr_srq_attr
	cEvents  = _Ctype_struct_sr_events
	cAddr    = _Ctype_struct_sr_cm_addr
	cDevice  = _Ctype_struct_sr_device
)

// The devices of the engine under test, which are those of one stack on a pipe.
const (
	roce  cInt = 0
	iwarp cInt = 1
	addr       = "10.9.0.1"
	// gidIndex is the index of the address as a GID of type RoCEv2.
	gidIndex = 1
)

// deviceList opens the engine, once for all tests.
var deviceList = sync.OnceValues(func() ([]cDevice, cInt) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "SOFTRNIC_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("SOFTRNIC_LINK", "pipe")
	os.Setenv("SOFTRNIC_ADDR", addr+"/24,fd00:9::1/64")
	list, n := make([]cDevice, _Ciconst_SR_MAX_DEVICES), cInt(0)
	err := srOpen(&list[0], &n, 0)
	return list[:n], err
})

// check ends the test if a function of the engine has failed.
func check(t testing.TB, err cInt) {
	t.Helper()
	if err != 0 {
		t.Fatalf("error %d: %v", err, syscall.Errno(err))
	}
}

// fails checks the errno of a function of the engine.
func fails(t testing.TB, what string, err cInt, want syscall.Errno) {
	t.Helper()
	if syscall.Errno(err) != want {
		t.Errorf("%s: errno %d (%v), want %d (%v)", what, err, syscall.Errno(err), want, want)
	}
}

// user has a context with a PD and a CQ, as a program has.
type user struct {
	testing.TB
	dev              cInt
	context, pd, cq  cU32
	asyncFD          cInt
	cqEvents, events *cEvents
}

func newUser(t testing.TB, dev cInt) *user {
	t.Helper()
	_, err := deviceList()
	check(t, err)
	u := &user{TB: t, dev: dev, cqEvents: new(cEvents), events: new(cEvents)}
	check(t, srOpenContext(dev, &u.context, &u.asyncFD))
	t.Cleanup(func() { check(t, srCloseContext(u.context)) })
	check(t, srAllocPD(u.context, &u.pd))
	t.Cleanup(func() { check(t, srDeallocPD(u.pd)) })
	u.cq = u.newCQ(256)
	return u
}

func (u *user) newCQ(cqe cInt) (h cU32) {
	u.Helper()
	var room cInt
	check(u, srCreateCQ(u.context, cqe, 0, 0, u.cqEvents, new(cU32), &h, &room))
	if room < cqe {
		u.Fatalf("a CQ for %d completions has room for %d", cqe, room)
	}
	u.Cleanup(func() { check(u, srDestroyCQ(h)) })
	return h
}

// qpInit returns the attributes of a new QP.
func (u *user) qpInit(kind verbs.QPType) cQPInit {
	a := cQPInit{events: u.events, pd: u.pd, send_cq: u.cq, recv_cq: u.cq, _type: cU32(kind)}
	a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge, a.cap.max_inline_data = 32, 32, 4, 4, 128
	return a
}

func (u *user) newQP(kind verbs.QPType) (h, num cU32) {
	u.Helper()
	a := u.qpInit(kind)
	check(u, srCreateQP(&a, &h, &num))
	u.Cleanup(func() { check(u, srDestroyQP(h)) })
	return h, num
}

// gid returns the device's own GID.
func (u *user) gid() (g [16]cU8) {
	var e _Ctype_struct_sr_gid_entry
	check(u, srQueryGID(u.dev, 1, gidIndex, &e))
	return e.gid
}

func (u *user) path() cAHAttr {
	return cAHAttr{dgid: u.gid(), sgid_index: gidIndex, hop_limit: 1, is_global: 1, port_num: 1}
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind

func modify(h cU32, a cQPAttr, mask verbs.QPAttrMask) cInt { return srModifyQP(h, &a, cInt(mask)) }

// connect moves an RC QP to RTS.
func (u *user) connect(h, peer cU32) {
	u.Helper()
	check(u, modify(h, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1, qp_access_flags: cU32(allAccess)},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	check(u, modify(h, cQPAttr{qp_state: cU32(verbs.StateRTR), path_mtu: cU32(verbs.MTU1024), dest_qp_num: peer, max_dest_rd_atomic: 4,
		min_rnr_timer: 12, ah_attr: u.path()}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	check(u, modify(h, cQPAttr{qp_state: cU32(verbs.StateRTS), timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxQPRDAtomic))
}

// pair returns two connected RC QPs.
func (u *user) pair() (a, b cU32) {
	u.Helper()
	a, numA := u.newQP(verbs.RC)
	b, numB := u.newQP(verbs.RC)
	u.connect(a, numB)
	u.connect(b, numA)
	return a, b
}

// region is registered memory.
type region struct {
	buf           []byte
	h, lkey, rkey cU32
}

func (u *user) register(buf []byte) (r region) {
	u.Helper()
	r.buf = buf
	check(u, srRegMR(u.pd, unsafe.Pointer(&buf[0]), cSize(len(buf)), cU64(r.addr(0)), cU32(allAccess), &r.h, &r.lkey, &r.rkey))
	u.Cleanup(func() { check(u, srDeregMR(r.h)) })
	return r
}

func (r *region) addr(offset int) cU64 { return cU64(uintptr(unsafe.Pointer(&r.buf[offset]))) }

func (r *region) sge(offset, n int) cSGE {
	return cSGE{addr: r.addr(offset), length: cU32(n), lkey: r.lkey}
}

// send posts a list, and returns the errno and the number of posted requests.
func send(h cU32, wr *cSendWR, flags cInt) (err, done cInt) {
	var got cInt
	err = srPostSend(h, wr, flags|16<<_Ciconst_SR_POST_SGES, &done, 0, nil, &got)
	return err, done
}

// poll waits for a completion.
func (u *user) poll(cq cU32) cWC {
	u.Helper()
	var wcs [1]cWC
	for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		var got, none cInt
		if check(u, srPollCQ(cq, 1, &wcs[0], nil, &got, 0, nil, &none)); got == 1 {
			return wcs[0]
		}
		if time.Now().After(end) {
			u.Fatal("there is no completion")
		}
	}
}
