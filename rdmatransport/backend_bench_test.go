package rdmatransport_test

import (
	"context"
	"errors"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// mover does one operation again and again, in packets between two nodes.
type mover struct {
	qp, peer *verbs.QP
	wr       verbs.SendWR
	recv     *verbs.RecvWR // what the peer posts, or nil
	wcs      []verbs.WC
}

// newMover creates a mover of n bytes, which are in backends on both sides, or in ordinary memory.
func newMover(t testing.TB, transport verbs.Transport, op verbs.WROpcode, n int, backed bool) *mover {
	lan := new(pipe.Switch)
	on := func(addr string) *station {
		return newStationOn(t, struct{ link.Link }{lan.Port()}, addr, nil) // not link.Shared
	}
	from, to := on("10.0.0.1/24"), on("10.0.0.2/24")
	region := func(s *station) *verbs.MR {
		if backed {
			return s.back(newStore(n), everyAccess)
		}
		return s.reg(make([]byte, n), everyAccess)
	}
	own, remote := region(from), region(to)
	conn, peer := dial(from, to, transport, nil)
	m := &mover{qp: conn.QP(), peer: peer.QP(), wcs: make([]verbs.WC, 1)}
	m.wr = verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{own.SGE(0, n)},
		RemoteAddr: remote.Addr(), RKey: remote.RKey(), CompareAdd: 1, Swap: 2}
	if op == verbs.Send || op == verbs.RDMAWriteWithImm {
		m.recv = &verbs.RecvWR{SGList: []verbs.SGE{remote.SGE(0, n)}}
	}
	return m
}

// move does the operation, and waits for its completions.
func (m *mover) move(ctx context.Context) error {
	if m.recv != nil {
		if err := m.peer.PostRecv(m.recv); err != nil {
			return err
		}
	}
	if err := m.qp.PostSend(&m.wr); err != nil {
		return err
	}
	if err := m.wait(ctx, m.qp.SendCQ()); err != nil || m.recv == nil {
		return err
	}
	return m.wait(ctx, m.peer.RecvCQ())
}

func (m *mover) wait(ctx context.Context, cq *verbs.CQ) error {
	_, err := cq.Wait(ctx, m.wcs)
	if s := m.wcs[0].Status; err == nil && s != verbs.WCSuccess {
		err = errors.New(s.String())
	}
	return err
}

// movers calls f for each protocol and operation, with the number of bytes that it moves.
func movers(f func(name string, transport verbs.Transport, op verbs.WROpcode, n int)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.Send, verbs.RDMARead, verbs.AtomicFetchAndAdd,
			verbs.AtomicCmpAndSwp} {
			n := 64 << 10
			if op == verbs.AtomicFetchAndAdd || op == verbs.AtomicCmpAndSwp {
				n = 8
			}
			f(transport.String()+"/"+op.String(), transport, op, n)
		}
	}
}

// BenchmarkBackend does each operation in packets between two nodes, with ordinary memory and with
// a backend that is a copy away. TestBackendAllocatesNothing guards the allocations.
func BenchmarkBackend(b *testing.B) {
	movers(func(name string, transport verbs.Transport, op verbs.WROpcode, n int) {
		for _, memory := range []string{"ordinary", "backend"} {
			b.Run(name+"/"+memory, func(b *testing.B) {
				m := newMover(b, transport, op, n, memory == "backend")
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if err := m.move(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	})
}

// TestBackendAllocatesNothing: no operation on backends allocates, but iWARP's WRITE.
func TestBackendAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties sync.Pool on purpose")
	}
	movers(func(name string, transport verbs.Transport, op verbs.WROpcode, n int) {
		// An iWARP WRITE completes when TCP has taken it: more and more may wait there, and TCP allocates
		// for that, also with ordinary memory. The WRITE with immediate waits for the peer.
		if transport == verbs.IWARP && op == verbs.RDMAWrite {
			return
		}
		t.Run(name, func(t *testing.T) {
			m := newMover(t, transport, op, n, true)
			move := func() { ok(t, m.move(t.Context())) }
			for range 50 { // pools and queues get their size
				move()
			}
			if n := testing.AllocsPerRun(200, move); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	})
}
