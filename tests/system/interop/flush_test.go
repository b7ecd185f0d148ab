//go:build linux

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport"
	roceconfig "github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/powercut"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// TestFlush sends WRITEs and FLUSHes between SoftRNIC and rxe, each way, with both ICRCs of a
// FLUSH. A FLUSH is answered if RxeFlush is what the kernel's row of the table says, and never
// otherwise. What rxe has flushed to a file survives a power failure.
func TestFlush(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux := openKernel(t, p).(kernel)
	if !flushes(t, linux) {
		if p.Kernel.Has(peer.FlushICRC) {
			t.Errorf("%s: rxe has no FLUSH, but the table says how it computes the ICRC of one", p.Versions)
		}
		t.Logf("result: %s: rxe has no FLUSH", p.Versions)
		return
	}
	for _, rxeFlush := range []bool{true, false} {
		answered := rxeFlush == p.Kernel.Has(peer.FlushICRC)
		t.Run(fmt.Sprintf("RxeFlush %t", rxeFlush), func(t *testing.T) {
			here := openSoftRNIC(t, captured(t, openTAP(t, p.Netns)), &rdmatransport.Config{RoCE: roceconfig.Config{RxeFlush: rxeFlush}})
			for _, family := range families(t) {
				from, to := softrnicAddr4, p.Addr4()
				if family == "IPv6" {
					from, to = softrnicAddr6, p.Addr6()
				}
				t.Run(family+"/requester", func(t *testing.T) {
					responder := newFlushSide(t, linux, to)
					access := flushAccess
					remote, err := responder.pd.(kernelDomain).TryRegMR(flushRoom, access)
					if err != nil {
						t.Fatal(err)
					}
					flushTo(t, newFlushSide(t, here, from), responder, access, verbs.FlushGlobal, remote, answered)
					if got := remote.Read(0, len(flushed3000)); !bytes.Equal(got, flushed3000) {
						t.Error("rxe has not what was written")
					}
				})
				t.Run(family+"/responder", func(t *testing.T) {
					disk := powercut.NewDisk(t, 1<<22, func() {})
					file, err := os.Create(filepath.Join(disk.Mount(t), "region"))
					if err != nil {
						t.Fatal(err)
					}
					defer file.Close()
					if err := errors.Join(file.Truncate(flushRoom), file.Sync()); err != nil {
						t.Fatal(err)
					}
					responder := newFlushSide(t, here, from)
					domain := responder.pd.(*softrnicDomain)
					access := flushAccess | verbs.AccessFlushPersistent
					mr, err := domain.pd.RegMREx(&verbs.MRInitAttr{File: file, FileLength: flushRoom, Access: access})
					if err != nil {
						t.Fatal(err)
					}
					closing(t, mr.Close)
					flushTo(t, newFlushSide(t, linux, to), responder, access, verbs.FlushPersistent, softrnicMemory{mr, domain}, answered)
					if !answered {
						return
					}
					image := disk.Cut(rand.New(rand.NewPCG(1, 2)))
					if err := powercut.Mounted(t, image, func(dir string) error {
						got, err := os.ReadFile(filepath.Join(dir, "region"))
						if err == nil && !bytes.HasPrefix(got, flushed3000) {
							err = errors.New("what was flushed is lost")
						}
						return err
					}); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

const (
	flushRoom   = 8192
	flushAccess = allAccess | verbs.AccessFlushGlobal
)

// flushed3000 are the bytes that are flushed.
var flushed3000 = bytes.Repeat([]byte("flushed "), 375)

// flushes reports whether a device has FLUSH. One that has not refuses the access of memory.
func flushes(t *testing.T, linux kernel) bool {
	t.Helper()
	_, err := linux.AllocPD().TryRegMR(flushRoom, flushAccess)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Fatal(err)
	}
	return err == nil
}

// newFlushSide is newSide for a QP to which FLUSHes can be posted.
func newFlushSide(t *testing.T, dev device, gid netip.Addr) *side {
	t.Helper()
	linux, ok := dev.(kernel)
	if !ok {
		return newSide(t, dev, gid)
	}
	pd := linux.In(t).AllocPD()
	qp, err := pd.CreateFlushQP(verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(qp.Destroy)
	return &side{dev: linux.in(t), gid: gid, pd: kernelDomain{pd}, qp: kernelQP{qp}}
}

// flushTo writes and flushes memory of the responder twice, as a range and as a whole region. If it
// is not answered, the requester gives up, and the WRITE before it has succeeded.
func flushTo(t *testing.T, requester, responder *side, access verbs.Access, kind verbs.FlushType, remote memory, answered bool) {
	t.Helper()
	path := usual
	path.access, path.timeout, path.retryCnt = access, 14, 2
	if answered { // however slow a machine is
		path.timeout, path.retryCnt = usual.timeout, usual.retryCnt
	}
	connect(t, requester, responder, path)
	local := requester.pd.regMR(flushRoom, allAccess)
	local.Write(0, flushed3000)
	to := verbs.SendWR{RemoteAddr: remote.Addr(), RKey: remote.RKey(), Flags: verbs.SendSignaled}
	write, one, whole := to, to, to
	write.WRID, write.Opcode, write.SGList = 1, verbs.RDMAWrite, []verbs.SGE{local.SGE(0, len(flushed3000))}
	one.WRID, one.Opcode, one.FlushType, one.FlushLength = 2, verbs.Flush, kind, uint32(len(flushed3000))
	whole.WRID, whole.Opcode, whole.FlushType, whole.FlushLevel = 3, verbs.Flush, kind, verbs.FlushMR
	if err := requester.qp.PostSend(&write); err != nil {
		t.Fatal(err)
	}
	got := statuses(t, requester.qp.PollSend(1, patience))
	if err := requester.qp.PostSend(&one, &whole); err != nil {
		t.Fatal(err)
	}
	for i, wc := range requester.qp.PollSend(2, patience) {
		if wc.WRID != uint64(2+i) {
			t.Errorf("the completion of request %d is of %d", 2+i, wc.WRID)
		}
		got = append(got, wc.Status)
	}
	want := []verbs.WCStatus{ok, ok, ok}
	if !answered {
		want = []verbs.WCStatus{ok, verbs.WCRetryExcErr, flushed}
	}
	if !slices.Equal(got, want) {
		t.Errorf("WRITE and FLUSHes complete as %v, want %v", got, want)
	}
}
