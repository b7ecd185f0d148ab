package iwarptransport_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// badStreams runs f in virtual time over a network of each seed. The networks cut streams anywhere,
// have small windows, and delay, damage or abort streams. f returns the amount of work done and
// whether the connection failed.
func badStreams(t *testing.T, normal, system int, f func(t *testing.T, n *badNetwork) (work int, failed bool)) {
	seeds := stacktest.Size(normal, system, 10_000)
	if raceEnabled {
		seeds = normal / 2
	}
	var harmed, failures, work atomic.Int64
	seeds = stacktest.Seeds(t, seeds, func(t *testing.T, seed uint64) {
		n := drawNetwork(seed)
		done, failed := f(t, n)
		work.Add(int64(done))
		if n.harmed.Load() {
			harmed.Add(1)
		}
		if failed {
			failures.Add(1)
		}
	})
	t.Logf("result: %d seeds, %d requests or bytes, %d streams harmed, %d connections failed", seeds,
		work.Load(), harmed.Load(), failures.Load())
	if n := int(failures.Load()); seeds >= 20 && (n < seeds/10 || n > seeds*2/3) {
		t.Errorf("%d of %d connections failed", n, seeds)
	}
}

// badNetwork is a network with random choices. It records whether it has harmed a stream.
type badNetwork struct {
	*network
	seed   uint64
	r      *rand.Rand // for its users
	harmed atomic.Bool

	mu    sync.Mutex
	draws *rand.Rand // guarded by mu
}

func drawNetwork(seed uint64) *badNetwork {
	r := rand.New(rand.NewPCG(seed, 100))
	n := &badNetwork{seed: seed, r: r, draws: rand.New(rand.NewPCG(seed, 101)), network: &network{
		mss: []int{131, 536, 1460, 8961}[r.IntN(4)], buffer: []int{1, 3000, 20_000, 200_000}[r.IntN(4)], offloaded: r.IntN(2) == 0,
	}}
	switch r.IntN(3) {
	case 0:
		n.cut = func(avail int) int { return 1 + n.draw(avail) }
	case 1:
		n.cut = func(avail int) int { return 1 + n.draw(1+n.draw(1+n.draw(avail))) }
	}
	if r.IntN(2) == 0 {
		most := []int{1, 20, 3000}[r.IntN(3)]
		n.stall = func() time.Duration { return time.Duration(n.draw(most)) * time.Millisecond }
	}
	return n
}

func (n *badNetwork) draw(most int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.draws.IntN(most)
}

// mayHarm damages or aborts the stream in four of ten cases, at a random point after the next least
// bytes.
func (n *badNetwork) mayHarm(least int) {
	how, after := n.r.IntN(10), int64(least+1+n.r.IntN(1<<(6+n.r.IntN(12))))
	if how >= 4 {
		return
	}
	var sent atomic.Int64
	n.damage = func(s *stream, b []byte) {
		if now := sent.Add(int64(len(b))); now < after || now-int64(len(b)) >= after {
			return
		}
		n.harmed.Store(true)
		switch how {
		case 0, 1:
			b[n.draw(len(b))] ^= 1 << n.draw(8)
		case 2:
			go s.Abort()
		default:
			go s.Close()
		}
	}
}

// config returns a random iWARP configuration of a node.
func (n *badNetwork) config() iwarp.Config {
	return iwarp.Config{Markers: n.r.IntN(2) == 0, LongFPDUs: n.r.IntN(2) == 0}
}

// TestMatrix runs mixed work in both directions over every kind of stream. Data must be right, and
// every request must complete once and in order, with success unless the stream was harmed.
func TestMatrix(t *testing.T) {
	badStreams(t, 100, 1000, func(t *testing.T, n *badNetwork) (requests int, failed bool) {
		m := newMatrix(t, n)
		m.run()
		return len(m.sides[0].work) + len(m.sides[1].work), m.sides[0].failed || m.sides[1].failed
	})
}

// The parts of a side's memory. Every request has its own, so that all can be checked at the end.
const (
	mostWork   = 40
	mostBytes  = 12 << 10
	sourceAt   = 0 // the source of SENDs and of the other side's READs: it never changes
	sourceLen  = 256 << 10
	recvAt     = sourceAt + sourceLen
	writtenAt  = recvAt + mostWork*mostBytes    // by the other side
	sinkAt     = writtenAt + mostWork*mostBytes // of READs
	resultAt   = sinkAt + mostWork*mostBytes    // of atomics
	counterAt  = resultAt + mostWork*8          // target of the other side's atomics
	matrixSize = counterAt + 8
)

// matrix is two sides with work to do.
type matrix struct {
	t     *testing.T
	net   *badNetwork
	sides [2]*matrixSide
}

// matrixSide is one of them.
type matrixSide struct {
	*session
	r      *rand.Rand
	source []byte
	work   []*verbs.SendWR
	sends  []*verbs.SendWR // of work
	failed bool
	wcs    map[*verbs.CQ][]verbs.WC
}

func newMatrix(t *testing.T, n *badNetwork) *matrix {
	m, r := &matrix{t: t, net: n}, n.r
	a, b := newNode(t, n.network, nodeAddr, matrixSize, n.config()), newNode(t, n.network, peerAddr, matrixSize, n.config())
	for _, d := range []*node{a, b} {
		d.recvs, d.recvLen = mostWork, mostBytes
		copy(d.buf[sourceAt:], pattern(r.IntN(256), sourceLen))
	}
	// Receives are posted at the start of the region.
	var sessions [2]*session
	a.mr, b.mr = m.part(a, recvAt), m.part(b, recvAt)
	sessions[0], sessions[1] = pair(a, b)
	n.mayHarm(0)
	for i, s := range sessions {
		m.sides[i] = &matrixSide{session: s, r: rand.New(rand.NewPCG(n.seed, uint64(i))),
			source: bytes.Clone(s.buf[sourceAt : sourceAt+sourceLen])}
	}
	for i, s := range m.sides {
		s.plan(m.sides[1-i])
	}
	return m
}

// part returns a region of a node's memory from an offset on.
func (m *matrix) part(d *node, off int) *verbs.MR { return d.register(d.buf[off:], allRights) }

// plan draws the work of a side.
func (s *matrixSide) plan(other *matrixSide) {
	r, all := s.r, s.node.regions
	whole, theirs := all[0], other.node.regions[0]
	unsignaled := r.IntN(3) == 0
	requests := 1 + r.IntN(mostWork)
	for i := range requests {
		n := r.IntN(1 + r.IntN(mostBytes))
		from := r.IntN(sourceLen - n)
		wr := &verbs.SendWR{WRID: uint64(i), Flags: verbs.SendSignaled, SGList: s.pieces(whole, sourceAt+from, n)}
		kind := r.IntN(5)
		if i == requests-1 {
			kind = 3 // its response shows that all before it have arrived
		}
		switch kind {
		case 0, 1:
			wr.Opcode = verbs.Send
			s.sends = append(s.sends, wr)
		case 2:
			wr.Opcode, wr.RKey, wr.RemoteAddr = verbs.RDMAWrite, theirs.RKey(), theirs.Addr()+uint64(writtenAt+i*mostBytes)
		case 3:
			wr.Opcode, wr.RKey, wr.RemoteAddr = verbs.RDMARead, theirs.RKey(), theirs.Addr()+uint64(sourceAt+from)
			wr.SGList = s.pieces(whole, sinkAt+i*mostBytes, n)
		case 4:
			wr.Opcode, wr.RKey, wr.RemoteAddr = verbs.AtomicFetchAndAdd, theirs.RKey(), theirs.Addr()+counterAt
			wr.SGList, wr.CompareAdd = []verbs.SGE{whole.SGE(resultAt+8*i, 8)}, 1
		}
		switch {
		case unsignaled && r.IntN(2) == 0:
			wr.Flags = 0
		case r.IntN(6) == 0:
			wr.Flags |= verbs.SendFence
		}
		if (wr.Opcode == verbs.Send || wr.Opcode == verbs.RDMAWrite) && n <= s.cap.MaxInlineData && r.IntN(2) == 0 {
			wr.Flags |= verbs.SendInline
		}
		s.work = append(s.work, wr)
	}
	s.work[len(s.work)-1].Flags |= verbs.SendSignaled
}

// pieces returns n bytes of a region as a scatter/gather list.
func (s *matrixSide) pieces(mr *verbs.MR, off, n int) (sges []verbs.SGE) {
	for left := s.r.IntN(s.cap.MaxSendSGE); left > 0 && n > 0; left-- {
		k := s.r.IntN(n + 1)
		sges = append(sges, mr.SGE(off, k))
		off, n = off+k, n-k
	}
	return append(sges, mr.SGE(off, n))
}

// run does the work and checks the results.
func (m *matrix) run() {
	var posting sync.WaitGroup
	for _, s := range m.sides {
		s.wcs = make(map[*verbs.CQ][]verbs.WC)
		posting.Go(func() {
			for rest := s.work; len(rest) > 0; {
				n := 1 + s.r.IntN(len(rest))
				if err := s.qp.PostSend(rest[:n]...); err != nil {
					m.t.Error(err)
				}
				if rest = rest[n:]; s.r.IntN(2) == 0 {
					time.Sleep(time.Duration(s.r.IntN(5000)) * time.Microsecond)
				}
			}
		})
	}
	posting.Wait()
	const timeLimit = time.Hour
	gaveUp := false
	for began := time.Now(); !m.ended(); time.Sleep(10 * time.Millisecond) {
		switch {
		case time.Since(began) <= timeLimit:
		case m.net.harmed.Load() && !gaveUp:
			// After damage to a length, the receiver waits for bytes that are never sent: iWARP has
			// no timer. Programs have one.
			gaveUp, began = true, time.Now()
			if err := m.sides[0].qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState); err != nil {
				m.t.Fatal(err)
			}
		default:
			m.t.Fatal("the work does not complete")
		}
	}
	for i, s := range m.sides {
		m.check(s, m.sides[1-i])
	}
	for _, s := range m.sides {
		s.conn.Close()
	}
}

// ended collects completions, and reports whether there will be no more.
func (m *matrix) ended() bool {
	synctest.Wait()
	all := true
	for i, s := range m.sides {
		for _, cq := range []*verbs.CQ{s.scq, s.rcq} {
			s.wcs[cq] = append(s.wcs[cq], drain(m.t, cq)...)
		}
		if s.failed = s.qp.State() == verbs.StateErr; s.failed {
			all = all && len(s.wcs[s.rcq]) == mostWork
			continue
		}
		last := uint64(len(s.work) - 1)
		sent := len(s.wcs[s.scq]) > 0 && s.wcs[s.scq][len(s.wcs[s.scq])-1].WRID == last
		all = all && sent && len(s.wcs[s.rcq]) >= len(m.sides[1-i].sends)
	}
	return all
}

// check checks the completions of one side, and their data.
func (m *matrix) check(s, other *matrixSide) {
	t := m.t
	if s.failed && !m.net.harmed.Load() {
		t.Errorf("the connection failed, although the stream was not harmed: %v", s.wcs[s.scq])
	}
	next, failed := 0, false
	for _, wc := range s.wcs[s.scq] {
		for next < len(s.work) && uint64(next) < wc.WRID {
			if s.work[next].Flags&verbs.SendSignaled != 0 || failed {
				t.Fatalf("request %d did not complete before %d", next, wc.WRID)
			}
			m.checkAnswer(s, other, next)
			next++
		}
		switch {
		case next == len(s.work) || wc.WRID != uint64(next):
			t.Fatalf("request %d completes again", wc.WRID)
		case wc.Status == verbs.WCSuccess && failed:
			t.Fatalf("request %d succeeds after one that failed", next)
		case wc.Status == verbs.WCSuccess:
			m.checkAnswer(s, other, next)
		default:
			failed = true
		}
		next++
	}
	if next != len(s.work) {
		t.Fatalf("%d of %d requests have completed", next, len(s.work))
	}
	for i, wc := range s.wcs[s.rcq] {
		if wc.WRID != uint64(i) {
			t.Fatalf("receive %d completes as number %d", wc.WRID, i)
		}
		if wc.Status != verbs.WCSuccess {
			break
		}
		if i >= len(other.sends) {
			t.Fatalf("%d messages arrived, %d were sent", i+1, len(other.sends))
		}
		want := other.sent(other.sends[i])
		if at := recvAt + i*mostBytes; int(wc.ByteLen) != len(want) || !bytes.Equal(s.buf[at:at+len(want)], want) {
			t.Errorf("message %d differs", i)
		}
	}
	added := uint64(0)
	for i, wr := range other.work {
		switch wr.Opcode {
		case verbs.AtomicFetchAndAdd:
			added++
		case verbs.RDMAWrite:
			want, at := other.sent(wr), writtenAt+i*mostBytes
			if whole := bytes.Equal(s.buf[at:at+len(want)], want); !whole && !other.failed && !s.failed {
				t.Errorf("WRITE %d differs", i)
			}
			if !bytes.Equal(s.buf[at+len(want):at+mostBytes], make([]byte, mostBytes-len(want))) {
				t.Errorf("WRITE %d has changed more bytes than its length", i)
			}
		}
	}
	if n := binary.NativeEndian.Uint64(s.buf[counterAt:]); n > added || n < added && !other.failed && !s.failed {
		t.Errorf("%d of %d atomics were executed", n, added)
	}
	if !bytes.Equal(s.buf[sourceAt:sourceAt+sourceLen], s.source) {
		t.Error("memory without a WRITE has changed")
	}
}

// checkAnswer checks the result of a successful READ or atomic.
func (m *matrix) checkAnswer(s, other *matrixSide, i int) {
	switch wr := s.work[i]; wr.Opcode {
	case verbs.RDMARead:
		n, from := lengthOf(wr), int(wr.RemoteAddr-other.node.regions[0].Addr())-sourceAt
		if at := sinkAt + i*mostBytes; !bytes.Equal(s.buf[at:at+n], other.source[from:from+n]) {
			m.t.Errorf("READ %d has other data", i)
		}
	case verbs.AtomicFetchAndAdd:
		before := uint64(0)
		for _, wr := range s.work[:i] {
			if wr.Opcode == verbs.AtomicFetchAndAdd {
				before++
			}
		}
		if got := binary.NativeEndian.Uint64(s.buf[resultAt+8*i:]); got != before {
			m.t.Errorf("atomic %d has returned %d, want %d", i, got, before)
		}
	}
}

// sent returns the payload of a SEND or WRITE.
func (s *matrixSide) sent(wr *verbs.SendWR) (data []byte) {
	whole := s.node.regions[0]
	for _, g := range wr.SGList {
		off := int(g.Addr - whole.Addr())
		data = append(data, s.source[off-sourceAt:off-sourceAt+int(g.Length)]...)
	}
	return data
}

// lengthOf is the number of bytes of a request.
func lengthOf(wr *verbs.SendWR) (n int) {
	for _, e := range wr.SGList {
		n += int(e.Length)
	}
	return n
}
