//go:build linux

package framed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/framed"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// openNode opens a device on a loopback address, over a link that loses and corrupts packets.
func openNode(t *testing.T, addr string, bad impair.Config, strict bool) (*verbs.Device, *impair.Link) {
	t.Helper()
	sockets := must(kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{addr}}))(t)
	var l *impair.Link
	host := must(framed.New(sockets, func(m link.Link) (_ link.Link, err error) {
		l, err = impair.New(m, &bad)
		return l, err
	}, framed.SingleDatagramFrames()))(t)
	dev := must(rdmatransport.Open(host, &rdmatransport.Config{RoCE: roce.Config{StrictICRC: strict}}))(t)
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), host.Close()); err != nil {
			t.Error(err)
		}
	})
	return dev, l
}

// side is one end of the connection.
type side struct {
	*rdmacm.Conn
	t   *testing.T
	mr  *verbs.MR
	buf []byte
}

func (s *side) wait(cq *verbs.CQ) verbs.WC {
	s.t.Helper()
	var wc [1]verbs.WC
	for give := time.Now().Add(30 * time.Second); ; {
		n, err := cq.Poll(wc[:])
		switch {
		case err != nil:
			s.t.Fatal(err)
		case n == 1 && wc[0].Status != verbs.WCSuccess:
			s.t.Fatalf("completion: %v", wc[0].Status)
		case n == 1:
			return wc[0]
		case time.Now().After(give):
			s.t.Fatal("no completion")
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// pass takes the lock under which peers access the memory. The race detector does not know that
// packets order accesses.
func (s *side) pass() { _ = s.QP().State() }

// TestFaults checks that every operation of a reliable connection is executed once and in order.
// Packets are lost, duplicated, corrupted and reordered at random from a seed.
func TestFaults(t *testing.T) {
	way := impair.Direction{Loss: 0.02, Duplicate: 0.02, Corrupt: 0.02, Reorder: 0.02}
	slow := way
	slow.Delay, slow.Jitter = 300*time.Microsecond, 200*time.Microsecond
	bursts := impair.Direction{Burst: impair.Burst{Enter: 0.005, Leave: 0.5}}
	for seed, c := range []struct {
		name    string
		in, out impair.Direction
		strict  bool
	}{
		{"sent packets", impair.Direction{}, way, false},
		{"received packets", way, impair.Direction{}, false},
		{"both, strict ICRC", way, way, true},
		{"both, with delay", slow, slow, false},
		{"bursts", bursts, bursts, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own, other := fmt.Sprintf("127.16.%d.1", seed), fmt.Sprintf("127.16.%d.2", seed)
			a, l := openNode(t, own, impair.Config{Seed: uint64(seed + 1), In: c.in, Out: c.out}, c.strict)
			b, _ := openNode(t, other, impair.Config{Seed: uint64(seed + 100)}, c.strict)
			faults(t, a, b, other, uint64(seed))
			in, out := l.Counters()
			t.Logf("in %+v, out %+v", in, out)
			if in.Packets < 50 || out.Packets < 50 || in.Lost+out.Lost == 0 {
				t.Error("the link has impaired no packet")
			}
			noticed := must(a.HWCounters())(t)["icrc_errors"] + must(b.HWCounters())(t)["icrc_errors"]
			// A packet may be sent twice.
			if flips := in.Corrupted + out.Corrupted; flips > 0 && noticed == 0 || noticed > 2*flips {
				t.Errorf("%d bits were flipped, %d wrong ICRCs were counted", flips, noticed)
			}
		})
	}
}

func faults(t *testing.T, a, b *verbs.Device, other string, seed uint64) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cfg := &rdmacm.Config{Transport: verbs.RoCEv2, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}}
	l := must(rdmacm.Listen(b, ":0", cfg))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	onA := must(rdmacm.Dial(ctx, a, netip.AddrPortFrom(netip.MustParseAddr(other), l.Addr().Port()).String(), cfg))(t)
	const size = 100_000
	var ends [2]*side
	for i, c := range []*rdmacm.Conn{onA, <-accepted} {
		if c == nil {
			t.FailNow()
		}
		s := &side{Conn: c, t: t, buf: make([]byte, size)}
		s.mr = must(c.PD().RegMR(s.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))(t)
		ends[i] = s
	}
	x, y := ends[0], ends[1]
	defer func() {
		for _, s := range ends {
			if err := errors.Join(s.mr.Close(), s.Conn.Close()); err != nil {
				t.Error(err)
			}
		}
	}()
	rnd := rand.New(rand.NewPCG(seed, 0))
	rounds := 12
	if os.Getenv("SOFTRNIC_SYSTEM") != "" {
		rounds = 60
	}
	for round := range rounds {
		n := 8 + rnd.IntN(size-8)
		for i := range x.buf[:n] {
			x.buf[i] = byte(rnd.Uint32())
		}
		want := bytes.Clone(x.buf[:n])
		post := func(wr verbs.SendWR) {
			t.Helper()
			wr.Flags |= verbs.SendSignaled
			wr.RemoteAddr, wr.RKey = y.mr.Addr(), y.mr.RKey()
			y.pass()
			if err := x.QP().PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			x.wait(x.SendCQ())
			y.pass()
		}
		what := fmt.Sprintf("round %d, %d bytes", round, n)
		switch round % 3 {
		case 0:
			if err := y.QP().PostRecv(&verbs.RecvWR{WRID: uint64(round), SGList: []verbs.SGE{y.mr.SGE(0, size)}}); err != nil {
				t.Fatal(err)
			}
			post(verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{x.mr.SGE(0, n)}})
			if wc := y.wait(y.RecvCQ()); wc.WRID != uint64(round) || int(wc.ByteLen) != n {
				t.Errorf("%s: receive %d completes with %d bytes", what, wc.WRID, wc.ByteLen)
			}
		case 1:
			post(verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{x.mr.SGE(0, n)}})
		case 2:
			post(verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{x.mr.SGE(0, n)}})
			clear(x.buf)
			x.pass()
			post(verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{x.mr.SGE(0, n)}})
			x.pass()
			if !bytes.Equal(x.buf[:n], want) {
				t.Fatalf("%s: the data read differs", what)
			}
		}
		if !bytes.Equal(y.buf[:n], want) {
			t.Fatalf("%s: the peer's memory differs", what)
		}
		// A counter detects operations that are executed twice. Only the peer writes to its
		// memory, as a retransmitted READ reads it at any time.
		clear(x.buf[:8])
		post(verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{x.mr.SGE(0, 8)}})
		for range 10 {
			post(verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, SGList: []verbs.SGE{x.mr.SGE(0, 8)}, CompareAdd: 1})
		}
		if v := uint64(y.buf[0]); v != 10 {
			t.Fatalf("%s: ten additions make %d", what, v)
		}
	}
	var wc [1]verbs.WC
	if n := must(y.RecvCQ().Poll(wc[:]))(t); n != 0 {
		t.Errorf("one more receive completes: %+v", wc[0])
	}
}
