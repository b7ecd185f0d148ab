package rdmatransport_test

import (
	"errors"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// countersOf attaches a completion counter for each operation to the QP of a new connection.
func countersOf(t *testing.T, s *station, kind verbs.CompCntrType, to map[verbs.CompCntrOps]*verbs.CompCntr) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) error {
		for op := verbs.CompCntrSend; op <= verbs.CompCntrRemoteWrite; op <<= 1 {
			cntr, err := s.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Type: kind})
			if err != nil {
				return err
			}
			to[op] = cntr
			if err := c.QP().AttachCompCntr(cntr, op); err != nil {
				return err
			}
		}
		return nil
	}
}

// counts waits until the counters have values.
func counts(t *testing.T, what string, of map[verbs.CompCntrOps]*verbs.CompCntr, want, errs map[verbs.CompCntrOps]uint64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		var wrong bool
		for op, c := range of {
			wrong = wrong || c.Count() != want[op] || c.ErrCount() != errs[op]
		}
		if !wrong {
			return
		}
		if time.Now().After(end) {
			for op, c := range of {
				t.Errorf("%s, %v: %d and %d errors, want %d and %d", what, op, c.Count(), c.ErrCount(), want[op], errs[op])
			}
			return
		}
	}
}

// TestCompletionCounters: the counters of both ends count each operation once, in requests or in
// bytes, also if it has no completion. Atomics are not counted.
func TestCompletionCounters(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		for _, kind := range []verbs.CompCntrType{verbs.CompCntrWRs, verbs.CompCntrBytes} {
			t.Run(kind.String(), func(t *testing.T) { completionCounters(t, m, transport, kind) })
		}
	})
}

func completionCounters(t *testing.T, m medium, transport verbs.Transport, kind verbs.CompCntrType) {
	const sends, writes, reads, size, long = 3, 2, 2, 100, 50_000
	a, b := m.stations(t, nil)
	am, bm := a.reg(make([]byte, long), everyAccess), b.reg(make([]byte, long), everyAccess)
	onA, onB := make(map[verbs.CompCntrOps]*verbs.CompCntr), make(map[verbs.CompCntrOps]*verbs.CompCntr)
	l := must(rdmacm.Listen(b.dev, ":0", &rdmacm.Config{Transport: transport, PD: b.pd, Prepare: countersOf(t, b, kind, onB)}))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	ca := must(rdmacm.Dial(t.Context(), a.dev, b.at(l.Addr().Port()), &rdmacm.Config{Transport: transport, PD: a.pd,
		Prepare: countersOf(t, a, kind, onA)}))(t)
	cb := <-accepted
	qa, qb := ca.QP(), cb.QP()
	counts(t, "a new connection", onB, nil, nil) // its set-up does not count

	for range sends + 2 {
		ok(t, qb.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{bm.SGE(0, size)}}))
	}
	remote := func(op verbs.WROpcode, n int) *verbs.SendWR {
		return &verbs.SendWR{Opcode: op, SGList: []verbs.SGE{am.SGE(0, n)}, RemoteAddr: bm.Addr(), RKey: bm.RKey()}
	}
	for range sends {
		ok(t, qa.PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{am.SGE(0, size)}}))
	}
	for range writes {
		ok(t, qa.PostSend(remote(verbs.RDMAWrite, long)))
	}
	ok(t, qa.PostSend(remote(verbs.RDMAWriteWithImm, size)))
	ok(t, qa.PostSend(remote(verbs.AtomicFetchAndAdd, 8)))
	for i := range reads {
		wr := remote(verbs.RDMARead, 3*size)
		if i == reads-1 {
			wr.Flags = verbs.SendSignaled
		}
		ok(t, qa.PostSend(wr))
	}
	if wc := poll(t, qa.SendCQ()); wc.Status != verbs.WCSuccess {
		t.Fatalf("%+v", wc)
	}
	wantA := map[verbs.CompCntrOps]uint64{verbs.CompCntrSend: sends, verbs.CompCntrWrite: writes + 1, verbs.CompCntrRead: reads}
	wantB := map[verbs.CompCntrOps]uint64{verbs.CompCntrRecv: sends + 1, verbs.CompCntrRemoteWrite: writes + 1,
		verbs.CompCntrRemoteRead: reads}
	if kind == verbs.CompCntrBytes {
		wantA = map[verbs.CompCntrOps]uint64{verbs.CompCntrSend: sends * size, verbs.CompCntrWrite: writes*long + size,
			verbs.CompCntrRead: reads * 3 * size}
		wantB = map[verbs.CompCntrOps]uint64{verbs.CompCntrRecv: (sends + 1) * size, verbs.CompCntrRemoteWrite: writes*long + size,
			verbs.CompCntrRemoteRead: reads * 3 * size}
	}
	counts(t, "the requester", onA, wantA, nil)
	counts(t, "the responder", onB, wantB, nil)

	// A WRITE without access fails, and all other requests are flushed. Over iWARP, requests succeed
	// when they are sent.
	wr := remote(verbs.RDMAWrite, 8)
	wr.RKey ^= 1 << 20
	ok(t, qa.PostSend(wr, &verbs.SendWR{Opcode: verbs.Send}, &verbs.SendWR{Opcode: verbs.Send}))
	if transport == verbs.RoCEv2 {
		counts(t, "the requester", onA, wantA, map[verbs.CompCntrOps]uint64{verbs.CompCntrWrite: 1, verbs.CompCntrSend: 2})
	}
	counts(t, "the responder", onB, wantB, map[verbs.CompCntrOps]uint64{verbs.CompCntrRemoteWrite: 1, verbs.CompCntrRecv: 1})

	for _, c := range onA {
		if err := c.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close of an attached counter: %v", err)
		}
	}
	ok(t, ca.Close())
	ok(t, cb.Close())
	for _, of := range []map[verbs.CompCntrOps]*verbs.CompCntr{onA, onB} {
		for op, c := range of {
			if err := c.Close(); err != nil {
				t.Errorf("%v: %v", op, err)
			}
		}
	}
}
