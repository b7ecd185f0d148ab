package rdmatransport_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// TestAtomicAnswers checks the outcome of an atomic whose list is not one piece of 8 bytes, or
// whose address is not aligned. A failed atomic modifies nothing, and requests posted before it are
// executed.
func TestAtomicAnswers(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		for _, op := range []verbs.WROpcode{verbs.AtomicFetchAndAdd, verbs.AtomicCmpAndSwp} {
			for _, c := range []struct {
				name    string
				list    func(mr *verbs.MR) []verbs.SGE
				off     uint64
				badKey  bool
				want    verbs.WCStatus
				byIWARP verbs.WCStatus
			}{
				{"one piece", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 8)} },
					0, false, verbs.WCSuccess, verbs.WCSuccess},
				{"two pieces", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 3), mr.SGE(67, 5)} },
					0, false, verbs.WCSuccess, verbs.WCSuccess},
				{"no piece", func(*verbs.MR) []verbs.SGE { return nil }, 0, false, verbs.WCLocLenErr, verbs.WCLocLenErr},
				{"4 bytes", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 4)} }, 0,
					false, verbs.WCLocLenErr, verbs.WCLocLenErr},
				{"9 bytes", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 9)} }, 0,
					false, verbs.WCLocLenErr, verbs.WCLocLenErr},
				{"unaligned", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 8)} },
					4, false, verbs.WCRemInvReqErr, verbs.WCRemInvReqErr},
				{"a bad key", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 8)} },
					0, true, verbs.WCRemAccessErr, verbs.WCRemAccessErr},
				{"unaligned, a bad key", func(mr *verbs.MR) []verbs.SGE { return []verbs.SGE{mr.SGE(64, 8)} },
					4, true, verbs.WCRemInvReqErr, verbs.WCRemInvReqErr},
			} {
				t.Run(op.String()+"/"+c.name, func(t *testing.T) {
					p := newWindowPair(t, m, transport)
					memory := make([]byte, 64)
					binary.NativeEndian.PutUint64(memory, 5)
					target := p.b.reg(memory, everyAccess)
					rkey := target.RKey()
					if c.badKey {
						rkey ^= 1 << 20
					}
					ok(t, p.qa.QP().PostSend(
						&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.am.SGE(0, 8)},
							RemoteAddr: target.Addr() + 56, RKey: target.RKey()},
						&verbs.SendWR{WRID: 2, Opcode: op, Flags: verbs.SendSignaled, SGList: c.list(p.am),
							RemoteAddr: target.Addr() + c.off, RKey: rkey,
							CompareAdd: 5, Swap: 10},
					))
					if wc := poll(t, p.qa.QP().SendCQ()); wc.WRID != 1 || wc.Status != verbs.WCSuccess {
						t.Errorf("the request before it: %+v", wc)
					}
					want := c.want
					if transport == verbs.IWARP {
						want = c.byIWARP
					}
					wc := poll(t, p.qa.QP().SendCQ())
					word, found := uint64(5), uint64(0)
					if want == verbs.WCSuccess {
						word, found = 10, 5
					}
					if wc.WRID != 2 || wc.Status != want {
						t.Errorf("%+v, want %v", wc, want)
					}
					// The other side's goroutine has modified the word. Sockets do not order memory
					// accesses for the race detector.
					got := (*atomic.Uint64)(unsafe.Pointer(&memory[0])).Load()
					was := binary.NativeEndian.Uint64(p.am.Buf()[64:])
					if got != word || was != found {
						t.Errorf("the word is %d and the old value %d, want %d and %d", got, was, word, found)
					}
				})
			}
		}
	})
}
