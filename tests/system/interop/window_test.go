//go:build linux

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// windowCase is a sequence of accesses to remote memory through a window. The owner binds and
// invalidates the window.
type windowCase struct {
	name   string
	kind   verbs.MWType
	region verbs.Access // of the memory under the window; 0: AccessLocalWrite|AccessMWBind
	script func(w *windowing)
	want   []string // windowing's log, with rxe on both sides
	// asUser and asOwner are the logs if SoftRNIC has that role and follows the specification
	// instead of rxe. why has the reason.
	asUser, asOwner []string
	why             string
}

// windowing is a running windowCase: two connected sides, and memory of the owner under a window.
// Each operation adds a line with the completion of its request to log. After a success it also
// checks the data.
type windowing struct {
	t             *testing.T
	user, owner   *side
	local, region memory
	w             window
	at            uint64 // the window's first byte, as the user addresses it
	siw           bool   // the owner is siw
	id            uint64
	log           []string
}

const (
	windowOff = 1024 // of the window in its region of 8192 bytes
	windowLen = 2048
	window1   = verbs.MWType1
	window2   = verbs.MWType2
	remote    = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
)

// newWindowing creates memory for two connected sides.
func newWindowing(t *testing.T, user, owner *side, access verbs.Access) *windowing {
	t.Helper()
	region := owner.pd.regMR(8192, access)
	return &windowing{t: t, user: user, owner: owner, local: user.pd.regMR(4096, allAccess), region: region,
		at: region.Addr() + windowOff}
}

// try runs the case between two devices and checks the outcome.
func (c windowCase) try(t *testing.T, user, owner *side, want []string) {
	t.Helper()
	connect(t, user, owner, usual)
	access := c.region
	if access == 0 {
		access = verbs.AccessLocalWrite | verbs.AccessMWBind
	}
	w := newWindowing(t, user, owner, access)
	w.w = owner.pd.allocMW(c.kind)
	defer w.dealloc() // before the QP is destroyed: rxe waits for its windows, for most of a minute
	c.script(w)
	states := func() string { return fmt.Sprintf("user %v, owner %v", user.qp.State(), owner.qp.State()) }
	for end := time.Now().Add(patience); states() != want[len(want)-1] && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // rxe responds first and fails then
	}
	if got := append(w.log, states()); !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (w *windowing) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// done logs the completion of the last request, and reports whether it succeeded.
func (w *windowing) done(what string, s *side) bool {
	w.t.Helper()
	wcs := s.qp.PollSend(1, patience)
	switch {
	case len(wcs) == 0:
		w.note("%s: nothing", what)
		return false
	case wcs[0].WRID != w.id:
		w.t.Errorf("%s: request %d completes, want %d", what, wcs[0].WRID, w.id)
	}
	w.note("%s: %v", what, wcs[0].Status)
	return wcs[0].Status == ok
}

// bind binds the window to all memory that it may cover.
func (w *windowing) bind(access verbs.Access) { w.bindTo(windowOff, windowLen, access) }

func (w *windowing) bindTo(off, n int, access verbs.Access) {
	w.t.Helper()
	w.id++
	if err := w.owner.qp.bindMW(w.w, w.id, w.region, off, n, access); err != nil {
		w.note("bind: refused")
		return
	}
	w.done("bind", w.owner)
}

// use executes an operation on n bytes, off bytes into the window.
func (w *windowing) use(opcode verbs.WROpcode, off, n int) {
	w.useBy(w.user, w.w.RKey(), opcode, off, n)
}

func (w *windowing) useBy(user *side, rkey uint32, opcode verbs.WROpcode, off, n int) {
	w.t.Helper()
	w.id++
	w.region.Fill(0, w.region.Length(), 2*w.id)
	w.local.Fill(0, w.local.Length(), 2*w.id+1)
	before, mine := w.region.Read(0, w.region.Length()), w.local.Read(0, n)
	wr := &verbs.SendWR{WRID: w.id, Opcode: opcode, Flags: verbs.SendSignaled, SGList: []verbs.SGE{w.local.SGE(0, n)},
		RemoteAddr: w.at + uint64(off), RKey: rkey, CompareAdd: 5}
	if err := user.qp.PostSend(wr); err != nil {
		w.t.Fatal(err)
	}
	succeeds := w.done(fmt.Sprintf("%v %d+%d", opcode, off, n), user)
	after, there := slices.Clone(before), windowOff+off
	if succeeds {
		switch opcode {
		case verbs.RDMAWrite:
			copy(after[there:], mine)
		case verbs.AtomicFetchAndAdd:
			binary.LittleEndian.PutUint64(after[there:], binary.LittleEndian.Uint64(before[there:])+5)
		}
		if opcode != verbs.RDMAWrite && !bytes.Equal(w.local.Read(0, n), before[there:there+n]) {
			w.t.Errorf("%v: the returned data differs", opcode)
		}
	}
	if !bytes.Equal(w.region.Read(0, len(after)), after) {
		w.t.Errorf("%v: the region has the wrong content", opcode)
	}
}

// dealloc ends the window, if it still exists.
func (w *windowing) dealloc() {
	if w.w != nil {
		w.w.Dealloc()
	}
	w.w = nil
}

// invalidateHere invalidates an rkey at the owner.
func (w *windowing) invalidateHere(rkey uint32) {
	w.t.Helper()
	w.id++
	if err := w.owner.qp.PostSend(&verbs.SendWR{WRID: w.id, Opcode: verbs.LocalInv, Flags: verbs.SendSignaled,
		InvalidateRKey: rkey}); err != nil {
		w.t.Fatal(err)
	}
	w.done("LOCAL_INV", w.owner)
}

// invalidateThere makes the user invalidate an rkey, with a SEND with invalidate.
func (w *windowing) invalidateThere(rkey uint32) {
	w.t.Helper()
	w.id++
	if err := w.owner.qp.PostRecv(&verbs.RecvWR{WRID: 99, SGList: []verbs.SGE{w.region.SGE(4096, 4096)}}); err != nil {
		w.t.Fatal(err)
	}
	w.local.Fill(0, 3000, w.id)
	if err := w.user.qp.PostSend(&verbs.SendWR{
		WRID: w.id, Opcode: verbs.SendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: rkey, SGList: []verbs.SGE{w.local.SGE(0, 3000)},
	}); err != nil {
		w.t.Fatal(err)
	}
	w.done("SEND_WITH_INV", w.user)
	wcs := w.owner.qp.PollRecv(1, time.Second)
	if len(wcs) == 0 {
		w.note("RECV: nothing")
		return
	}
	wc := wcs[0]
	w.note("RECV: %v", wc.Status)
	told, is := verbs.WCWithInv, rkey
	switch _, ours := w.owner.qp.(softrnicQP); {
	case w.siw:
		told, is = 0, 0 // siw does not report it to applications
	case !ours:
		told = verbs.WCIPCsumOK // rxe returns the flag's value inside the kernel
	}
	if wc.Status == ok && (wc.WRID != 99 || wc.Opcode != verbs.WCRecv || wc.ByteLen != 3000 || wc.Flags&^verbs.WCGRH != told ||
		wc.InvalidatedRKey != is || w.region.Digest(4096, 3000) != w.local.Digest(0, 3000)) {
		w.t.Errorf("received %+v, or other data", wc)
	}
}

// another connects a second pair of QPs in the same PDs.
func (w *windowing) another() (user *side) {
	w.t.Helper()
	again := func(s *side) *side {
		qp := s.pd.createQP(verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1})
		w.t.Cleanup(qp.Destroy)
		return &side{dev: s.dev, gid: s.gid, pd: s.pd, qp: qp}
	}
	user = again(w.user)
	connect(w.t, user, again(w.owner), usual)
	return user
}

const (
	bothReady  = "user RTS, owner RTS"
	bothFailed = "user ERR, owner ERR"
)

// windowReference has the outcomes between two kernels, like rxeReference.
func windowReference() (cases []windowCase) {
	for _, kind := range []verbs.MWType{window1, window2} {
		for _, c := range []windowCase{
			{name: "used", want: []string{"bind: SUCCESS", "RDMA_WRITE 0+16: SUCCESS", "RDMA_WRITE 2032+16: SUCCESS",
				"RDMA_READ 0+2048: SUCCESS",
				"RDMA_WRITE 0+2048: SUCCESS", "ATOMIC_FETCH_AND_ADD 2040+8: SUCCESS", bothReady},
				script: func(w *windowing) {
					w.bind(remote)
					w.use(verbs.RDMAWrite, 0, 16)
					w.use(verbs.RDMAWrite, windowLen-16, 16)
					w.use(verbs.RDMARead, 0, windowLen)
					w.use(verbs.RDMAWrite, 0, windowLen)
					w.use(verbs.AtomicFetchAndAdd, windowLen-8, 8)
				}},
			{name: "used with another key", want: []string{"bind: SUCCESS", "RDMA_WRITE 0+16: REM_ACCESS_ERR", bothFailed},
				script: func(w *windowing) {
					w.bind(remote)
					w.useBy(w.user, w.w.RKey()^0x55, verbs.RDMAWrite, 0, 16)
				}},
			{name: "used without a bind", want: []string{"RDMA_WRITE 0+16: REM_ACCESS_ERR", bothFailed},
				script: func(w *windowing) { w.use(verbs.RDMAWrite, 0, 16) }},
			{name: "used when it is deallocated", want: []string{"bind: SUCCESS", "RDMA_WRITE 0+16: SUCCESS",
				"RDMA_WRITE 0+16: REM_ACCESS_ERR", bothFailed},
				script: func(w *windowing) {
					w.bind(remote)
					w.use(verbs.RDMAWrite, 0, 16)
					rkey := w.w.RKey()
					w.dealloc()
					w.useBy(w.user, rkey, verbs.RDMAWrite, 0, 16)
				}},
			{name: "used past its end", want: []string{"bind: SUCCESS", "RDMA_WRITE 2033+16: SUCCESS", bothReady},
				asOwner: []string{"bind: SUCCESS", "RDMA_WRITE 2033+16: REM_ACCESS_ERR", bothFailed},
				why:     "a window permits access to its range only, not to the region under it (IBTA Vol 1 §10.6.7)",
				script: func(w *windowing) {
					w.bind(remote)
					w.use(verbs.RDMAWrite, windowLen-15, 16)
				}},
			{name: "used before its beginning", want: []string{"bind: SUCCESS", "RDMA_READ -1+16: SUCCESS", bothReady},
				asOwner: []string{"bind: SUCCESS", "RDMA_READ -1+16: REM_ACCESS_ERR", bothFailed},
				why:     "as before",
				script: func(w *windowing) {
					w.bind(remote)
					w.use(verbs.RDMARead, -1, 16)
				}},
			{name: "used past the region's end", want: []string{"bind: SUCCESS", "RDMA_WRITE 5121+2048: REM_ACCESS_ERR", bothFailed},
				script: func(w *windowing) {
					w.bindTo(8192-windowLen, windowLen, remote)
					w.use(verbs.RDMAWrite, 8192-windowLen-windowOff+1, windowLen)
				}},
			{name: "written without the right", want: []string{"bind: SUCCESS", "RDMA_READ 0+16: SUCCESS",
				"RDMA_WRITE 0+16: REM_ACCESS_ERR", bothFailed},
				script: func(w *windowing) {
					w.bind(remote &^ verbs.AccessRemoteWrite)
					w.use(verbs.RDMARead, 0, 16)
					w.use(verbs.RDMAWrite, 0, 16)
				}},
			{name: "read without the right", want: []string{"bind: SUCCESS", "RDMA_WRITE 0+16: SUCCESS", "RDMA_READ 0+16: REM_ACCESS_ERR",
				bothFailed},
				script: func(w *windowing) {
					w.bind(remote &^ verbs.AccessRemoteRead)
					w.use(verbs.RDMAWrite, 0, 16)
					w.use(verbs.RDMARead, 0, 16)
				}},
			{name: "atomically used without the right", want: []string{"bind: SUCCESS", "ATOMIC_FETCH_AND_ADD 0+8: REM_ACCESS_ERR",
				bothFailed},
				script: func(w *windowing) {
					w.bind(remote &^ verbs.AccessRemoteAtomic)
					w.use(verbs.AtomicFetchAndAdd, 0, 8)
				}},
			{name: "bound to a region that may have none", region: verbs.AccessLocalWrite,
				want:   []string{"bind: MW_BIND_ERR", "user RTS, owner ERR"},
				script: func(w *windowing) { w.bind(verbs.AccessRemoteRead) }},
			{name: "bound for writing to a region that cannot be written", region: verbs.AccessMWBind,
				want:   []string{"bind: MW_BIND_ERR", "user RTS, owner ERR"},
				script: func(w *windowing) { w.bind(verbs.AccessRemoteWrite) }},
			{name: "bound past the region's end", want: []string{"bind: MW_BIND_ERR", "user RTS, owner ERR"},
				script: func(w *windowing) { w.bindTo(windowOff, 8192-windowOff+1, remote) }},
			{name: "invalidated with another key", want: []string{"bind: SUCCESS", "LOCAL_INV: LOC_QP_OP_ERR", "user RTS, owner ERR"},
				asOwner: notInvalidated, why: whyNotInvalidated,
				script: func(w *windowing) {
					w.bind(remote)
					w.invalidateHere(w.w.RKey() ^ 0x55)
				}},
		} {
			c.kind = kind
			cases = append(cases, c)
		}
	}
	bound := "bind: SUCCESS"
	cases = append(cases,
		windowCase{kind: window1, name: "used through another QP",
			want: []string{bound, "RDMA_WRITE 0+16: SUCCESS", bothReady},
			script: func(w *windowing) {
				w.bind(remote)
				user := w.another()
				w.useBy(user, w.w.RKey(), verbs.RDMAWrite, 0, 16)
			}},
		windowCase{kind: window1, name: "bound again, and used with both keys",
			want: []string{bound, bound, "RDMA_READ 0+16: SUCCESS", "RDMA_READ 0+16: REM_ACCESS_ERR", bothFailed},
			script: func(w *windowing) {
				w.bind(remote)
				old := w.w.RKey()
				w.bind(verbs.AccessRemoteRead)
				w.use(verbs.RDMARead, 0, 16)
				w.useBy(w.user, old, verbs.RDMARead, 0, 16)
			}},
		windowCase{kind: window1, name: "bound to nothing",
			want: []string{bound, bound, "RDMA_READ 0+16: REM_ACCESS_ERR", bothFailed},
			script: func(w *windowing) {
				w.bind(remote)
				w.bindTo(windowOff, 0, 0)
				w.use(verbs.RDMARead, 0, 16)
			}},
		windowCase{kind: window1, name: "bound from zero",
			want:   []string{"bind: refused", bothReady},
			script: func(w *windowing) { w.bind(remote | verbs.AccessZeroBased) }},
		windowCase{kind: window1, name: "invalidated",
			want:    []string{bound, "LOCAL_INV: LOC_QP_OP_ERR", "user RTS, owner ERR"},
			asOwner: notInvalidated, why: whyNotInvalidated,
			script: func(w *windowing) {
				w.bind(remote)
				w.invalidateHere(w.w.RKey())
			}},
		windowCase{kind: window2, name: "used through another QP",
			want: []string{bound, "RDMA_WRITE 0+16: REM_ACCESS_ERR", "RDMA_WRITE 0+16: SUCCESS", bothReady},
			script: func(w *windowing) {
				w.bind(remote)
				user := w.another()
				w.useBy(user, w.w.RKey(), verbs.RDMAWrite, 0, 16)
				w.use(verbs.RDMAWrite, 0, 16)
			}},
		windowCase{kind: window2, name: "bound from zero",
			want: []string{bound, "RDMA_WRITE 0+16: SUCCESS", "RDMA_READ 0+2048: SUCCESS", bothReady},
			script: func(w *windowing) {
				w.bind(remote | verbs.AccessZeroBased)
				w.at = 0
				w.use(verbs.RDMAWrite, 0, 16)
				w.use(verbs.RDMARead, 0, windowLen)
			}},
		windowCase{kind: window2, name: "bound twice",
			want: []string{bound, "bind: MW_BIND_ERR", "user RTS, owner ERR"},
			script: func(w *windowing) {
				w.bind(remote)
				w.bind(remote)
			}},
		windowCase{kind: window2, name: "invalidated by its owner",
			want: []string{bound, "RDMA_WRITE 0+16: SUCCESS", "LOCAL_INV: SUCCESS", "RDMA_WRITE 0+16: REM_ACCESS_ERR", bothFailed},
			script: func(w *windowing) {
				w.bind(remote)
				w.use(verbs.RDMAWrite, 0, 16)
				w.invalidateHere(w.w.RKey())
				w.use(verbs.RDMAWrite, 0, 16)
			}},
		windowCase{kind: window2, name: "invalidated by its user",
			want: []string{bound, "RDMA_READ 0+16: SUCCESS", "SEND_WITH_INV: SUCCESS", "RECV: SUCCESS", "RDMA_READ 0+16: REM_ACCESS_ERR",
				bothFailed},
			script: func(w *windowing) {
				w.bind(remote)
				w.use(verbs.RDMARead, 0, 16)
				w.invalidateThere(w.w.RKey())
				w.use(verbs.RDMARead, 0, 16)
			}},
	)
	// rxe acknowledges a request on which it then fails.
	acknowledged := []string{bound, "SEND_WITH_INV: SUCCESS", "RECV: REM_INV_REQ_ERR", "user RTS, owner ERR"}
	refused := []string{bound, "SEND_WITH_INV: REM_ACCESS_ERR", "RECV: REM_INV_REQ_ERR", bothFailed}
	for _, c := range []windowCase{
		{name: "invalidated by its user with another key", kind: window2, script: func(w *windowing) {
			w.bind(remote)
			w.invalidateThere(w.w.RKey() ^ 0x55)
		}},
		{name: "invalidated by its user", kind: window1, script: func(w *windowing) {
			w.bind(remote)
			w.invalidateThere(w.w.RKey())
		}},
		{name: "and its region invalidated by its user", kind: window2, script: func(w *windowing) {
			w.bind(remote)
			w.invalidateThere(w.region.RKey())
		}},
	} {
		c.want, c.asOwner, c.why = acknowledged, refused, "an invalidation that fails is NAKed (IBTA Vol 1 §9.4.1.1.3)"
		cases = append(cases, c)
	}
	return cases
}

// notInvalidated is the outcome of a LOCAL_INV that SoftRNIC refuses.
var notInvalidated = []string{"bind: SUCCESS", "LOCAL_INV: MW_BIND_ERR", "user RTS, owner ERR"}

const whyNotInvalidated = "a refused invalidation is a memory management operation error, which verbs call MW_BIND_ERR (IBTA Vol 1 §11.6.2)"

// by returns an outcome with a kernel's rxe as the owner.
func (c windowCase) by(k peer.Kernel, want []string) []string {
	if !k.Has(peer.SendErrorsFlushed) {
		return want
	}
	want = slices.Clone(want)
	for i := range want {
		switch want[i] {
		case "bind: MW_BIND_ERR":
			want[i] = "bind: WR_FLUSH_ERR"
		case "LOCAL_INV: LOC_QP_OP_ERR":
			want[i] = "LOCAL_INV: WR_FLUSH_ERR"
		}
	}
	return want
}

func (c windowCase) title() string {
	return strings.ReplaceAll(fmt.Sprintf("%v %s", c.kind, c.name), " ", "_")
}

// TestKernelWindows checks that the outcomes between two rxes are those of windowReference.
func TestKernelWindows(t *testing.T) {
	gate.Long(t)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	user, owner := openKernel(t, peers[0]), openKernel(t, peers[1])
	for _, c := range windowReference() {
		t.Run(c.title(), func(t *testing.T) {
			c.try(t, newSide(t, user, peers[0].Addr4()), newSide(t, owner, peers[1].Addr4()), c.by(peers[1].Kernel, c.want))
		})
	}
}

// TestWindows checks that the outcomes are the same with SoftRNIC as one of the sides, unless the
// windowCase says otherwise.
func TestWindows(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux, here := openKernel(t, p), openSoftRNIC(t, captured(t, openTAP(t, p.Netns)), nil)
	for _, c := range windowReference() {
		want := func(instead []string) []string {
			if instead == nil {
				return c.want
			}
			if slices.Equal(instead, c.want) || c.why == "" {
				t.Errorf("%s: SoftRNIC does not differ from rxe, or the reason is missing (%q)", c.name, c.why)
			}
			return instead
		}
		t.Run("user/"+c.title(), func(t *testing.T) {
			c.try(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()), c.by(p.Kernel, want(c.asUser)))
		})
		t.Run("owner/"+c.title(), func(t *testing.T) {
			c.try(t, newSide(t, linux, p.Addr4()), newSide(t, here, softrnicAddr4), want(c.asOwner))
		})
	}
}
