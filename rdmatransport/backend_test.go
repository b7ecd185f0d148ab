package rdmatransport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// store is a backend whose memory only its methods access. They may be slow or fail.
type store struct {
	mu     sync.Mutex
	b      []byte
	closed bool // no call is allowed any more

	// before, if not nil, is called before each copy of n bytes, without the lock. It returns how many
	// are copied, and the error.
	before func(write bool, off int64, n int) (int, error)
	wrong  atomic.Int32 // calls after the region was closed
}

func newStore(n int) *store { return &store{b: make([]byte, n)} }

func (s *store) copy(write bool, p []byte, off int64) (n int, err error) {
	n = len(p)
	if s.before != nil {
		n, err = s.before(write, off, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.wrong.Add(1)
		return 0, errors.New("the memory is free")
	}
	if write {
		copy(s.b[off:], p[:n])
	} else {
		copy(p[:n], s.b[off:])
	}
	return n, err
}

func (s *store) ReadAt(p []byte, off int64) (int, error)  { return s.copy(false, p, off) }
func (s *store) WriteAt(p []byte, off int64) (int, error) { return s.copy(true, p, off) }

// part returns a copy of n bytes.
func (s *store) part(off, n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b[off : off+n])
}

// fill writes random bytes to n bytes, and returns them.
func (s *store) fill(off, n int, random *rand.Rand) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.b[off : off+n] {
		s.b[off+i] = byte(random.Uint32())
	}
	return bytes.Clone(s.b[off : off+n])
}

// slow makes copies yield a random number of times, so that packets arrive meanwhile.
func (s *store) slow(random *rand.Rand) *store {
	var mu sync.Mutex
	s.before = func(_ bool, _ int64, n int) (int, error) {
		mu.Lock()
		yields := random.IntN(20)
		mu.Unlock()
		for range yields {
			runtime.Gosched()
		}
		return n, nil
	}
	return s
}

// back registers a store until the end of the test.
func (s *station) back(b *store, access verbs.Access) *verbs.MR {
	s.t.Helper()
	iova := uint64(0x7f0000000000)
	if access&verbs.AccessZeroBased != 0 {
		iova = 0
	}
	mr := must(s.pd.RegMREx(&verbs.MRInitAttr{Backend: b, BackendLength: len(b.b), IOVA: &iova, Access: access}))(s.t)
	s.t.Cleanup(func() {
		if err := mr.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			s.t.Error(err)
		}
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		if n := b.wrong.Load(); n > 0 {
			s.t.Errorf("%d copies after Close", n)
		}
	})
	return mr
}

// backs are two connected stations whose regions have backends.
type backs struct {
	t      *testing.T
	a, b   *station
	qa, qb *rdmacm.Conn
	sa, sb *store
	ma, mb *verbs.MR
	random *rand.Rand
}

func connectBacks(t *testing.T, a, b *station, sa, sb *store, transport verbs.Transport) *backs {
	t.Helper()
	p := &backs{t: t, a: a, b: b, sa: sa, sb: sb, random: rand.New(rand.NewPCG(1, 2))}
	p.ma, p.mb = a.back(sa, everyAccess), b.back(sb, everyAccess|verbs.AccessMWBind)
	p.qa, p.qb = dial(a, b, transport, nil)
	return p
}

// onPipe creates two stations on a network of their own.
func onPipe(t *testing.T) (a, b *station) {
	lan := new(pipe.Switch)
	return newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
}

// inPackets creates two stations that send packets to each other: an impaired link is not
// link.Shared.
func inPackets(t *testing.T) (a, b *station) {
	lan := new(pipe.Switch)
	on := func(addr string) *station { return newStationOn(t, must(impair.New(lan.Port(), nil))(t), addr, nil) }
	return on("10.0.0.1/24"), on("10.0.0.2/24")
}

// overPipe runs a test in the process, and in packets.
func overPipe(t *testing.T, f func(t *testing.T, stations func(t *testing.T) (a, b *station))) {
	t.Run("in process", func(t *testing.T) { f(t, onPipe) })
	t.Run("in packets", func(t *testing.T) { f(t, inPackets) })
}

// do posts a request and returns its status.
func (p *backs) do(wr *verbs.SendWR) verbs.WCStatus {
	p.t.Helper()
	wr.Flags |= verbs.SendSignaled
	ok(p.t, p.qa.QP().PostSend(wr))
	return poll(p.t, p.qa.QP().SendCQ()).Status
}

func (p *backs) same(what string, got, want []byte) {
	p.t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		p.t.Fatalf("%s: %d bytes, want %d; the first difference is at %d", what, len(got), len(want), i)
	}
}

// exchange does every operation with n bytes, from backend to backend. When a completion is there,
// the bytes must be.
func (p *backs) exchange(n int) {
	t := p.t
	t.Helper()
	data := p.sa.fill(0, n, p.random)
	rkey, addr := p.mb.RKey(), p.mb.Addr()
	local := []verbs.SGE{p.ma.SGE(0, n)}

	ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{p.mb.SGE(0, n/3), p.mb.SGE(n/3, n-n/3)}}))
	ok(t, p.qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: local}))
	if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status != verbs.WCSuccess || int(wc.ByteLen) != n {
		t.Fatalf("receive: %+v", wc)
	}
	p.same("SEND", p.sb.part(0, n), data)
	if wc := poll(t, p.qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
		t.Fatalf("SEND: %+v", wc)
	}

	data = p.sa.fill(0, n, p.random)
	ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 2}))
	ok(t, p.qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSignaled, SGList: local,
		RemoteAddr: addr, RKey: rkey, ImmData: 7}))
	if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status != verbs.WCSuccess || wc.ImmData != 7 {
		t.Fatalf("receive: %+v", wc)
	}
	p.same("WRITE_WITH_IMM", p.sb.part(0, n), data)
	if wc := poll(t, p.qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
		t.Fatalf("WRITE_WITH_IMM: %+v", wc)
	}

	// A READ returns what a WRITE before it has written. The fenced WRITE sends what the READ has
	// read.
	data = p.sa.fill(0, n, p.random)
	ok(t, p.qa.QP().PostSend(
		&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: local, RemoteAddr: addr, RKey: rkey},
		&verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{p.ma.SGE(n, n)}, RemoteAddr: addr, RKey: rkey},
		&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled | verbs.SendFence, SGList: []verbs.SGE{p.ma.SGE(n, n)},
			RemoteAddr: addr + uint64(n), RKey: rkey},
		&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.ma.SGE(2*n, n)},
			RemoteAddr: addr + uint64(n), RKey: rkey},
	))
	for range 2 {
		if wc := poll(t, p.qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatalf("WRITE and READ: %+v", wc)
		}
	}
	p.same("READ", p.sa.part(n, n), data)
	p.same("fenced WRITE", p.sb.part(n, n), data)
	p.same("second READ", p.sa.part(2*n, n), data)
}

// atomics executes atomics in a backend, with results in another.
func (p *backs) atomics() {
	p.t.Helper()
	word := func() uint64 { return binary.NativeEndian.Uint64(p.sb.part(64, 8)) }
	before := word()
	wr := verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, SGList: []verbs.SGE{p.ma.SGE(8, 8)}, RemoteAddr: p.mb.Addr() + 64,
		RKey: p.mb.RKey(), CompareAdd: 5}
	for i := range uint64(3) {
		if s := p.do(&wr); s != verbs.WCSuccess {
			p.t.Fatal(s)
		}
		if was, now := binary.NativeEndian.Uint64(p.sa.part(8, 8)), word(); was != before+5*i || now != was+5 {
			p.t.Fatalf("FETCH_AND_ADD: %d after %d", now, was)
		}
	}
	wr.Opcode, wr.CompareAdd, wr.Swap = verbs.AtomicCmpAndSwp, before+15, 99
	for i := range 2 { // the second does not find the value
		if s := p.do(&wr); s != verbs.WCSuccess || word() != 99 {
			p.t.Fatalf("%v, COMPARE_AND_SWAP %d: %d", s, i, word())
		}
	}
}

// TestBackend does every operation between backends, of lengths around a packet and a chunk of
// staging memory.
func TestBackend(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		const most = 300_000
		random := rand.New(rand.NewPCG(3, 4))
		p := connectBacks(t, a, b, newStore(3*most).slow(random), newStore(2*most), transport)
		for _, n := range []int{1, 8, 1023, 4097, 128 << 10, most} {
			p.exchange(n)
		}
		p.atomics()
	})
}

// TestBackendMixed has requests of backends and of ordinary memory in one queue, with lists of
// both. They are executed in order.
func TestBackendMixed(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		p := connectBacks(t, a, b, newStore(4096).slow(rand.New(rand.NewPCG(5, 6))), newStore(4096), transport)
		plain := a.reg(bytes.Repeat([]byte{'p'}, 64), everyAccess)
		copy(p.sa.b, bytes.Repeat([]byte{'b'}, 64))
		lists := [][]verbs.SGE{{plain.SGE(0, 4)}, {p.ma.SGE(0, 4)}, {plain.SGE(0, 2), p.ma.SGE(0, 2)}, {plain.SGE(0, 4)}}
		want := []string{"pppp", "bbbb", "ppbb", "pppp"}
		for round := range 20 {
			for i := range lists {
				ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{p.mb.SGE(4*i, 4)}}))
			}
			for i, list := range lists {
				wr := &verbs.SendWR{WRID: uint64(i), Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: list}
				if i == 3 {
					wr.Flags |= verbs.SendInline
				}
				ok(t, p.qa.QP().PostSend(wr))
			}
			for i := range lists {
				if wc := poll(t, p.qb.QP().RecvCQ()); wc.WRID != uint64(i) || wc.Status != verbs.WCSuccess {
					t.Fatalf("round %d, receive %d: %+v", round, i, wc)
				}
				if got := string(p.sb.part(4*i, 4)); got != want[i] {
					t.Fatalf("round %d, message %d is %q", round, i, got)
				}
				if wc := poll(t, p.qa.QP().SendCQ()); wc.WRID != uint64(i) || wc.Status != verbs.WCSuccess {
					t.Fatalf("round %d, send %d: %+v", round, i, wc)
				}
			}
		}
	})
}

// TestBackendRules checks that keys, rights, ranges, windows and reregistration are those of any
// region.
func TestBackendRules(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		for _, c := range []struct {
			name   string
			access verbs.Access
			change func(p *backs, wr *verbs.SendWR)
			want   verbs.WCStatus
		}{
			{"zero-based", everyAccess | verbs.AccessZeroBased, func(p *backs, wr *verbs.SendWR) { wr.RemoteAddr = 8 }, verbs.WCSuccess},
			{"another key", everyAccess, func(_ *backs, wr *verbs.SendWR) { wr.RKey ^= 1 << 20 }, verbs.WCRemAccessErr},
			{"no right", verbs.AccessLocalWrite, func(*backs, *verbs.SendWR) {}, verbs.WCRemAccessErr},
			{"beyond the end", everyAccess, func(_ *backs, wr *verbs.SendWR) { wr.RemoteAddr += 4090 }, verbs.WCRemAccessErr},
			{"before the start", everyAccess, func(_ *backs, wr *verbs.SendWR) { wr.RemoteAddr-- }, verbs.WCRemAccessErr},
			{"local beyond the end", everyAccess, func(_ *backs, wr *verbs.SendWR) { wr.SGList[0].Addr += 4090 }, verbs.WCLocProtErr},
			{"right taken away", everyAccess, func(p *backs, _ *verbs.SendWR) {
				ok(p.t, p.mb.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
			}, verbs.WCRemAccessErr},
			{"through a window", everyAccess | verbs.AccessMWBind, func(p *backs, wr *verbs.SendWR) {
				mw := must(p.b.pd.AllocMW(verbs.MWType2))(p.t)
				p.t.Cleanup(func() { mw.Close() })
				bind := &verbs.MWBind{MW: mw, RKey: 1, MWBindInfo: verbs.MWBindInfo{MR: p.mb, Addr: p.mb.Addr(), Length: 16,
					Access: verbs.AccessRemoteRead}}
				ok(p.t, p.qb.QP().PostSend(&verbs.SendWR{Opcode: verbs.BindMW, Flags: verbs.SendSignaled, Bind: bind}))
				if wc := poll(p.t, p.qb.QP().SendCQ()); wc.Status != verbs.WCSuccess {
					p.t.Fatal(wc.Status)
				}
				wr.RKey = mw.RKey()
			}, verbs.WCSuccess},
		} {
			t.Run(c.name, func(t *testing.T) {
				a, b := onPipe(t)
				p := &backs{t: t, a: a, b: b, sa: newStore(4096), sb: newStore(4096)}
				p.ma, p.mb = a.back(p.sa, everyAccess), b.back(p.sb, c.access)
				p.qa, p.qb = dial(a, b, transport, nil)
				wr := &verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{p.ma.SGE(0, 16)}, RemoteAddr: p.mb.Addr(), RKey: p.mb.RKey()}
				c.change(p, wr)
				if got := p.do(wr); got != c.want {
					t.Errorf("status %v, want %v", got, c.want)
				}
			})
		}
	})
}

// TestBackendInline: inline data is copied when it is posted, which a backend cannot do.
func TestBackendInline(t *testing.T) {
	lan := new(pipe.Switch)
	p := connectBacks(t, newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24"), newStore(64), newStore(64), verbs.RoCEv2)
	err := p.qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{p.ma.SGE(0, 8)}})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	for _, attr := range []verbs.MRInitAttr{{Backend: p.sa}, {Backend: p.sa, BackendLength: 8, Buf: make([]byte, 8)}} {
		if _, err := p.a.pd.RegMREx(&attr); !errors.Is(err, verbs.ErrInvalid) {
			t.Error(err)
		}
	}
}

// TestBackendFails: an error of a backend becomes the completion that memory without a page has.
func TestBackendFails(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		overPipe(t, func(t *testing.T, stations func(t *testing.T) (a, b *station)) { backendFails(t, transport, stations) })
	})
}

func backendFails(t *testing.T, transport verbs.Transport, stations func(t *testing.T) (a, b *station)) {
	fails := func(bad bool) func(write bool, off int64, n int) (int, error) {
		return func(write bool, off int64, n int) (int, error) {
			if write == bad {
				return n / 2, nil // an incomplete copy
			}
			return n, nil
		}
	}
	onPeer, onWire := verbs.WCRemOpErr, verbs.WCRemOpErr
	if transport == verbs.IWARP { // a WRITE or SEND is complete when TCP has it
		onWire = verbs.WCSuccess
	}
	for _, c := range []struct {
		name    string
		op      verbs.WROpcode
		of      func(p *backs) *store
		writing bool
		send    verbs.WCStatus
		recv    verbs.WCStatus // of b's receive request; WCSuccess: b's QP does not fail
	}{
		{"source of a SEND", verbs.Send, func(p *backs) *store { return p.sa }, false, verbs.WCLocProtErr, verbs.WCSuccess},
		{"sink of a SEND", verbs.Send, func(p *backs) *store { return p.sb }, true, onWire, verbs.WCLocProtErr},
		{"source of a WRITE", verbs.RDMAWrite, func(p *backs) *store { return p.sa }, false, verbs.WCLocProtErr, verbs.WCSuccess},
		{"sink of a WRITE", verbs.RDMAWrite, func(p *backs) *store { return p.sb }, true, onWire, verbs.WCWRFlushErr},
		{"source of a READ", verbs.RDMARead, func(p *backs) *store { return p.sb }, false, onPeer, verbs.WCWRFlushErr},
		{"sink of a READ", verbs.RDMARead, func(p *backs) *store { return p.sa }, true, verbs.WCLocProtErr, verbs.WCSuccess},
		{"word of an atomic", verbs.AtomicFetchAndAdd, func(p *backs) *store { return p.sb }, false, onPeer, verbs.WCWRFlushErr},
		{"result of an atomic", verbs.AtomicFetchAndAdd, func(p *backs) *store { return p.sa }, true, verbs.WCLocProtErr, verbs.WCSuccess},
	} {
		for _, n := range []int{8, 20_000} {
			if n > 8 && c.op == verbs.AtomicFetchAndAdd {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				a, b := stations(t)
				p := connectBacks(t, a, b, newStore(1<<16), newStore(1<<16), transport)
				c.of(p).before = fails(c.writing)
				ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{p.mb.SGE(0, n)}}))
				wr := &verbs.SendWR{Opcode: c.op, SGList: []verbs.SGE{p.ma.SGE(0, n)}, RemoteAddr: p.mb.Addr(), RKey: p.mb.RKey()}
				if got := p.do(wr); got != c.send {
					t.Errorf("%d bytes: status %v, want %v", n, got, c.send)
				}
				if c.recv == verbs.WCSuccess {
					return
				}
				if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status != c.recv {
					t.Errorf("%d bytes: receive request %v, want %v", n, wc.Status, c.recv)
				}
			})
		}
	}
}

// TestBackendWaits: while a backend copies, no lock is held, and nothing is complete or
// acknowledged.
func TestBackendWaits(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		p := connectBacks(t, a, b, newStore(4096), newStore(4096), transport)
		entered, release := make(chan struct{}), make(chan struct{})
		p.sb.before = func(_ bool, _ int64, n int) (int, error) {
			entered <- struct{}{}
			<-release
			return n, nil
		}
		ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{p.mb.SGE(0, 8)}}))
		ok(t, p.qa.QP().PostSend(&verbs.SendWR{WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.ma.SGE(0, 8)}}))
		<-entered
		settle(t, p.qb.QP()) // takes the lock
		// Another connection of the same devices works meanwhile.
		plain := b.reg(make([]byte, 64), everyAccess)
		qa, _ := dial(a, b, transport, nil)
		ok(t, qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.ma.SGE(8, 8)},
			RemoteAddr: plain.Addr(), RKey: plain.RKey()}))
		if wc := poll(t, qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
			t.Error(wc.Status)
		}
		var wc [1]verbs.WC
		if n := must(p.qb.QP().RecvCQ().Poll(wc[:]))(t); n > 0 {
			t.Errorf("a completion before the bytes are there: %+v", wc[0])
		}
		if n := must(p.qa.QP().SendCQ().Poll(wc[:]))(t); n > 0 && transport != verbs.IWARP {
			t.Errorf("an acknowledgement before the bytes are there: %+v", wc[0])
		}
		close(release)
		if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status != verbs.WCSuccess {
			t.Error(wc.Status)
		}
	})
}

// TestBackendClosed closes a region, a QP, or resets it, while transfers run. No copy runs after
// Close of the region.
func TestBackendClosed(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		for name, end := range map[string]func(p *backs){
			"target":     func(p *backs) { ok(t, p.mb.Close()); p.sb.free() },
			"source":     func(p *backs) { ok(t, p.ma.Close()); p.sa.free() },
			"passive QP": func(p *backs) { p.qb.Close(); ok(t, p.mb.Close()); p.sb.free() },
			"active QP":  func(p *backs) { p.qa.Close(); ok(t, p.ma.Close()); p.sa.free() },
			"error": func(p *backs) {
				_ = p.qa.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
				ok(t, p.ma.Close())
				p.sa.free()
			},
		} {
			t.Run(name, func(t *testing.T) {
				a, b := m.stations(t, nil)
				random := rand.New(rand.NewPCG(7, 8))
				p := connectBacks(t, a, b, newStore(1<<18).slow(random), newStore(1<<18).slow(rand.New(rand.NewPCG(9, 9))), transport)
				for i := range 24 {
					op := []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead}[i%2]
					ok(t, p.qa.QP().PostSend(&verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.ma.SGE(0, 1<<16)},
						RemoteAddr: p.mb.Addr(), RKey: p.mb.RKey()}))
				}
				if wc := poll(t, p.qa.QP().SendCQ()); wc.Status != verbs.WCSuccess {
					t.Error(wc.Status)
				}
				end(p)
			})
		}
	})
}

func (s *store) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// TestBackendLossy does every operation over a network that loses, repeats and reorders packets.
func TestBackendLossy(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		t.Parallel()
		lan := new(pipe.Switch)
		bad := func(l link.Link) link.Link {
			d := impair.Direction{Loss: 0.01, Duplicate: 0.01, Reorder: 0.02, Hold: time.Millisecond}
			return must(impair.New(l, &impair.Config{Seed: 1, Out: d}))(t)
		}
		a, b := newStationOn(t, bad(lan.Port()), "10.0.0.1/24", nil), newStationOn(t, bad(lan.Port()), "10.0.0.2/24", nil)
		p := connectBacks(t, a, b, newStore(1<<20).slow(rand.New(rand.NewPCG(1, 1))),
			newStore(1<<20).slow(rand.New(rand.NewPCG(2, 2))), transport)
		for _, n := range []int{8, 5000, 100_000} {
			p.exchange(n)
			p.atomics()
		}
	})
}

// FuzzBackend has backends that a script makes slow, incomplete or wrong. Every request completes,
// and one that completes with success has moved its bytes.
func FuzzBackend(f *testing.F) {
	for _, packets := range []bool{false, true} {
		f.Add([]byte{0, 0, 0, 0, 1, 2, 3}, false, packets)
		f.Add([]byte{9, 9, 9, 200, 0, 0, 0, 0, 255, 1}, true, packets)
		f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 250}, false, packets)
		f.Add([]byte{0, 0, 245}, false, packets)
		f.Add([]byte{255}, false, packets) // the data of the first request
		f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 245}, true, packets)
	}
	f.Fuzz(func(t *testing.T, script []byte, iwarp, packets bool) {
		transport := verbs.RoCEv2
		if iwarp {
			transport = verbs.IWARP
		}
		stations := onPipe
		if packets {
			stations = inPackets
		}
		var mu sync.Mutex
		var theirs atomic.Bool // memory of the peer has failed
		before := func(isTheirs bool) func(_ bool, _ int64, n int) (int, error) {
			return func(_ bool, _ int64, n int) (int, error) {
				mu.Lock()
				var act byte
				if len(script) > 0 {
					act, script = script[0], script[1:]
				}
				mu.Unlock()
				if act >= 240 && isTheirs {
					theirs.Store(true)
				}
				switch {
				case act >= 250:
					return 0, errors.New("on demand")
				case act >= 240:
					return n - 1, nil
				}
				for range act {
					runtime.Gosched()
				}
				return n, nil
			}
		}
		sa, sb := newStore(64<<10), newStore(64<<10)
		a, b := stations(t)
		p := connectBacks(t, a, b, sa, sb, transport)
		want := sa.fill(0, 8192, p.random)
		sa.before, sb.before = before(false), before(true)
		ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{p.mb.SGE(0, 8192)}}))
		list := func(off, n int) []verbs.SGE { return []verbs.SGE{p.ma.SGE(off, n)} }
		at := func(off int) uint64 { return p.mb.Addr() + uint64(off) }
		requests := []*verbs.SendWR{
			{WRID: 0, Opcode: verbs.RDMAWrite, SGList: list(0, 8192), RemoteAddr: at(8192), RKey: p.mb.RKey()},
			{WRID: 1, Opcode: verbs.RDMARead, SGList: list(8192, 8192), RemoteAddr: at(8192), RKey: p.mb.RKey()},
			{WRID: 2, Opcode: verbs.AtomicFetchAndAdd, SGList: list(32<<10, 8), RemoteAddr: at(32 << 10), RKey: p.mb.RKey(), CompareAdd: 3},
			{WRID: 3, Opcode: verbs.Send, SGList: list(0, 8192)},
		}
		for _, wr := range requests {
			wr.Flags = verbs.SendSignaled
			if err := p.qa.QP().PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		failed := false
		for i := range requests {
			wc := poll(t, p.qa.QP().SendCQ())
			if wc.WRID != uint64(i) || failed && wc.Status == verbs.WCSuccess {
				t.Fatalf("request %d, after a failure %v: %+v", i, failed, wc)
			}
			failed = failed || wc.Status != verbs.WCSuccess
			if i == 1 && wc.Status == verbs.WCSuccess {
				p.same("READ", sa.part(8192, 8192), want)
			}
		}
		if failed && !theirs.Load() { // a failure of this side's own memory is not told to the peer
			_ = p.qb.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
		}
		if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status == verbs.WCSuccess {
			p.same("SEND", sb.part(0, 8192), want)
		} else if !failed && transport == verbs.RoCEv2 {
			t.Fatalf("the SEND has succeeded, and its receive request is %+v", wc)
		}
	})
}

// TestBackendScattered: a peer that writes single bytes far from each other, faster than the
// backend takes them, makes this side hold little memory.
func TestBackendScattered(t *testing.T) {
	a, b := onPipe(t)
	release := make(chan struct{})
	sb := newStore(1 << 20)
	sb.before = func(_ bool, _ int64, n int) (int, error) {
		<-release
		return n, nil
	}
	p := connectBacks(t, a, b, newStore(1), sb, verbs.IWARP)
	const writes = 1000
	before := heap()
	for i := range writes {
		ok(t, p.qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: []byte{1},
			RemoteAddr: p.mb.Addr() + uint64(2*i), RKey: p.mb.RKey()}))
		poll(t, p.qa.QP().SendCQ())
	}
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("%d writes of a byte hold %d MiB", writes, grown>>20)
	}
	close(release)
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
