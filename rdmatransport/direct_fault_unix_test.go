//go:build unix

package rdmatransport_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// mapped registers memory outside the Go heap, filled with v, and returns it.
func mapped(t testing.TB, e *end, n int, v byte) *verbs.MR {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	noError(t, err)
	for i := range b {
		b[i] = v
	}
	mr, err := e.mr.PD().RegMREx(&verbs.MRInitAttr{Buf: b, Access: iwarpAccess, Mapped: true})
	noError(t, err)
	t.Cleanup(func() { noError(t, errors.Join(mr.Close(), unix.Munmap(b))) })
	return mr
}

// unmap makes accesses from an offset on fault, as if the memory had been unmapped there.
func unmap(t testing.TB, mr *verbs.MR, from int) {
	t.Helper()
	noError(t, unix.Mprotect(mr.Buf()[from:], unix.PROT_NONE))
}

// TestDirectMapped checks that memory of C code or of a system call is copied directly, like Go's
// memory, on either side.
func TestDirectMapped(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		const size = 64 << 10
		e := &newEnds(t, s, size).side
		a, b := &e[0], &e[1]
		onA, onB := mapped(t, a, size, 1), mapped(t, b, size, 2)
		half := []verbs.SGE{onA.SGE(0, size/2), onA.SGE(size/2, size/2)}
		before, posted := a.direct(t), uint64(0)
		for _, list := range [][]verbs.SGE{{onA.SGE(0, size)}, half} {
			for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.Send} {
				from, to := onA.Buf(), onB.Buf()
				if op == verbs.RDMARead {
					from, to = to, from
				}
				for i := range from {
					from[i] = byte(i>>8) ^ byte(posted)
				}
				clear(to)
				if op == verbs.Send {
					noError(t, b.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{onB.SGE(0, size)}}))
				}
				a.post(t, &verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: list, RemoteAddr: onB.Addr(), RKey: onB.RKey()})
				posted++
				a.take(t)
				if op == verbs.Send {
					b.take(t)
				}
				// In packets, the peer may still be placing it.
				if s.wrap == nil && !bytes.Equal(from, to) {
					t.Errorf("%v from %d pieces: the memory differs", op, len(list))
				}
			}
		}
		if n := a.direct(t) - before; s.wrap == nil && n != posted {
			t.Errorf("%d of %d messages went without packets", n, posted)
		}
	})
}

// TestDirectFault unmaps memory from the middle of a long message on. The request that needs it
// fails as in packets. Both QPs stay consistent, and requests posted after it are flushed.
func TestDirectFault(t *testing.T) {
	const size, there, whole = 4 << 20, 2<<20 + 64<<10, 2 << 20
	for _, c := range []struct {
		name   string
		op     verbs.WROpcode
		onA    bool // a's memory is unmapped; a posts
		status []verbs.WCStatus
	}{
		{"WRITE from it", verbs.RDMAWrite, true, []verbs.WCStatus{verbs.WCLocProtErr}},
		{"WRITE to it", verbs.RDMAWrite, false, []verbs.WCStatus{verbs.WCRemOpErr}},
		{"READ into it", verbs.RDMARead, true, []verbs.WCStatus{verbs.WCLocProtErr}},
		{"READ of it", verbs.RDMARead, false, []verbs.WCStatus{verbs.WCRemOpErr}},
		{"SEND from it", verbs.Send, true, []verbs.WCStatus{verbs.WCLocProtErr}},
		{"SEND to it", verbs.Send, false, []verbs.WCStatus{verbs.WCRemOpErr}},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoNodes(t, func(t *testing.T, s setting) {
				e := &newEnds(t, s, size).side
				a, b := &e[0], &e[1]
				onA, onB := a.mr, b.mr // the other side's memory is on the Go heap
				if c.onA {
					onA = mapped(t, a, size, 2)
					unmap(t, onA, there)
				} else {
					onB = mapped(t, b, size, 2)
					unmap(t, onB, there)
				}
				if c.op == verbs.Send {
					noError(t, b.QP().PostRecv(&verbs.RecvWR{WRID: 9, SGList: []verbs.SGE{onB.SGE(0, size)}}))
				}
				a.post(t, &verbs.SendWR{WRID: 1, Opcode: c.op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{onA.SGE(0, size)},
					RemoteAddr: onB.Addr(), RKey: onB.RKey()})
				allowed := c.status
				if s.transport == verbs.IWARP && !c.onA && c.op != verbs.RDMARead {
					// TCP may have accepted all of it.
					allowed = append(slices.Clone(allowed), verbs.WCSuccess, verbs.WCWRFlushErr)
				}
				if wc := a.next(t); wc.WRID != 1 || !slices.Contains(allowed, wc.Status) {
					t.Errorf("WR %d: %v, want one of %v", wc.WRID, wc.Status, allowed)
				}
				if c.op == verbs.Send {
					want := []verbs.WCStatus{verbs.WCLocProtErr}
					if c.onA {
						want = []verbs.WCStatus{verbs.WCWRFlushErr} // the connection has ended
						b.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
					}
					if wc := b.next(t); wc.WRID != 9 || !slices.Contains(want, wc.Status) {
						t.Errorf("receive request %d: %v, want one of %v", wc.WRID, wc.Status, want)
					}
				}
				from, to := onA.Buf(), onB.Buf()
				if c.op == verbs.RDMARead {
					from, to = to, from
				}
				// In whole parts; packets may still be in flight.
				if s.wrap == nil && !bytes.Equal(from[:whole], to[:whole]) {
					t.Error("the data before the fault was not copied")
				}
				// For the case that TCP has accepted the message.
				a.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
				a.post(t, &verbs.SendWR{WRID: 2, Opcode: c.op, Flags: verbs.SendSignaled})
				if wc := a.next(t); wc.WRID != 2 || wc.Status != verbs.WCWRFlushErr {
					t.Errorf("after it: WR %d, %v", wc.WRID, wc.Status)
				}
			})
		})
	}
}

// TestDirectFaultAnyTime unmaps memory at any time, while both sides write to each other's.
// Requests fail only with errors of memory, and the process continues.
func TestDirectFaultAnyTime(t *testing.T) {
	twoNodes(t, func(t *testing.T, s setting) {
		const size = 4 << 20
		for range stacktest.Size(2, 5, 5) {
			e := &newEnds(t, s, 8).side
			onA, onB := mapped(t, &e[0], size, 1), mapped(t, &e[1], size, 2)
			done := make(chan struct{})
			go func() {
				defer close(done)
				unmap(t, onB, size/2)
			}()
			for i := range 4 {
				e[0].post(t, &verbs.SendWR{WRID: uint64(i), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
					SGList:     []verbs.SGE{onA.SGE(0, size)},
					RemoteAddr: onB.Addr(), RKey: onB.RKey()})
			}
			for i := range 4 {
				wc := e[0].next(t)
				if s := wc.Status; wc.WRID != uint64(i) || s != verbs.WCSuccess && s != verbs.WCRemOpErr && s != verbs.WCWRFlushErr {
					t.Errorf("WR %d: %v", wc.WRID, s)
				}
			}
			<-done
		}
	})
}

// BenchmarkDirectMapped is BenchmarkDirectWrite with memory outside the Go heap on both sides. 0
// allocs/op.
func BenchmarkDirectMapped(b *testing.B) {
	e := &newEnds(b, setting{transport: verbs.RoCEv2, devices: 2}, 8).side
	onA, onB := mapped(b, &e[0], 4096, 1), mapped(b, &e[1], 4096, 2)
	wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{onA.SGE(0, 8)},
		RemoteAddr: onB.Addr(), RKey: onB.RKey()}
	b.ReportAllocs()
	for b.Loop() {
		e[0].post(b, wr)
		e[0].take(b)
	}
}
