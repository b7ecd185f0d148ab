//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// sentinels are the errors that packages verbs, rdmacm and rsocket export, with the errno of
// libibverbs or librdmacm.
var sentinels = map[string]struct {
	err  error
	want syscall.Errno
}{
	"verbs.ErrInvalid":      {verbs.ErrInvalid, syscall.EINVAL},
	"verbs.ErrNoMemory":     {verbs.ErrNoMemory, syscall.ENOMEM},
	"verbs.ErrBusy":         {verbs.ErrBusy, syscall.EBUSY},
	"verbs.ErrNotSupported": {verbs.ErrNotSupported, syscall.EOPNOTSUPP},
	"verbs.ErrQueueFull":    {verbs.ErrQueueFull, syscall.ENOMEM},
	"verbs.ErrCQOverrun":    {verbs.ErrCQOverrun, syscall.EOVERFLOW},
	"verbs.ErrClosed":       {verbs.ErrClosed, syscall.ENOENT},
	"verbs.ErrAgain":        {verbs.ErrAgain, syscall.EAGAIN},
}

// exportedErrors returns the exported variables Err… of a package, from its source.
func exportedErrors(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(filepath.Join("../../..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no files: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			d, ok := d.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, s := range d.Specs {
				for _, name := range s.(*ast.ValueSpec).Names {
					if strings.HasPrefix(name.Name, "Err") {
						names = append(names, f.Name.Name+"."+name.Name)
					}
				}
			}
		}
	}
	return names
}

// TestErrno: each exported error has its errno, however it is wrapped.
func TestErrno(t *testing.T) {
	found := 0
	for _, dir := range []string{"verbs", "verbs/rdmacm", "verbs/ulp/rsocket"} {
		for _, name := range exportedErrors(t, dir) {
			found++
			s, ok := sentinels[name]
			if !ok {
				t.Errorf("%s has no errno", name)
				continue
			}
			for _, err := range []error{s.err, verbs.Errorf(s.err, "post", "too long"), &verbs.PostError{Index: 1, Err: s.err},
				&net.OpError{Op: "read", Err: s.err}, errors.Join(s.err, errors.New("close")), fmt.Errorf("%w", s.err)} {
				fails(t, fmt.Sprintf("%s as %T", name, err), errno(err), s.want)
			}
		}
	}
	if found != len(sentinels) {
		t.Errorf("%d errors are exported, and the table has %d", found, len(sentinels))
	}
}

// TestErrnoOfOthers: errors that are not of package verbs.
func TestErrnoOfOthers(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{syscall.ECONNREFUSED, syscall.ECONNREFUSED},
		{fmt.Errorf("connect: %w", syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{&net.OpError{Op: "write", Net: "rsocket", Err: syscall.EPIPE}, syscall.EPIPE},
		// Another thread closes the rsocket during the call.
		{&net.OpError{Op: "read", Net: "rsocket", Err: net.ErrClosed}, syscall.EBADF},
		{errors.New("other"), syscall.EINVAL},
		{syscall.Errno(0), syscall.EINVAL}, // an error is never success
	} {
		fails(t, fmt.Sprint(c.err), errno(c.err), c.want)
	}
}

// TestErrnoOfCalls: the errno that libibverbs gives for wrong arguments.
func TestErrnoOfCalls(t *testing.T) {
	u := newUser(t, roce)
	a, b := u.pair()
	var counter cU32
	check(t, srCreateCompCntr(u.context, 0, new(cU64), new(cU64), &counter))
	t.Cleanup(func() { check(t, srDestroyCompCntr(counter)) })
	fresh, _ := u.newQP(verbs.RC)
	r := u.register(make([]byte, 4096))
	sge := r.sge(0, 8)
	wr := cSendWR{sg_list: &sge, num_sge: 1, opcode: cU32(verbs.Send)}
	var port _Ctype_struct_sr_port_attr
	var gid _Ctype_struct_sr_gid_entry
	var pkey cU16
	var h, num cU32
	var fd, got cInt
	var of *cEvents
	withType := func(kind int) cInt {
		a := u.qpInit(verbs.QPType(0))
		a._type = cU32(kind)
		return srCreateQP(&a, &h, &num)
	}
	posted := func(err, _ cInt) cInt { return err }
	for _, c := range []struct {
		call string
		err  cInt
		want syscall.Errno
	}{
		{"open context -1", srOpenContext(-1, &h, &fd), syscall.EINVAL},
		{"open context 99", srOpenContext(99, &h, &fd), syscall.EINVAL},
		{"query port 0", srQueryPort(roce, 0, &port), syscall.EINVAL},
		{"query port 2", srQueryPort(roce, 2, &port), syscall.EINVAL},
		{"query port 257", srQueryPort(roce, 257, &port), syscall.EINVAL},
		{"query port -1", srQueryPort(roce, -1, &port), syscall.EINVAL},
		{"query port of no device", srQueryPort(-1, 1, &port), syscall.EINVAL},
		{"query GID -1", srQueryGID(roce, 1, -1, &gid), syscall.EINVAL},
		{"query GID 1<<20", srQueryGID(roce, 1, 1<<20, &gid), syscall.EINVAL},
		{"query empty GID", srQueryGID(roce, 1, 200, &gid), syscall.ENODATA},
		{"query GID of port 257", srQueryGID(roce, 257, 0, &gid), syscall.EINVAL},
		{"query GID 1 of iWARP", srQueryGID(iwarp, 1, 1, &gid), syscall.EINVAL},
		{"query P_Key -1", srQueryPKey(roce, 1, -1, &pkey), syscall.EINVAL},
		{"query P_Key 1", srQueryPKey(roce, 1, 1, &pkey), syscall.EINVAL},
		{"async event", srGetAsyncEvent(u.context, new(_Ctype_struct_sr_async_event)), syscall.EAGAIN},
		{"CQ for 0", srCreateCQ(u.context, 0, 0, 0, u.cqEvents, new(cU32), &h, &got), syscall.EINVAL},
		{"CQ for -1", srCreateCQ(u.context, -1, 0, 0, u.cqEvents, new(cU32), &h, &got), syscall.EINVAL},
		{"CQ of no channel", srCreateCQ(u.context, 1, 1<<30, 0, u.cqEvents, new(cU32), &h, &got), syscall.ENOENT},
		{"resize to 0", srResizeCQ(u.cq, 0, &got), syscall.EINVAL},
		{"moderate -1", srModifyCQ(u.cq, -1, 0), syscall.EINVAL},
		{"moderate by -1 µs", srModifyCQ(u.cq, 0, -1), syscall.EINVAL},
		{"CQ in use", srDestroyCQ(u.cq), syscall.EBUSY},
		{"PD in use", srDeallocPD(u.pd), syscall.EBUSY},
		{"poll -1", srPollCQ(u.cq, -1, nil, nil, &got, 0, nil, &got), syscall.EINVAL},
		{"MW of type 0", srAllocMW(u.pd, 0, &h, &num), syscall.EINVAL},
		{"MW of type -1", srAllocMW(u.pd, -1, &h, &num), syscall.EINVAL},
		{"MW of type 257", srAllocMW(u.pd, 257, &h, &num), syscall.EINVAL},
		{"QP of type 0", withType(0), syscall.EOPNOTSUPP},
		{"QP of type 255", withType(255), syscall.EOPNOTSUPP},
		{"QP of type 258", withType(258), syscall.EOPNOTSUPP},
		{"QP of type XRC_RECV without a domain", withType(int(verbs.XRCRecv)), syscall.EINVAL},
		{"state 256", modify(fresh, cQPAttr{qp_state: 256}, verbs.QPAttrState), syscall.EINVAL},
		{"state 7", modify(fresh, cQPAttr{qp_state: 7}, verbs.QPAttrState), syscall.EINVAL},
		{"current state 256", modify(fresh, cQPAttr{cur_qp_state: 256}, verbs.QPAttrCurState), syscall.EINVAL},
		{"RTS from RESET", modify(fresh, cQPAttr{qp_state: 3}, verbs.QPAttrState), syscall.EINVAL},
		{"rate limit in RESET", modify(fresh, cQPAttr{}, verbs.QPAttrRateLimit), syscall.EINVAL},
		{"unknown attribute", modify(fresh, cQPAttr{}, 1<<29), syscall.EINVAL},
		{"LLP stream, which C does not have", modify(fresh, cQPAttr{}, verbs.QPAttrLLPStream), syscall.EINVAL},
		{"attach RC", srAttachMcast(a, new(cU8)), syscall.EINVAL},
		{"post in RESET", posted(send(fresh, &wr, 0)), syscall.EINVAL},
		{"XRC domain of no file", srOpenXRCD(u.context, 9999, syscall.O_CREAT, &h), syscall.EBADF},
		{"counter of type 2", srCreateCompCntr(u.context, 2, new(cU64), new(cU64), &h), syscall.EOPNOTSUPP},
		{"counter of type 257", srCreateCompCntr(u.context, 257, new(cU64), new(cU64), &h), syscall.EOPNOTSUPP},
		{"no counter", srAttachCompCntr(fresh, 1<<30, 1), syscall.ENOENT},
		{"counter of no operation", srAttachCompCntr(fresh, counter, 0), syscall.EINVAL},
		{"counter of operation 6", srAttachCompCntr(fresh, counter, 1<<6), syscall.EOPNOTSUPP},
		{"counter of operation 8", srAttachCompCntr(fresh, counter, 1<<8), syscall.EOPNOTSUPP},
		{"counter of SENDs", srAttachCompCntr(fresh, counter, 1), 0},
		{"counter of SENDs again", srAttachCompCntr(fresh, counter, 3), syscall.EBUSY},
		{"counter of a QP in RTS", srAttachCompCntr(a, counter, 1), syscall.EINVAL},
		{"counter in use", srDestroyCompCntr(counter), syscall.EBUSY},
		{"CQ events", srGetCQEvent(u.newChannel(), &of), syscall.EAGAIN},
	} {
		fails(t, c.call, c.err, c.want)
	}
	check(t, modify(b, cQPAttr{qp_state: cU32(verbs.StateErr)}, verbs.QPAttrState))
}

func (u *user) newChannel() (h cU32) {
	var fd cInt
	check(u, srCreateChannel(u.context, new(cU32), &h, &fd))
	u.Cleanup(func() { check(u, srDestroyChannel(h)) })
	return h
}
