//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// converted returns what set makes of a request.
func converted(c *cSendWR, flags cInt) *verbs.SendWR {
	s := new(sends)
	s.set(0, c, flags|4<<_Ciconst_SR_POST_SGES)
	return &s.wrs[0]
}

// TestSendWR: the fields of each opcode. Those of others are not taken.
func TestSendWR(t *testing.T) {
	u := newUser(t, roce)
	r := u.register(make([]byte, 64))
	path := u.path()
	var ah cU32
	check(t, srCreateAH(u.pd, &path, &ah))
	defer func() { check(t, srDestroyAH(ah)) }()
	// libibverbs' structure of an AH, which a request of a UD QP points to.
	front := new([64]byte)
	*(*cU32)(unsafe.Pointer(&front[_Ciconst_SR_AH_HANDLE])) = ah
	list := [2]cSGE{r.sge(0, 8), r.sge(8, 8)}
	sgl := []verbs.SGE{{Addr: uint64(r.addr(0)), Length: 8, LKey: uint32(r.lkey)}, {Addr: uint64(r.addr(8)), Length: 8, LKey: uint32(r.lkey)}}
	base := cSendWR{wr_id: math.MaxUint64, sg_list: &list[0], num_sge: 2, send_flags: cU32(verbs.SendSignaled | verbs.SendFence),
		imm_data: 0x01020304, remote_addr: 1 << 60, word1: 0x1111111122222222, swap: 3, atomic_rkey: 4, remote_srqn: 0xff000005}
	common := verbs.SendWR{WRID: math.MaxUint64, Flags: verbs.SendSignaled | verbs.SendFence, SGList: sgl, RemoteSRQN: 5}
	rdma := func(w *verbs.SendWR) { w.RemoteAddr, w.RKey = 1<<60, 0x22222222 }
	atomic := func(w *verbs.SendWR) {
		w.RemoteAddr, w.RKey, w.CompareAdd, w.Swap = 1<<60, 4, 0x1111111122222222, 3
	}
	imm := func(w *verbs.SendWR) { rdma(w); w.ImmData = 0x04030201 } // the field is in network byte order
	flush := func(w *verbs.SendWR) { rdma(w); w.FlushLength, w.FlushType, w.FlushLevel = 3, 0x04, 0x03 }
	inv := func(w *verbs.SendWR) { rdma(w); w.InvalidateRKey = 0x01020304 }
	for op, want := range map[verbs.WROpcode]func(*verbs.SendWR){
		verbs.RDMAWrite: rdma, verbs.RDMAWriteWithImm: imm, verbs.Send: rdma, verbs.SendWithImm: imm, verbs.RDMARead: rdma,
		verbs.AtomicCmpAndSwp: atomic, verbs.AtomicFetchAndAdd: atomic, verbs.LocalInv: inv, verbs.SendWithInv: inv,
		verbs.Flush: flush, verbs.AtomicWrite: rdma, 10: rdma, 255: rdma,
	} {
		c, w := base, common
		c.opcode, w.Opcode = cU32(op), op
		want(&w)
		if got := converted(&c, 0); !reflect.DeepEqual(*got, w) {
			t.Errorf("%v: %+v, want %+v", op, *got, w)
		}
	}
	for _, op := range []verbs.WROpcode{verbs.Send, verbs.SendWithImm} {
		c := base
		c.opcode = cU32(op)
		*(*unsafe.Pointer)(unsafe.Pointer(&c.remote_addr)) = unsafe.Pointer(front)
		c.word1 = 0x88888888_ff000007
		got := converted(&c, _Ciconst_SR_POST_UD)
		if got.AH != ahs.Get(uint32(ah)) || got.RemoteQPN != 7 || got.RemoteQKey != 0x88888888 || got.RemoteAddr != 0 {
			t.Errorf("datagram: %+v", *got)
		}
		c.remote_addr = 0
		if got := converted(&c, _Ciconst_SR_POST_UD); got.AH != nil {
			t.Errorf("datagram without an AH: %+v", *got)
		}
	}
	// What does not fit verbs' type becomes a value that verbs refuses.
	c := base
	c.opcode, c.send_flags = 256+cU32(verbs.Send), 0x100
	if got := converted(&c, 0); got.Opcode != 255 || got.Flags != 255 {
		t.Errorf("opcode 258 and flags 0x100 became %d and %#x", got.Opcode, uint8(got.Flags))
	}
}

// TestBindWR: a request to bind a window. The key of a region or window identifies it, whatever its
// handle is.
func TestBindWR(t *testing.T) {
	u := newUser(t, roce)
	r := u.register(make([]byte, 64))
	var window, rkey cU32
	check(t, srAllocMW(u.pd, 2, &window, &rkey))
	defer func() { check(t, srDeallocMW(window)) }()
	mr, mw := new([64]byte), new([64]byte)
	put := func(to *[64]byte, offset int, v cU32) { *(*cU32)(unsafe.Pointer(&to[offset])) = v }
	for _, handles := range [][2]cU32{{r.h, window}, {0, 0}, {1 << 31, 1 << 31}, {window + 100, r.h + 100}} {
		put(mr, _Ciconst_SR_MR_HANDLE, handles[0])
		put(mr, _Ciconst_SR_MR_LKEY, r.lkey)
		put(mw, _Ciconst_SR_MW_HANDLE, handles[1])
		put(mw, _Ciconst_SR_MW_RKEY, rkey)
		c := cSendWR{opcode: cU32(verbs.BindMW), mw: unsafe.Pointer(mw), bind_mr: unsafe.Pointer(mr), bind_rkey: rkey + 1,
			bind_addr: 5, bind_length: 1 << 50, bind_access: cU32(verbs.AccessRemoteWrite | verbs.AccessLocalWrite | verbs.AccessMWBind)}
		got := converted(&c, 0).Bind
		want := &verbs.MWBind{MW: windows.Get(uint32(window)), RKey: uint32(rkey + 1),
			MWBindInfo: verbs.MWBindInfo{MR: regions.Get(uint32(r.h)), Addr: 5, Length: 1 << 50, Access: verbs.AccessRemoteWrite}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("with handles %v: %+v, want %+v", handles, got, want)
		}
	}
	put(mr, _Ciconst_SR_MR_LKEY, r.lkey^1<<20)
	put(mw, _Ciconst_SR_MW_RKEY, rkey^1<<20)
	for _, c := range []cSendWR{{mw: unsafe.Pointer(mw), bind_mr: unsafe.Pointer(mr)}, {}} {
		c.opcode = cU32(verbs.BindMW)
		if got := converted(&c, 0).Bind; got.MW != nil || got.MR != nil {
			t.Errorf("with forged keys: %+v", got)
		}
	}
}

// TestSGEs: a list of C has the layout of verbs'. One that is too long, or not there, becomes one
// that verbs refuses.
func TestSGEs(t *testing.T) {
	if unsafe.Sizeof(cSGE{}) != unsafe.Sizeof(verbs.SGE{}) {
		t.Fatal("the structures differ")
	}
	list := make([]cSGE, maxSGEs)
	list[1] = cSGE{addr: 1, length: 2, lkey: 3}
	if got := sges(&list[0], 2); !slices.Equal(got, []verbs.SGE{{}, {Addr: 1, Length: 2, LKey: 3}}) {
		t.Errorf("%+v", got)
	}
	if got := sges(nil, 0); len(got) != 0 {
		t.Errorf("%d SGEs, want none", len(got))
	}
	if got := sges(&list[0], maxSGEs); len(got) != maxSGEs {
		t.Errorf("%d SGEs, want %d", len(got), maxSGEs)
	}
	most := stacks.devices[roce].dev.QueryDevice().MaxSGE
	for _, c := range []struct {
		list *cSGE
		n    cInt
	}{{nil, 1}, {nil, -1}, {&list[0], -1}, {&list[0], math.MinInt32}, {&list[0], maxSGEs + 1}, {&list[0], math.MaxInt32}} {
		if got := sges(c.list, c.n); len(got) <= most {
			t.Errorf("%d SGEs at %p became %d, want more than any device accepts", c.n, c.list, len(got))
		}
	}
}

// TestInline: the data of an inline request. A list that the front has not read is not read.
func TestInline(t *testing.T) {
	data := []byte("0123456789abcdef")
	at := func(offset, n int) cSGE {
		return cSGE{addr: cU64(uintptr(unsafe.Pointer(&data[offset]))), length: cU32(n)}
	}
	bad := cSGE{addr: 1, length: 8}
	for _, c := range []struct {
		name string
		list []cSGE
		n    cInt
		want string
	}{
		{"none", nil, 0, ""},
		{"one", []cSGE{at(4, 3)}, 1, "456"},
		{"one empty", []cSGE{{}}, 1, ""},
		{"several", []cSGE{at(0, 2), {}, at(8, 1), at(15, 1)}, 4, "018f"},
		{"all", []cSGE{at(0, 16), at(0, 16)}, 2, "0123456789abcdef0123456789abcdef"},
	} {
		w := cSendWR{opcode: cU32(verbs.Send), send_flags: cU32(verbs.SendInline), num_sge: c.n}
		if c.list != nil {
			w.sg_list = &c.list[0]
		}
		if got := converted(&w, 0); string(got.InlineData) != c.want || len(got.SGList) != 0 {
			t.Errorf("%s: %q and %d SGEs, want %q", c.name, got.InlineData, len(got.SGList), c.want)
		}
	}
	long := at(0, 1)
	long.length = math.MaxUint32
	for _, c := range []struct {
		name string
		list []cSGE
		n    cInt
	}{
		{"more SGEs than the QP has", []cSGE{bad, bad, bad, bad, bad}, 5},
		{"a negative number", []cSGE{bad}, -1},
		{"no list", nil, 1},
		{"lengths that overflow 32 bits", []cSGE{long, long}, 2},
	} {
		w := cSendWR{opcode: cU32(verbs.Send), send_flags: cU32(verbs.SendInline), num_sge: c.n}
		if c.list != nil {
			w.sg_list = &c.list[0]
		}
		if got := converted(&w, 0); len(got.InlineData) < maxInline {
			t.Errorf("%s: %d bytes, want more than any QP accepts", c.name, len(got.InlineData))
		}
	}
	// The data of several requests of a list is kept apart.
	s := new(sends)
	for i, list := range [][2]cSGE{{at(0, 1), at(1, 1)}, {at(2, 10), at(3, 10)}, {at(5, 1), at(6, 1)}} {
		s.set(i, &cSendWR{send_flags: cU32(verbs.SendInline), num_sge: 2, sg_list: &list[0]}, 4<<_Ciconst_SR_POST_SGES)
	}
	if got := [][]byte{s.wrs[0].InlineData, s.wrs[1].InlineData, s.wrs[2].InlineData}; !slices.EqualFunc(got,
		[]string{"01", "23456789ab3456789abc", "56"}, func(b []byte, s string) bool { return string(b) == s }) {
		t.Errorf("%q", got)
	}
}

// TestOperations: every operation of an RC QP, from the request of C to its completion.
func TestOperations(t *testing.T) {
	u := newUser(t, roce)
	a, b := u.pair()
	from, to := u.register([]byte("fedcba9876543210")), u.register(make([]byte, 16))
	var num cU32
	var attr cQPAttr
	check(t, srQueryQP(a, &attr))
	num = attr.dest_qp_num // b
	for i, c := range []struct {
		op       verbs.WROpcode
		flags    verbs.SendFlags
		done     verbs.WCOpcode // of the request
		received verbs.WCOpcode // at the peer, if that has a completion
		n        cU32           // bytes received or read
		want     string         // in the memory to
	}{
		{op: verbs.Send, done: verbs.WCSend, received: verbs.WCRecv, n: 16, want: "fedcba9876543210"},
		{op: verbs.Send, flags: verbs.SendInline, done: verbs.WCSend, received: verbs.WCRecv, n: 16, want: "fedcba9876543210"},
		{op: verbs.SendWithImm, done: verbs.WCSend, received: verbs.WCRecv, n: 16, want: "fedcba9876543210"},
		{op: verbs.RDMAWrite, done: verbs.WCRDMAWrite, want: "fedcba9876543210"},
		{op: verbs.RDMAWriteWithImm, done: verbs.WCRDMAWrite, received: verbs.WCRecvRDMAWithImm, n: 16, want: "fedcba9876543210"},
		{op: verbs.RDMARead, done: verbs.WCRDMARead, n: 16, want: "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
	} {
		clear(to.buf)
		copy(from.buf, "fedcba9876543210")
		sge, receive := from.sge(0, 16), to.sge(0, 16)
		if c.received != 0 {
			var done cInt
			check(t, srPostRecv(b, &cRecvWR{wr_id: 1000, sg_list: &receive, num_sge: 1}, &done))
		}
		wr := cSendWR{wr_id: cU64(i), sg_list: &sge, num_sge: 1, opcode: cU32(c.op), send_flags: cU32(c.flags | verbs.SendSignaled),
			imm_data: 0x04030201, remote_addr: to.addr(0), word1: cU64(to.rkey)}
		if err, done := send(a, &wr, 0); err != 0 || done != 1 {
			t.Fatalf("%v: %v, %d posted", c.op, syscall.Errno(err), done)
		}
		for left := 1 + min(int(c.received), 1); left > 0; left-- {
			wc := u.poll(u.cq)
			switch {
			case wc.status != cU32(verbs.WCSuccess):
				t.Fatalf("%v: status %v", c.op, verbs.WCStatus(wc.status))
			case wc.wr_id == 1000:
				if wc.opcode != cU32(c.received) || wc.byte_len != c.n || wc.qp_num != num {
					t.Errorf("%v: received %+v", c.op, wc)
				}
				if withImm := wc.wc_flags&cU32(verbs.WCWithImm) != 0; withImm && wc.imm_data != 0x04030201 ||
					withImm != (c.op == verbs.SendWithImm || c.op == verbs.RDMAWriteWithImm) {
					t.Errorf("%v: received %+v", c.op, wc)
				}
			case wc.wr_id != cU64(i) || wc.opcode != cU32(c.done):
				t.Errorf("%v: completed with %+v", c.op, wc)
			}
		}
		if c.op == verbs.RDMARead {
			clear(to.buf)
			if !bytes.Equal(from.buf, to.buf) {
				t.Errorf("%v: read %q", c.op, from.buf)
			}
		} else if string(to.buf) != c.want {
			t.Errorf("%v: %q", c.op, to.buf)
		}
	}
}

// TestAtomics: the operands of both operations, and the value that was there.
func TestAtomics(t *testing.T) {
	u := newUser(t, roce)
	a, _ := u.pair()
	words := make([]uint64, 2)
	r := u.register(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 16))
	was := r.sge(8, 8)
	for _, c := range []struct {
		op                              verbs.WROpcode
		compareAdd, swap, before, after uint64
		done                            verbs.WCOpcode
	}{
		{verbs.AtomicCmpAndSwp, 5, 1 << 40, 5, 1 << 40, verbs.WCCompSwap}, {verbs.AtomicCmpAndSwp, 5, 7, 6, 6, verbs.WCCompSwap},
		{verbs.AtomicFetchAndAdd, math.MaxUint64, 0, 9, 8, verbs.WCFetchAdd},
	} {
		words[0], words[1] = c.before, 0
		wr := cSendWR{sg_list: &was, num_sge: 1, opcode: cU32(c.op), send_flags: cU32(verbs.SendSignaled), remote_addr: r.addr(0),
			atomic_rkey: r.rkey, word1: cU64(c.compareAdd), swap: cU64(c.swap)}
		if err, _ := send(a, &wr, 0); err != 0 {
			t.Fatal(syscall.Errno(err))
		}
		if wc := u.poll(u.cq); wc.status != 0 || wc.opcode != cU32(c.done) || words[0] != c.after || words[1] != c.before {
			t.Errorf("%v: %+v, and %d was %d, want %d and %d", c.op, wc, words[0], words[1], c.after, c.before)
		}
	}
}

// TestBind: binding a window writes its new key to libibverbs' structure. An invalidated window
// gives no access.
func TestBind(t *testing.T) {
	u := newUser(t, roce)
	a, _ := u.pair()
	r := u.register(make([]byte, 64))
	var window, rkey cU32
	check(t, srAllocMW(u.pd, 2, &window, &rkey))
	defer func() { check(t, srDeallocMW(window)) }()
	mr, mw := new([16]cU32), new([16]cU32)
	mr[_Ciconst_SR_MR_HANDLE/4], mr[_Ciconst_SR_MR_LKEY/4] = r.h, r.lkey
	mw[_Ciconst_SR_MW_HANDLE/4], mw[_Ciconst_SR_MW_RKEY/4] = window, rkey
	// The window is of the QP's peer, which is in the same PD.
	post := func(wr cSendWR) verbs.WCStatus {
		t.Helper()
		wr.send_flags = cU32(verbs.SendSignaled)
		if err, _ := send(a, &wr, 0); err != 0 {
			t.Fatal(syscall.Errno(err))
		}
		return verbs.WCStatus(u.poll(u.cq).status)
	}
	if s := post(cSendWR{opcode: cU32(verbs.BindMW), mw: unsafe.Pointer(mw), bind_mr: unsafe.Pointer(mr), bind_rkey: rkey + 1,
		bind_addr: r.addr(0), bind_length: 64, bind_access: cU32(verbs.AccessRemoteWrite)}); s != verbs.WCSuccess {
		t.Fatal(s)
	}
	bound := mw[_Ciconst_SR_MW_RKEY/4]
	if want := rkey&^0xff | (rkey+1)&0xff; bound != want {
		t.Errorf("the key is %#x, want %#x", bound, want)
	}
	if s := post(cSendWR{opcode: cU32(verbs.LocalInv), imm_data: bound}); s != verbs.WCSuccess {
		t.Errorf("invalidate: %v", s)
	}
	if s := post(cSendWR{opcode: cU32(verbs.LocalInv), imm_data: bound}); s == verbs.WCSuccess {
		t.Errorf("invalidate again: %v", s)
	}
}

// TestPostErrors: the errno of a refused request, and how many before it are posted. With
// SR_POST_ALL none is.
func TestPostErrors(t *testing.T) {
	u := newUser(t, roce)
	a, b := u.pair()
	r := u.register(make([]byte, 4096))
	five := [5]cSGE{r.sge(0, 1), r.sge(0, 1), r.sge(0, 1), r.sge(0, 1), r.sge(0, 1)}
	good := cSendWR{sg_list: &five[0], num_sge: 4, opcode: cU32(verbs.RDMAWrite), remote_addr: r.addr(0), word1: cU64(r.rkey)}
	long := r.sge(0, 4096)
	huge := [4]cSGE{long, long, long, long}
	for i := range huge {
		huge[i].length = math.MaxUint32
	}
	for _, c := range []struct {
		name string
		set  func(*cSendWR)
		want syscall.Errno
	}{
		{"one SGE too many", func(w *cSendWR) { w.num_sge = 5 }, syscall.EINVAL},
		{"a negative number of SGEs", func(w *cSendWR) { w.num_sge = -1 }, syscall.EINVAL},
		{"no list", func(w *cSendWR) { w.sg_list = nil }, syscall.EINVAL},
		{"lengths beyond 32 bits", func(w *cSendWR) { w.sg_list = &huge[0] }, syscall.EINVAL},
		{"inline beyond the limit", func(w *cSendWR) {
			w.sg_list, w.num_sge, w.send_flags = &long, 1, cU32(verbs.SendInline)
		}, syscall.EINVAL},
		{"inline READ", func(w *cSendWR) { w.opcode, w.send_flags = cU32(verbs.RDMARead), cU32(verbs.SendInline) }, syscall.EINVAL},
		{"opcode 10", func(w *cSendWR) { w.opcode = 10 }, syscall.EOPNOTSUPP},
		{"opcode 16", func(w *cSendWR) { w.opcode = 16 }, syscall.EINVAL},
		{"opcode 256", func(w *cSendWR) { w.opcode = 256 }, syscall.EINVAL},
		{"IP_CSUM", func(w *cSendWR) { w.send_flags = 1 << 4 }, syscall.EINVAL},
		{"flag 0x100", func(w *cSendWR) { w.send_flags = 0x100 }, syscall.EINVAL},
		{"flag 0x100, two SGEs", func(w *cSendWR) { w.num_sge, w.send_flags = 2, 0x100 }, syscall.EINVAL},
		{"flag 0x100, no SGE", func(w *cSendWR) { w.num_sge, w.send_flags = 0, 0x100 }, syscall.EINVAL},
	} {
		for _, all := range []bool{false, true} {
			bad, first := good, good
			c.set(&bad)
			first.next = &bad
			bad.next = &good
			flags, want := cInt(0), cInt(1)
			if all {
				flags, want = _Ciconst_SR_POST_ALL, 0
			}
			err, done := send(a, &first, flags)
			if fails(t, c.name, err, c.want); done != want {
				t.Errorf("%s: %d posted, want %d", c.name, done, want)
			}
		}
		alone := good
		c.set(&alone)
		err, done := send(a, &alone, 0)
		if fails(t, c.name+", alone", err, c.want); done != 0 {
			t.Errorf("%s, alone: %d posted", c.name, done)
		}
	}
	check(t, modify(b, cQPAttr{qp_state: cU32(verbs.StateErr)}, verbs.QPAttrState))
	recv := cRecvWR{sg_list: &five[0], num_sge: 5}
	next := cRecvWR{sg_list: &five[0], num_sge: 4, next: &recv}
	var done cInt
	fails(t, "receive with one SGE too many", srPostRecv(a, &next, &done), syscall.EINVAL)
	if done != 1 {
		t.Errorf("%d receives are posted, want 1", done)
	}
}

// TestQueueFull: a list longer than a batch is posted up to the last free entry of the queue.
func TestQueueFull(t *testing.T) {
	u := newUser(t, roce)
	h, _ := u.newQP(verbs.RC)
	check(t, modify(h, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	var attr cQPAttr
	check(t, srQueryQP(h, &attr))
	wrs := make([]cRecvWR, attr.cap.max_recv_wr+5)
	for i := range wrs[1:] {
		wrs[i].next = &wrs[i+1]
	}
	var done cInt
	fails(t, "post", srPostRecv(h, &wrs[0], &done), syscall.ENOMEM)
	if done != cInt(attr.cap.max_recv_wr) {
		t.Errorf("%d are posted, want %d", done, attr.cap.max_recv_wr)
	}
}

// TestWC: the fields of a completion, for each status and opcode.
func TestWC(t *testing.T) {
	var c cWC
	for status := range verbs.WCTMRndvIncomplete + 1 {
		for _, op := range []verbs.WCOpcode{verbs.WCSend, verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCCompSwap, verbs.WCFetchAdd,
			verbs.WCBindMW, verbs.WCLocalInv, verbs.WCTSO, verbs.WCFlush, verbs.WCAtomicWrite, verbs.WCRecv, verbs.WCRecvRDMAWithImm} {
			w := filled[verbs.WC]()
			w.Status, w.Opcode, w.Flags, w.NetworkHdrType, w.ImmData = status, op, verbs.WCWithImm|verbs.WCGRH, 0, 0x01020304
			setWC(&c, &w)
			want := cWC{wr_id: cU64(w.WRID), status: cU32(status), opcode: cU32(op), vendor_err: cU32(w.VendorErr),
				byte_len: cU32(w.ByteLen), imm_data: 0x04030201, qp_num: cU32(w.QPNum), src_qp: cU32(w.SrcQP), wc_flags: 3,
				pkey_index: cU16(w.PKeyIndex), slid: cU16(w.SLID), sl: cU8(w.SL), dlid_path_bits: cU8(w.DLIDPathBits)}
			if c != want {
				t.Errorf("%+v, want %+v", c, want)
			}
		}
	}
	w := verbs.WC{Flags: verbs.WCWithInv, InvalidatedRKey: 0x01020304, ImmData: 5}
	if setWC(&c, &w); c.imm_data != 0x01020304 {
		t.Errorf("invalidated rkey %#x", c.imm_data)
	}
	for hdr, want := range map[verbs.NetworkHdrType]cU8{verbs.NetworkHdrNone: 5, verbs.NetworkHdrIPv6: 9, verbs.NetworkHdrIPv4: 10} {
		w := verbs.WC{NetworkHdrType: hdr, SL: 5}
		if setWC(&c, &w); c.sl != want {
			t.Errorf("%v: sl %d, want %d", hdr, c.sl, want)
		}
	}
	w = verbs.WC{WRID: math.MaxUint64, ByteLen: math.MaxUint32, QPNum: 0xffffff, SrcQP: 0xffffff, VendorErr: math.MaxUint32}
	if setWC(&c, &w); c.wr_id != math.MaxUint64 || c.byte_len != math.MaxUint32 || c.vendor_err != math.MaxUint32 || c.src_qp != 0xffffff {
		t.Errorf("%+v", c)
	}
}

// BenchmarkPostPoll posts a WRITE of 8 bytes and polls its completion.
func BenchmarkPostPoll(b *testing.B) {
	u := newUser(b, roce)
	qp, _ := u.pair()
	r := u.register(make([]byte, 64))
	sge := r.sge(0, 8)
	wr := cSendWR{sg_list: &sge, num_sge: 1, opcode: cU32(verbs.RDMAWrite), send_flags: cU32(verbs.SendSignaled), remote_addr: r.addr(8),
		word1: cU64(r.rkey)}
	wc := new(cWC)
	var got, none cInt
	b.ReportAllocs()
	for b.Loop() {
		if err, _ := send(qp, &wr, 0); err != 0 {
			b.Fatal(syscall.Errno(err))
		}
		for got = 0; got == 0; {
			srPollCQ(u.cq, 1, wc, nil, &got, 0, nil, &none)
		}
	}
}
