//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs"
)

// pages maps memory.
func pages(t testing.TB, n, prot int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n*os.Getpagesize(), prot, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

const readWrite = unix.PROT_READ | unix.PROT_WRITE

// at returns an address as a pointer of C.
func at(addr cU64) unsafe.Pointer { return pointer(&addr) }

// TestRegMRErrors: the errno for memory that cannot be registered, which is not read.
func TestRegMRErrors(t *testing.T) {
	u := newUser(t, roce)
	p := pages(t, 3, readWrite)
	page := os.Getpagesize()
	if err := unix.Mprotect(p[page:2*page], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(p[2*page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	base := cU64(uintptr(unsafe.Pointer(&p[0])))
	const read, write = cU32(verbs.AccessRemoteRead), cU32(verbs.AccessLocalWrite)
	for _, c := range []struct {
		name   string
		addr   cU64
		length int64
		access cU32
		want   syscall.Errno
	}{
		{"one page", base, int64(page), write, 0},
		{"nothing", 0, 0, write, 0},
		{"NULL", 0, 1, write, syscall.EFAULT},
		{"address 1", 1, 8, write, syscall.EFAULT},
		{"an inaccessible page", base + 2*cU64(page), 8, read, syscall.EFAULT},
		{"read-only memory to read", base + cU64(page), int64(page), read, 0},
		{"read-only memory to write", base + cU64(page), int64(page), write, syscall.EFAULT},
		{"the last byte is inaccessible", base, 2*int64(page) + 1, read, syscall.EFAULT},
		{"inaccessible, on demand", base, 3 * int64(page), write | cU32(verbs.AccessOnDemand), 0},
		{"the last bytes of the address space", math.MaxUint64 - 7, 7, read, syscall.EFAULT},
		{"the end of the address space", math.MaxUint64 - 7, 8, read, syscall.EINVAL}, // as in the kernel
		{"beyond the address space", math.MaxUint64 - 7, 9, read, syscall.EINVAL},
		{"a length beyond the address space", base, -1, read, syscall.EINVAL},
		{"a length of 63 bits", base, math.MaxInt64, read, syscall.EFAULT},
		{"remote writes without local ones", base, 8, cU32(verbs.AccessRemoteWrite), syscall.EINVAL},
		{"remote atomics without local writes", base, 8, cU32(verbs.AccessRemoteAtomic), syscall.EINVAL},
		{"an unknown right", base, 8, 1 << 31, syscall.EINVAL},
	} {
		var h, lkey, rkey cU32
		err := srRegMR(u.pd, at(c.addr), cSize(c.length), c.addr, c.access, &h, &lkey, &rkey)
		fails(t, c.name, err, c.want)
		if err == 0 {
			check(t, srDeregMR(h))
		}
	}
}

// TestRereg: results of ibv_rereg_mr, an enum ibv_rereg_mr_err_code.
func TestRereg(t *testing.T) {
	u := newUser(t, roce)
	p := pages(t, 2, readWrite)
	r := u.register(p)
	for _, c := range []struct {
		name  string
		h     cU32
		flags verbs.ReregFlags
		pd    cU32
		addr  unsafe.Pointer
		want  syscall.Errno
		code  cInt
	}{
		{"no region", r.h + 1000, verbs.ReregAccess, 0, nil, syscall.ENOENT, -1},
		{"no PD", r.h, verbs.ReregPD, 1 << 30, nil, syscall.ENOENT, -1},
		{"memory at NULL", r.h, verbs.ReregTranslation, 0, nil, syscall.EFAULT, -1},
		{"no flags", r.h, 0, 0, nil, syscall.EINVAL, -4},
		{"unknown flags", r.h, 1 << 30, 0, nil, syscall.EINVAL, -4},
		{"unmapped memory", r.h, verbs.ReregTranslation, 0, at(1 << 20), syscall.EFAULT, -4},
		{"a part", r.h, verbs.ReregTranslation, 0, unsafe.Pointer(&p[64]), 0, 0},
		{"rights", r.h, verbs.ReregAccess, 0, nil, 0, 0},
	} {
		var lkey, rkey cU32
		code := cInt(99)
		fails(t, c.name, srReregMR(c.h, cInt(c.flags), c.pd, c.addr, 64, cU32(verbs.AccessLocalWrite), &lkey, &rkey, &code), c.want)
		if code != c.code {
			t.Errorf("%s: code %d, want %d", c.name, code, c.code)
		}
	}
}

// TestAdvise: every range of a list must be in a region of the PD, and for writing in one with that
// right, however long the list is.
func TestAdvise(t *testing.T) {
	u, other := newUser(t, roce), newUser(t, roce)
	r, foreign := u.register(make([]byte, 64)), other.register(make([]byte, 64))
	list := make([]cSGE, maxSGEs+1)
	for i := range list {
		list[i] = r.sge(i%64, 1)
	}
	for write := range cInt(2) {
		check(t, srAdviseMR(u.pd, write, &list[0], cU32(len(list))))
		for name, bad := range map[string]struct {
			sge  cSGE
			want syscall.Errno
		}{
			"beyond the end": {r.sge(63, 2), syscall.EFAULT},
			"a forged key":   {cSGE{addr: r.addr(0), length: 1, lkey: r.lkey + 1}, syscall.ENOENT},
			"another PD's":   {foreign.sge(0, 1), syscall.EPERM},
			"an overflow":    {cSGE{addr: math.MaxUint64, length: math.MaxUint32, lkey: r.lkey}, syscall.EFAULT},
		} {
			end := list[:len(list):len(list)]
			fails(t, name, srAdviseMR(u.pd, write, &append(end, bad.sge)[0], cU32(len(end)+1)), bad.want)
		}
		fails(t, "no list", srAdviseMR(u.pd, write, nil, 1), syscall.EINVAL)
	}
	readOnly := region{buf: make([]byte, 64)}
	check(t, srRegMR(u.pd, unsafe.Pointer(&readOnly.buf[0]), 64, cU64(readOnly.addr(0)), 0, &readOnly.h, &readOnly.lkey, &readOnly.rkey))
	sge := readOnly.sge(0, 64)
	check(t, srAdviseMR(u.pd, 0, &sge, 1))
	fails(t, "a region without the right", srAdviseMR(u.pd, 1, &sge, 1), syscall.EPERM)
	check(t, srDeregMR(readOnly.h))
}

// TestUnmapped: an access to memory that the program has unmapped ends the request with a status.
func TestUnmapped(t *testing.T) {
	u := newUser(t, roce)
	for _, c := range []struct {
		op   verbs.WROpcode
		gone string
		want verbs.WCStatus
	}{
		{verbs.RDMAWrite, "source", verbs.WCLocProtErr}, {verbs.RDMAWrite, "destination", verbs.WCRemOpErr},
		{verbs.RDMARead, "source", verbs.WCRemOpErr}, {verbs.RDMARead, "destination", verbs.WCLocProtErr},
	} {
		a, _ := u.pair()
		local, remote := u.register(pages(t, 1, readWrite)), u.register(pages(t, 1, readWrite))
		gone := local
		if (c.gone == "source") != (c.op == verbs.RDMAWrite) {
			gone = remote
		}
		sge := local.sge(0, 64)
		wr := cSendWR{sg_list: &sge, num_sge: 1, opcode: cU32(c.op), send_flags: cU32(verbs.SendSignaled), remote_addr: remote.addr(0),
			word1: cU64(remote.rkey)}
		if err := unix.Munmap(gone.buf); err != nil {
			t.Fatal(err)
		}
		if err, _ := send(a, &wr, 0); err != 0 {
			t.Fatal(syscall.Errno(err))
		}
		if wc := u.poll(u.cq); wc.status != cU32(c.want) {
			t.Errorf("%v without its %s: %v, want %v", c.op, c.gone, verbs.WCStatus(wc.status), c.want)
		}
	}
}
