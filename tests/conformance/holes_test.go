package conformance

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// Each test here covers a vulnerability or defect that other software RDMA has or had.

// TestKeysCannotBeGuessed: keys and QP numbers are random in all bits. Keys made of an index and 8
// random bits can be found by trying.
func TestKeysCannotBeGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, new(pipe.Switch).Port(), nil, "10.0.0.1/24")
		defer n.close()
		const count = 4096
		var lkeys, rkeys, qpns []uint32
		buf := make([]byte, 8)
		for range count {
			mr := n.reg(buf, allAccess)
			lkeys, rkeys = append(lkeys, mr.LKey()), append(rkeys, mr.RKey())
			defer func() { ok(t, mr.Close()) }()
			if mr.LKey() == mr.RKey() {
				t.Errorf("lkey and rkey are both %#x", mr.LKey())
			}
		}
		for range count {
			e := n.newEndpoint(verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1})
			qpns = append(qpns, e.qp.Num())
			defer e.destroy()
		}
		random(t, "lkey", lkeys, 32)
		random(t, "rkey", rkeys, 31) // the top bit distinguishes windows
		random(t, "QPN", qpns, 24)
	})
}

// random fails if numbers of the given width repeat, have a biased bit, or resemble their
// predecessors. A true random source fails less than once in a million runs.
func random(t *testing.T, what string, numbers []uint32, width int) {
	t.Helper()
	seen := map[uint32]bool{}
	var ones [32]int
	changed, similar := 0, 0
	for i, n := range numbers {
		if seen[n] || n == 0 {
			t.Errorf("%s %#x was given twice, or is 0", what, n)
		}
		seen[n] = true
		for b := range width {
			ones[b] += int(n >> b & 1)
		}
		if i == 0 {
			continue
		}
		last := numbers[i-1]
		changed += bits.OnesCount32(n ^ last)
		if n>>8 == last>>8 || n&0xffff == last&0xffff || n-last < 256 || last-n < 256 {
			similar++
		}
	}
	n := len(numbers)
	six := 6 * isqrt(n) / 2 // six standard deviations of n coins
	for b := range width {
		if d := ones[b] - n/2; d > six || -d > six {
			t.Errorf("%s: bit %d is 1 in %d of %d", what, b, ones[b], n)
		}
	}
	if mean := (n - 1) * width / 2; changed < mean-6*isqrt(mean) || changed > mean+6*isqrt(mean) {
		t.Errorf("%s: %d bits change from one to the next, %d are due", what, changed, mean)
	}
	if similar > 8 {
		t.Errorf("%s: %d of %d resemble the one before", what, similar, n)
	}
}

func isqrt(n int) (r int) {
	for r*r < n {
		r++
	}
	return r
}

// TestRangesThatWrap: an address and a length whose sum exceeds 2^64 must not count as inside.
func TestRangesThatWrap(t *testing.T) {
	const size = 4096
	const top = ^uint64(0) - size + 1 // a region that ends at the end of the address space
	for _, c := range []struct {
		name string
		base uint64
		addr uint64
		n    int
		ok   bool
	}{
		{"all of it at the top", top, top, size, true},
		{"last byte at the top", top, ^uint64(0), 1, true},
		{"two bytes from the last", top, ^uint64(0), 2, false},
		{"past the top into address 0", top, top + 1, size, false},
		{"address 0", top, 0, 1, false},
		{"one before", top, top - 1, 1, false},
		{"all of it at 0", 0, 0, size, true},
		{"from the top into 0", 0, ^uint64(0) - 7, 16, false},
		{"from far into it", 0, 1<<63 + 1, size, false},
		{"one past the end", 0, size, 1, false},
		{"last byte and one more", 0, size - 1, 2, false},
	} {
		access := allAccess
		if c.base == 0 {
			access |= verbs.AccessZeroBased
		}
		want := func(bad verbs.WCStatus) verbs.WCStatus {
			if c.ok {
				return verbs.WCSuccess
			}
			return bad
		}
		try := func(name string, bad verbs.WCStatus, wr func(p *pair, mr *verbs.MR) *verbs.SendWR, remote bool) {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				test := func(t *testing.T, direct bool) {
					p := newPair(t, pairOptions{direct: direct})
					defer p.close()
					owner := p.a
					if remote {
						owner = p.b
					}
					mr := must(owner.pd.RegMREx(&verbs.MRInitAttr{Buf: make([]byte, size), IOVA: new(c.base), Access: access}))(t)
					p.a.post(wr(p, mr))
					if wc := p.a.next(); wc.Status != want(bad) {
						t.Errorf("%v, want %v", wc.Status, want(bad))
					}
					ok(t, mr.Close())
				}
				bothWays(t, func(t *testing.T, direct bool) {
					synctest.Test(t, func(t *testing.T) { test(t, direct) })
				})
			})
		}
		try("WRITE", verbs.WCRemAccessErr, func(p *pair, mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.am.SGE(0, c.n)},
				RemoteAddr: c.addr, RKey: mr.RKey()}
		}, true)
		try("READ", verbs.WCRemAccessErr, func(p *pair, mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.am.SGE(0, c.n)},
				RemoteAddr: c.addr, RKey: mr.RKey()}
		}, true)
		try("SGE", verbs.WCLocProtErr, func(p *pair, mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList:     []verbs.SGE{{Addr: c.addr, Length: uint32(c.n), LKey: mr.LKey()}},
				RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()}
		}, false)
	}
}

// TestRNRTimerHonoured: a requester waits at least as long as an RNR NAK says.
func TestRNRTimerHonoured(t *testing.T) {
	for _, code := range []uint8{1, 12, 20, 31, 0} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var sent []time.Duration
				p := newPair(t, pairOptions{
					terms:  func(c *terms) { c.sides[1].rnrTimer = code },
					aSends: []impair.Rule{see(t, "send", func([]byte) { sent = append(sent, time.Since(start)) })},
				})
				defer p.close()
				wait := wire.RNRTimer(code)
				p.a.post(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{p.am.SGE(0, 100)}})
				time.Sleep(wait*5/2 + time.Millisecond)
				synctest.Wait()
				p.a.none()
				ok(t, p.b.qp.PostRecv(&verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{p.bm.SGE(0, 100)}}))
				p.b.succeed(2)
				p.a.succeed(1)
				for i := 1; i < len(sent); i++ {
					if gap := sent[i] - sent[i-1]; gap < wait || gap > wait+wait/10+time.Millisecond {
						t.Errorf("attempts %d and %d are %v apart, the peer asked for %v", i, i+1, gap, wait)
					}
				}
				if len(sent) < 2 {
					t.Errorf("%d attempts", len(sent))
				}
			})
		})
	}
}

// TestRNRRetriesEnd: after rnr_retry waits the request fails with RNR_RETRY_EXC_ERR.
func TestRNRRetriesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		p := newPair(t, pairOptions{
			terms:  func(c *terms) { c.sides[0].rnrRetries, c.sides[1].rnrTimer = 3, 20 },
			aSends: []impair.Rule{see(t, "send", func([]byte) { attempts++ })},
		})
		defer p.close()
		start := time.Now()
		p.a.post(&verbs.SendWR{WRID: 1, Opcode: verbs.Send}, &verbs.SendWR{WRID: 2, Opcode: verbs.RDMAWrite})
		if wc := p.a.next(); wc.WRID != 1 || wc.Status != verbs.WCRNRRetryExcErr {
			t.Errorf("WR %d: %v, want WR 1: RNR_RETRY_EXC_ERR", wc.WRID, wc.Status)
		}
		if wc := p.a.next(); wc.WRID != 2 || wc.Status != verbs.WCWRFlushErr {
			t.Errorf("WR %d: %v, want WR 2: WR_FLUSH_ERR", wc.WRID, wc.Status)
		}
		if took, want := time.Since(start), 3*wire.RNRTimer(20); took < want || took > want+want/2 || attempts != 4 {
			t.Errorf("%d attempts in %v, want 4 in %v", attempts, took, want)
		}
	})
}

// TestLostAtomicAcknowledgement: a lost response to an atomic is sent again, without another
// execution.
func TestLostAtomicAcknowledgement(t *testing.T) {
	for _, lost := range []int{1, 3} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, pairOptions{bSends: []impair.Rule{drop(t, "atomic-ack", 1, lost)}})
				defer p.close()
				word := func(m *verbs.MR, i int) uint64 { return binary.NativeEndian.Uint64(m.Buf()[8*i:]) }
				binary.NativeEndian.PutUint64(p.bm.Buf(), 1000)
				atomic := func(id uint64, code verbs.WROpcode, add, swap uint64) *verbs.SendWR {
					return &verbs.SendWR{WRID: id, Opcode: code, Flags: verbs.SendSignaled, CompareAdd: add, Swap: swap,
						SGList: []verbs.SGE{p.am.SGE(8*int(id), 8)}, RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()}
				}
				p.a.post(
					atomic(1, verbs.AtomicFetchAndAdd, 5, 0),
					atomic(2, verbs.AtomicCmpAndSwp, 1005, 7),
					atomic(3, verbs.AtomicFetchAndAdd, ^uint64(0), 0),
				)
				for i, want := range []uint64{1000, 1005, 7} {
					p.a.succeed(uint64(i + 1))
					if got := word(p.am, i+1); got != want {
						t.Errorf("atomic %d found %d, want %d", i+1, got, want)
					}
				}
				if got := word(p.bm, 0); got != 6 {
					t.Errorf("the word is %d, want 6", got)
				}
			})
		})
	}
}

// TestMemoryChangesBetweenAttempts: the ICRC of a repeated packet matches its bytes, even if the
// memory has changed since the first attempt.
func TestMemoryChangesBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *pair
		packets := 0
		p = newPair(t, pairOptions{
			aSends: []impair.Rule{see(t, "roce", func(frame []byte) {
				packets++
				ip := frame[14:]
				if !wire.CheckICRC(ip[:28], ip[28:]) {
					t.Errorf("packet %d has a wrong ICRC", packets)
				}
				for i := range p.am.Buf() {
					p.am.Buf()[i]++
				}
			})},
			bSends: []impair.Rule{drop(t, "ack", 1, 5)},
		})
		defer p.close()
		// Packets that wait for address resolution are sent outside the QP's lock.
		for _, g := range p.b.gids {
			p.a.findNeighbour(g.GID.Addr())
		}
		p.a.post(&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.am.SGE(0, 10_000)}, RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()})
		p.a.succeed(1)
		if packets < 20 {
			t.Errorf("%d packets: nothing was repeated", packets)
		}
		if n := p.b.counter("icrc_errors"); n != 0 {
			t.Errorf("the peer found %d wrong ICRCs", n)
		}
	})
}
