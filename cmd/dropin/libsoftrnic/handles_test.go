//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// takingHandles are the exported functions whose first argument is a handle, with the errno for a
// handle without an object.
var takingHandles = map[string]struct {
	f    any
	want syscall.Errno
}{
	"srCloseContext": {srCloseContext, syscall.ENOENT}, "srGetAsyncEvent": {srGetAsyncEvent, syscall.ENOENT},
	"srAllocPD": {srAllocPD, syscall.ENOENT}, "srDeallocPD": {srDeallocPD, syscall.ENOENT},
	"srRegMR": {srRegMR, syscall.ENOENT}, "srRegDmabufMR": {srRegDmabufMR, syscall.ENOENT},
	"srReregMR": {srReregMR, syscall.ENOENT}, "srDeregMR": {srDeregMR, syscall.ENOENT},
	"srAllocNullMR": {srAllocNullMR, syscall.ENOENT}, "srAdviseMR": {srAdviseMR, syscall.ENOENT},
	"srAllocMW": {srAllocMW, syscall.ENOENT}, "srDeallocMW": {srDeallocMW, syscall.ENOENT}, "srBindMW": {srBindMW, syscall.ENOENT},
	"srProgress": {srProgress, syscall.ENOENT}, "srEndProgress": {srEndProgress, syscall.ENOENT},
	"srCreateChannel": {srCreateChannel, syscall.ENOENT}, "srDestroyChannel": {srDestroyChannel, syscall.ENOENT},
	"srGetCQEvent": {srGetCQEvent, syscall.ENOENT}, "srCreateCQ": {srCreateCQ, syscall.ENOENT}, "srResizeCQ": {srResizeCQ, syscall.ENOENT},
	"srModifyCQ": {srModifyCQ, syscall.ENOENT}, "srReqNotifyCQ": {srReqNotifyCQ, syscall.ENOENT},
	"srDestroyCQ": {srDestroyCQ, syscall.ENOENT}, "srPollCQ": {srPollCQ, syscall.EINVAL},
	"srOpenQP": {srOpenQP, syscall.ENOENT}, "srModifyQP": {srModifyQP, syscall.ENOENT}, "srQueryQP": {srQueryQP, syscall.ENOENT},
	"srDestroyQP": {srDestroyQP, syscall.ENOENT}, "srPostSend": {srPostSend, syscall.ENOENT}, "srPostRecv": {srPostRecv, syscall.ENOENT},
	"srUseRecvRing": {srUseRecvRing, syscall.ENOENT},
	"srAttachMcast": {srAttachMcast, syscall.ENOENT}, "srDetachMcast": {srDetachMcast, syscall.ENOENT},
	"srCreateFlow": {srCreateFlow, syscall.ENOENT}, "srDestroyFlow": {srDestroyFlow, syscall.ENOENT},
	"srModifySRQ": {srModifySRQ, syscall.ENOENT}, "srQuerySRQ": {srQuerySRQ, syscall.ENOENT},
	"srDestroySRQ": {srDestroySRQ, syscall.ENOENT}, "srPostSRQRecv": {srPostSRQRecv, syscall.ENOENT},
	"srOpenXRCD": {srOpenXRCD, syscall.ENOENT}, "srCloseXRCD": {srCloseXRCD, syscall.ENOENT},
	"srCreateCompCntr": {srCreateCompCntr, syscall.ENOENT}, "srDestroyCompCntr": {srDestroyCompCntr, syscall.ENOENT},
	"srAttachCompCntr": {srAttachCompCntr, syscall.ENOENT},
	"srCreateAH":       {srCreateAH, syscall.ENOENT}, "srDestroyAH": {srDestroyAH, syscall.ENOENT},

	"srCMDestroyChannel": {srCMDestroyChannel, syscall.EINVAL}, "srCMGetEvent": {srCMGetEvent, syscall.EINVAL},
	"srCMCreateID": {srCMCreateID, syscall.EINVAL}, "srCMDestroyID": {srCMDestroyID, syscall.EINVAL},
	"srCMMigrateID": {srCMMigrateID, syscall.EINVAL}, "srCMQueryID": {srCMQueryID, syscall.EINVAL},
	"srCMSetOption": {srCMSetOption, syscall.EINVAL}, "srCMBind": {srCMBind, syscall.EINVAL},
	"srCMResolveAddr": {srCMResolveAddr, syscall.EINVAL}, "srCMResolveRoute": {srCMResolveRoute, syscall.EINVAL},
	"srCMListen": {srCMListen, syscall.EINVAL}, "srCMUseQP": {srCMUseQP, syscall.EINVAL},
	"srCMFault": {srCMFault, syscall.EINVAL}, "srCMConnect": {srCMConnect, syscall.EINVAL},
	"srCMAccept": {srCMAccept, syscall.EINVAL}, "srCMEstablish": {srCMEstablish, syscall.EINVAL},
	"srCMReject": {srCMReject, syscall.EINVAL}, "srCMDisconnect": {srCMDisconnect, syscall.EINVAL},
	"srCMNotify": {srCMNotify, syscall.EINVAL}, "srCMInitQPAttr": {srCMInitQPAttr, syscall.EINVAL},
	"srCMWriteEvent": {srCMWriteEvent, syscall.EINVAL},
	"srCMJoin":       {srCMJoin, syscall.EINVAL}, "srCMLeave": {srCMLeave, syscall.EINVAL},

	"srRsBind": {srRsBind, syscall.EBADF}, "srRsListen": {srRsListen, syscall.EBADF}, "srRsAccept": {srRsAccept, syscall.EBADF},
	"srRsConnect": {srRsConnect, syscall.EBADF}, "srRsShutdown": {srRsShutdown, syscall.EBADF}, "srRsClose": {srRsClose, syscall.EBADF},
	"srRsRecv": {srRsRecv, syscall.EBADF}, "srRsSend": {srRsSend, syscall.EBADF}, "srRsRecvFrom": {srRsRecvFrom, syscall.EBADF},
	"srRsSendTo": {srRsSendTo, syscall.EBADF}, "srRsMap": {srRsMap, syscall.EBADF}, "srRsUnmap": {srRsUnmap, syscall.EBADF},
	"srRsWriteAt": {srRsWriteAt, syscall.EBADF}, "srRsName": {srRsName, syscall.EBADF},
	"srRsSetOption": {srRsSetOption, syscall.EBADF}, "srRsGetOption": {srRsGetOption, syscall.EBADF},
	"srRsArm": {srRsArm, syscall.EBADF}, "srRsDisarm": {srRsDisarm, syscall.EBADF},
}

// exportsTakingHandles reads the names from the source.
func exportsTakingHandles(t *testing.T) (names []string) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil || len(f.Type.Params.List) == 0 ||
				!strings.HasPrefix(f.Doc.List[len(f.Doc.List)-1].Text, "//export ") {
				continue
			}
			if s, ok := f.Type.Params.List[0].Type.(*ast.SelectorExpr); ok && s.Sel.Name == "uint32_t" {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// call calls a function with a handle, and otherwise with zeros and pointers to zeros.
func call(f any, h cU32) syscall.Errno {
	v := reflect.ValueOf(f)
	args := []reflect.Value{reflect.ValueOf(h)}
	for i := 1; i < v.Type().NumIn(); i++ {
		if in := v.Type().In(i); in.Kind() == reflect.Pointer {
			args = append(args, reflect.New(in.Elem()))
		} else {
			args = append(args, reflect.Zero(in))
		}
	}
	return syscall.Errno(v.Call(args)[0].Int())
}

// TestHandles: each function refuses a handle that is zero, was never given out, or is that of a
// destroyed object, and one that only an object of another kind has.
func TestHandles(t *testing.T) {
	names := exportsTakingHandles(t)
	if len(names) != len(takingHandles) {
		t.Errorf("%d functions take a handle, and the table has %d", len(names), len(takingHandles))
	}
	_, err := deviceList()
	check(t, err)
	// No table has as many objects as this one of contexts.
	var other cU32
	for other < 200 {
		var fd cInt
		check(t, srOpenContext(roce, &other, &fd))
		defer srCloseContext(other)
	}
	for _, name := range names {
		c, ok := takingHandles[name]
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		handles := []cU32{0, 1<<31 - 1, 1 << 31, 1<<32 - 1, other + 1000}
		if !ofContext[name] {
			handles = append(handles, other)
		}
		for _, h := range handles {
			if got := call(c.f, h); got != c.want {
				t.Errorf("%s(%d): errno %d (%v), want %v", name, h, got, got, c.want)
			}
		}
	}
}

// ofContext are the functions that take the handle of a context.
var ofContext = map[string]bool{"srCloseContext": true, "srGetAsyncEvent": true, "srAllocPD": true, "srProgress": true,
	"srEndProgress": true, "srCreateChannel": true, "srCreateCQ": true, "srOpenXRCD": true,
	"srCreateCompCntr": true}

// TestStaleHandles: a destroyed object is not found, and destroying it again does not destroy
// another one.
func TestStaleHandles(t *testing.T) {
	u := newUser(t, roce)
	for _, c := range []struct {
		kind    string
		create  func() (h cU32)
		destroy func(cU32) cInt
		use     []any
	}{
		{"PD", func() (h cU32) { check(t, srAllocPD(u.context, &h)); return h }, srDeallocPD, []any{srAllocNullMR, srCreateAH}},
		{"MR", func() (h cU32) { check(t, srAllocNullMR(u.pd, &h, new(cU32))); return h }, srDeregMR, nil},
		{"MW", func() (h cU32) { check(t, srAllocMW(u.pd, 1, &h, new(cU32))); return h }, srDeallocMW, nil},
		{"AH", func() (h cU32) { a := u.path(); check(t, srCreateAH(u.pd, &a, &h)); return h }, srDestroyAH, nil},
		{"XRCD", func() (h cU32) { check(t, srOpenXRCD(u.context, -1, syscall.O_CREAT, &h)); return h }, srCloseXRCD, []any{srOpenQP}},
		{"QP", func() (h cU32) { a := u.qpInit(verbs.RC); check(t, srCreateQP(&a, &h, new(cU32))); return h }, srDestroyQP,
			[]any{srQueryQP, srModifyQP, srPostSend, srPostRecv}},
		{"completion counter", func() (h cU32) {
			check(t, srCreateCompCntr(u.context, 0, new(cU64), new(cU64), &h))
			return h
		}, srDestroyCompCntr, nil},
		{"CQ", func() (h cU32) {
			check(t, srCreateCQ(u.context, 1, 0, 0, u.cqEvents, new(cU32), &h, new(cInt)))
			return h
		}, srDestroyCQ, []any{srReqNotifyCQ, srResizeCQ}},
		{"SRQ", func() (h cU32) {
			a := cSRQInit{events: u.events, pd: u.pd}
			a.attr.max_wr, a.attr.max_sge = 1, 1
			check(t, srCreateSRQ(&a, &h, new(cU32)))
			return h
		}, srDestroySRQ, []any{srQuerySRQ, srPostSRQRecv}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			stale := c.create()
			check(t, c.destroy(stale))
			fresh := c.create()
			if fresh == stale {
				t.Errorf("handle %d was reused at once", stale)
			}
			fails(t, "destroy again", c.destroy(stale), syscall.ENOENT)
			for _, f := range c.use {
				if err := call(f, stale); err != syscall.ENOENT {
					t.Errorf("use of a stale handle: %v, want ENOENT", err)
				}
			}
			check(t, c.destroy(fresh))
		})
	}
}

// TestForeignHandles: the objects of a QP or SRQ must be of its own context. A CQ or PD of another
// context is not found, as in the kernel.
func TestForeignHandles(t *testing.T) {
	u, other := newUser(t, roce), newUser(t, roce)
	var h, num cU32
	for name, set := range map[string]func(*cQPInit){
		"send CQ": func(a *cQPInit) { a.send_cq = other.cq }, "receive CQ": func(a *cQPInit) { a.recv_cq = other.cq },
		"unknown send CQ": func(a *cQPInit) { a.send_cq = 1 << 30 }, "unknown receive CQ": func(a *cQPInit) { a.recv_cq = 1 << 30 },
		"unknown PD": func(a *cQPInit) { a.pd = 1 << 30 }, "unknown SRQ": func(a *cQPInit) { a.srq = 1 << 30 },
		"unknown XRC domain": func(a *cQPInit) { a.xrcd = 1 << 30 },
	} {
		a := u.qpInit(verbs.RC)
		set(&a)
		fails(t, name, srCreateQP(&a, &h, &num), syscall.ENOENT)
	}
	none := u.qpInit(verbs.RC)
	none.pd = 0
	fails(t, "no PD", srCreateQP(&none, &h, &num), syscall.EINVAL)
	a := cSRQInit{events: u.events, pd: u.pd, cq: other.cq}
	a.attr.max_wr, a.attr.max_sge = 1, 1
	fails(t, "CQ of an SRQ", srCreateSRQ(&a, &h, &num), syscall.ENOENT)
}

// TestHandlesAtOnce: many threads create, use and destroy objects at once.
func TestHandlesAtOnce(t *testing.T) {
	u := newUser(t, roce)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				var pd, mw, mr, key cU32
				fails(t, "allocate PD", srAllocPD(u.context, &pd), 0)
				fails(t, "MW", srAllocMW(pd, 1, &mw, &key), 0)
				fails(t, "null MR", srAllocNullMR(pd, &mr, &key), 0)
				fails(t, "PD in use", srDeallocPD(pd), syscall.EBUSY)
				fails(t, "deallocate MW", srDeallocMW(mw), 0)
				fails(t, "deallocate PD, which keeps a null MR", srDeallocPD(pd), 0)
				fails(t, "deregister", srDeregMR(mr), 0)
			}
		})
	}
	all.Wait()
}

// TestDestroyedAtOnce: of several threads that destroy the same object at once, one succeeds.
func TestDestroyedAtOnce(t *testing.T) {
	u := newUser(t, roce)
	for range 200 {
		var pd cU32
		check(t, srAllocPD(u.context, &pd))
		var results [4]cInt
		var all sync.WaitGroup
		for i := range results {
			all.Go(func() { results[i] = srDeallocPD(pd) })
		}
		all.Wait()
		slices.Sort(results[:])
		if want := [4]cInt{0, cInt(syscall.ENOENT), cInt(syscall.ENOENT), cInt(syscall.ENOENT)}; results != want {
			t.Fatalf("results %v, want %v", results, want)
		}
	}
}
