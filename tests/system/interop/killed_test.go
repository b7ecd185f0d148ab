//go:build linux

package interop

import (
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// TestPeerKilled kills the peer's machine in the middle of a transfer.
func TestPeerKilled(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 4})[0]
	linux := openKernel(t, p)
	before := runtime.NumGoroutine()
	t.Run("transfer", func(t *testing.T) {
		here := newSide(t, openSoftRNIC(t, openTAP(t, p.Netns)), softrnicAddr4)
		remote := &side{dev: linux, gid: p.Addr4(), pd: linux.allocPD()}
		remote.qp = remote.pd.createQP(verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
		hasty := usual
		hasty.timeout, hasty.retryCnt = 14, 3 // 67 ms, four times
		connect(t, here, remote, hasty)
		const size = 8 << 20 // long enough, all together, on a fast machine
		local, target := here.pd.regMR(size, allAccess), remote.pd.regMR(size, allAccess)

		const writes, receives = 64, 8
		for id := range uint64(receives) {
			if err := here.qp.PostRecv(&verbs.RecvWR{ID: id, SGList: []verbs.SGE{local.SGE(0, 16)}}); err != nil {
				t.Fatal(err)
			}
		}
		for id := range uint64(writes) {
			if err := here.qp.PostSend(&verbs.SendWR{
				ID: id, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(0, size)},
				RemoteAddr: target.Addr(), RKey: target.RKey(),
			}); err != nil {
				t.Fatal(err)
			}
		}
		wcs := here.qp.PollSend(1, patience)
		p.Kill()
		wcs = append(wcs, here.qp.PollSend(writes-len(wcs), patience)...)
		if len(wcs) != writes {
			t.Fatalf("%d of %d requests completed", len(wcs), writes)
		}
		want := verbs.WCSuccess
		for i, wc := range wcs {
			if want == verbs.WCSuccess && wc.Status != want {
				want = verbs.WCRetryExcErr
			}
			if wc.Status != want || wc.WRID != uint64(i) {
				t.Errorf("completion %d is %v of request %d, want %v", i, wc.Status, wc.WRID, want)
			}
			if want == verbs.WCRetryExcErr {
				want = verbs.WCWRFlushErr
			}
		}
		if want == verbs.WCSuccess {
			t.Error("every request succeeded: the peer was killed too late")
		}
		for i, wc := range here.qp.PollRecv(receives, patience) {
			if wc.Status != verbs.WCWRFlushErr || wc.WRID != uint64(i) {
				t.Errorf("receive completion %d is %v of request %d, want %v", i, wc.Status, wc.WRID, verbs.WCWRFlushErr)
			}
		}
		if state := here.qp.State(); state != verbs.StateErr {
			t.Errorf("the QP is in %v, want %v", state, verbs.StateErr)
		}
	})
	// The peer took goroutines with it too, so there may be fewer. What has been told to end may take a moment to.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before there were %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
