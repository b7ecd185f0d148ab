package conformance

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// driver is the application on one node: it posts its flow's requests and the receives for the
// peer's, and checks every completion.
type driver struct {
	*endpoint
	t       *testing.T
	r       *rand.Rand
	peer    *driver
	out, in *flow
	cap     verbs.QPCap
	model   *model
	mem     memory
	mrs     [areas]*verbs.MR
	scratch *verbs.MR // source of inline data, overwritten immediately after posting
	slow    bool      // receives are posted late

	// Of out.ops; done counts those before the last completion, including unsignalled ones.
	posted, done         int
	recvPosted, recvDone int // of in.recvs
	succeeded            int // ops before the one that failed
	recvSucceeded        int
	status               verbs.WCStatus // of the request that failed
	finished             chan struct{}  // closed when every op has completed or been flushed
}

const recvID = 1 << 32 // WRID bit of receives

// setUp registers the node's memory.
func (d *driver) setUp() {
	d.finished = make(chan struct{})
	d.mem = d.model.start.clone()
	for a := range areas {
		if len(d.mem[a]) == 0 {
			d.mem[a] = make([]byte, 8)
			d.model.now[a], d.model.start[a] = make([]byte, 8), make([]byte, 8)
		}
		switch access := areaAccess[a]; d.r.IntN(3) {
		case 0:
			d.mrs[a] = d.reg(d.mem[a], access)
		case 1:
			d.mrs[a] = d.reg2(d.mem[a], 0, access|verbs.AccessZeroBased)
		case 2:
			d.mrs[a] = d.reg2(d.mem[a], d.r.Uint64()&^(1<<40-1)|8, access)
		}
	}
	d.scratch = d.reg(make([]byte, max(1, d.cap.MaxInlineData)), 0)
}

func (d *driver) reg2(buf []byte, addr uint64, access verbs.Access) *verbs.MR {
	d.t.Helper()
	return must(d.pd.RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: new(addr), Access: access}))(d.t)
}

func (d *driver) tearDown() {
	for _, mr := range d.mrs {
		ok(d.t, mr.Close())
	}
	ok(d.t, d.scratch.Close())
	d.destroy()
}

// run works until stop. Then it takes the QP to ERR, and the remaining requests must be flushed.
func (d *driver) run(stop context.Context) {
	var wcs [16]verbs.WC
	for stop.Err() == nil && !d.t.Failed() {
		wait := time.Hour
		d.postRecvs()
		if d.postSends() || d.slow && d.recvPosted < len(d.in.recvs) {
			wait = time.Duration(d.r.IntN(3000)) * time.Microsecond
		}
		ctx, cancel := context.WithTimeout(stop, wait)
		n, err := d.wait(ctx, wcs[:1+d.r.IntN(len(wcs))])
		cancel()
		if err != nil && ctx.Err() == nil {
			d.t.Errorf("wait: %v", err)
		}
		for i := range wcs[:n] {
			d.check(&wcs[i])
		}
	}
	if d.t.Failed() {
		return
	}
	d.try(d.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	for {
		n, err := d.cq.Poll(wcs[:])
		d.try(err)
		if n == 0 {
			break
		}
		for i := range wcs[:n] {
			d.check(&wcs[i])
		}
	}
	if d.done != d.posted || d.recvDone != d.recvPosted {
		d.t.Errorf("of %d sends %d completed, of %d receives %d", d.posted, d.done, d.recvPosted, d.recvDone)
	}
}

// try is ok for the driver's goroutine, which is not the test's.
func (d *driver) try(err error) {
	if err != nil {
		d.t.Error(err)
	}
}

// postSends posts as many requests as there is room for. If it stops earlier, it returns true.
func (d *driver) postSends() (more bool) {
	if d.status != verbs.WCSuccess {
		return false
	}
	var batch []*verbs.SendWR
	for room := d.cap.MaxSendWR - (d.posted - d.done); room > 0 && d.posted < len(d.out.ops); room-- {
		o := &d.out.ops[d.posted]
		wr := &verbs.SendWR{WRID: uint64(d.posted), Opcode: o.code, Flags: o.flags, ImmData: o.imm, CompareAdd: o.add,
			Swap: o.swap}
		d.posted++
		if o.remote.n > 0 || o.remote.off > 0 {
			mr := d.peer.mrs[o.remote.area]
			wr.RemoteAddr, wr.RKey = mr.Addr()+uint64(o.remote.off), mr.RKey()
		}
		inline := o.flags&verbs.SendInline != 0
		if !inline {
			wr.SGList = d.sges(o.local)
		} else {
			at := 0
			for _, l := range o.local {
				at += copy(d.scratch.Buf()[at:], d.mem[l.area][l.off:l.off+l.n])
			}
			wr.SGList = []verbs.SGE{d.scratch.SGE(0, at)}
		}
		if batch = append(batch, wr); inline || d.r.IntN(3) == 0 {
			d.try(d.qp.PostSend(batch...))
			batch = nil
			fill(d.r, d.scratch.Buf())
			if d.r.IntN(8) == 0 {
				return true
			}
		}
	}
	if len(batch) > 0 {
		d.try(d.qp.PostSend(batch...))
	}
	return false
}

func (d *driver) postRecvs() {
	n := min(d.cap.MaxRecvWR-(d.recvPosted-d.recvDone), len(d.in.recvs)-d.recvPosted)
	if d.slow && n > 0 {
		n = d.r.IntN(n + 1)
	}
	for range n {
		rv := &d.in.recvs[d.recvPosted]
		d.try(d.qp.PostRecv(&verbs.RecvWR{WRID: recvID | uint64(d.recvPosted), SGList: d.sges(rv.local)}))
		d.recvPosted++
	}
}

func (d *driver) sges(pieces []piece) []verbs.SGE {
	var list []verbs.SGE
	for _, p := range pieces {
		list = append(list, d.mrs[p.area].SGE(p.off, p.n))
	}
	return list
}

func (d *driver) check(wc *verbs.WC) {
	d.t.Helper()
	if wc.QPNum != d.qp.Num() {
		d.t.Errorf("completion of QP %#x on the CQ of %#x", wc.QPNum, d.qp.Num())
	}
	if wc.WRID&recvID != 0 {
		d.checkRecv(wc, int(wc.WRID&^recvID))
	} else {
		d.checkSend(wc, int(wc.WRID))
	}
}

func (d *driver) checkSend(wc *verbs.WC, i int) {
	if i < d.done || i >= d.posted {
		d.t.Errorf("completion of send %d (%v) where %d is next and %d are posted", i, wc.Status, d.done, d.posted)
		return
	}
	o := &d.out.ops[i]
	for j := d.done; j < i; j++ {
		if d.status != verbs.WCSuccess || d.out.ops[j].flags&verbs.SendSignaled != 0 {
			d.t.Errorf("send %d completes (%v) before %d: %v", i, wc.Status, j, &d.out.ops[j])
		}
	}
	d.done = i + 1
	switch {
	case d.status != verbs.WCSuccess && wc.Status != verbs.WCWRFlushErr:
		d.t.Errorf("send %d completes with %v after another failed", i, wc.Status)
	case wc.Status != verbs.WCSuccess:
		if d.status == verbs.WCSuccess {
			d.status, d.succeeded = wc.Status, i
			d.t.Logf("QP %#x send %d, %v: %v", d.qp.Num(), i, o, wc.Status)
		}
	default:
		d.succeeded = d.done
		want := [...]verbs.WCOpcode{verbs.Send: verbs.WCSend, verbs.SendWithImm: verbs.WCSend,
			verbs.RDMAWrite: verbs.WCRDMAWrite, verbs.RDMAWriteWithImm: verbs.WCRDMAWrite,
			verbs.RDMARead: verbs.WCRDMARead, verbs.AtomicCmpAndSwp: verbs.WCCompSwap,
			verbs.AtomicFetchAndAdd: verbs.WCFetchAdd}[o.code]
		if wc.Opcode != want {
			d.t.Errorf("send %d completes as %v, want %v", i, wc.Opcode, want)
		}
		if want >= verbs.WCRDMARead && int(wc.ByteLen) != o.length {
			d.t.Errorf("send %d, %v, placed %d bytes", i, o, wc.ByteLen)
		}
		d.inPlace(o.localEffects, o)
	}
	if d.done == len(d.out.ops) || d.status != verbs.WCSuccess && d.done == d.posted {
		d.finish()
	}
}

func (d *driver) finish() {
	select {
	case <-d.finished:
	default:
		close(d.finished)
	}
}

func (d *driver) checkRecv(wc *verbs.WC, i int) {
	if i != d.recvDone || i >= d.recvPosted {
		d.t.Errorf("completion of receive %d (%v) where %d is next and %d are posted", i, wc.Status, d.recvDone, d.recvPosted)
		return
	}
	d.recvDone++
	rv := &d.in.recvs[i]
	if wc.Status != verbs.WCSuccess {
		if wc.Status != verbs.WCWRFlushErr {
			d.t.Errorf("receive %d completes with %v", i, wc.Status)
		}
		return
	}
	if i != d.recvSucceeded {
		d.t.Errorf("receive %d succeeds after %d was flushed", i, d.recvSucceeded)
	}
	d.recvSucceeded++
	hasImm := wc.Flags&verbs.WCWithImm != 0
	if wc.Opcode != rv.opcode || int(wc.ByteLen) != rv.length || hasImm != rv.hasImm || hasImm && wc.ImmData != rv.imm {
		d.t.Errorf("receive %d completes with %+v, want %v of %d bytes, imm %t %#x", i, *wc, rv.opcode, rv.length,
			rv.hasImm, rv.imm)
	}
	if wc.SrcQP != d.peer.qp.Num() {
		d.t.Errorf("receive %d from QP %#x, want %#x", i, wc.SrcQP, d.peer.qp.Num())
	}
	for j := range d.peer.out.ops {
		if o := &d.peer.out.ops[j]; o.recv == i {
			var local []effect
			for _, e := range o.remoteEffects {
				if e.area == inbox {
					local = append(local, e)
				}
			}
			d.inPlace(local, o)
		}
	}
}

// inPlace checks that effects on the driver's own memory are visible at completion.
func (d *driver) inPlace(effects []effect, o *op) {
	for _, e := range effects {
		if got := d.mem[e.area][e.off : e.off+len(e.data)]; !bytes.Equal(got, e.data) {
			d.t.Errorf("%v: completed without its data in %s at %d", o, areaNames[e.area], e.off)
		}
	}
}

// verify compares all memory that the driver's flow touches with the model, at the end. After a
// failed request, later requests may have been executed, in order.
func (d *driver) verify() {
	if d.status == verbs.WCSuccess {
		d.equal(&d.mem, sink)
		for _, a := range []area{source, target, counters, inbox} {
			d.peer.equal(&d.peer.mem, a)
		}
		if d.peer.recvSucceeded != len(d.out.recvs) {
			d.t.Errorf("%d receives succeeded, want %d", d.peer.recvSucceeded, len(d.out.recvs))
		}
		return
	}
	local, remote := d.model.start.clone(), d.peer.model.start.clone()
	executed := d.succeeded
	for i := range d.out.ops {
		if o := &d.out.ops[i]; o.recv >= 0 && o.recv < d.peer.recvSucceeded {
			executed = max(executed, i+1)
		}
	}
	for i := range d.out.ops[:executed] {
		remote.apply(d.out.ops[i].remoteEffects)
	}
	for i := range d.out.ops[:d.succeeded] {
		local.apply(d.out.ops[i].localEffects)
	}
	// Responses are placed on arrival, even after a missing one.
	for i := d.succeeded; i < len(d.out.ops); i++ {
		possible(&local, d.out.ops[i].localEffects, &d.mem, sink)
	}
	for i := executed; i < len(d.out.ops); i++ {
		for _, a := range []area{target, counters, inbox} {
			possible(&remote, d.out.ops[i].remoteEffects, &d.peer.mem, a)
		}
	}
	same(d.t, "sink", d.mem[sink], local[sink])
	for _, a := range []area{source, target, counters, inbox} {
		same(d.t, areaNames[a], d.peer.mem[a], remote[a])
	}
}

// possible sets want to mem where the effects explain its content: byte by byte, or as a whole for
// atomics.
func possible(want *memory, effects []effect, mem *memory, a area) {
	for _, e := range effects {
		if e.area != a {
			continue
		}
		got := mem[a][e.off : e.off+len(e.data)]
		if a == counters && !bytes.Equal(got, e.data) {
			continue
		}
		for i := range got {
			if got[i] == e.data[i] {
				want[a][e.off+i] = got[i]
			}
		}
	}
}

func (d *driver) equal(mem *memory, a area) { same(d.t, areaNames[a], mem[a], d.model.now[a]) }

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	wrong, first := 0, -1
	for i := range got {
		if got[i] != want[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	t.Errorf("%s: %d bytes of %d differ from the model, the first at %d", what, wrong, len(got), first)
}
