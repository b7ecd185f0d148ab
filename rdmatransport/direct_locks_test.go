package rdmatransport_test

import (
	"bytes"
	"runtime"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// Messages are copied directly with the locks of both QPs held. A goroutine that waits for one of
// these locks must not wait until all messages are copied.

// batchLen messages of longMessage bytes are posted together. The locks are taken again for each.
const batchLen, longMessage = 24, 1 << 20

// batch returns WRITEs of longMessage bytes, numbered from first on.
func (e *end) batch(to *end, first uint64) (wrs []*verbs.SendWR) {
	for i := range uint64(batchLen) {
		wrs = append(wrs, &verbs.SendWR{WRID: first + i, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{e.mr.SGE(0, longMessage)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()})
	}
	return wrs
}

// postBatch posts a batch. Once PostSend waits for the peer's lock, another goroutine waits for
// that lock too and then calls f. postBatch returns when f has returned. wait returns when PostSend
// has returned.
func (e *end) postBatch(t *testing.T, to *end, f func() error) (wait func()) {
	t.Helper()
	var posting, calling sync.WaitGroup
	lock := to.handles.of(to.QP())
	for contended := true; contended; { // an iWARP stream may still have bytes of its set-up to read
		lock.Lock()
		for range 1000 {
			runtime.Gosched()
		}
		if contended = lock.Contended(); contended {
			lock.Unlock()
		}
	}
	posting.Go(func() {
		if err := e.QP().PostSend(e.batch(to, 0)...); err != nil {
			t.Error(err)
		}
	})
	for !lock.Contended() {
		runtime.Gosched()
	}
	calling.Go(func() {
		lock.Lock()
		//lint:ignore SA2001 it is enough to have had the lock after the sender
		lock.Unlock()
		if err := f(); err != nil {
			t.Error(err)
		}
	})
	for range 100 {
		runtime.Gosched()
	}
	lock.Unlock()
	calling.Wait()
	return posting.Wait
}

// completed returns the number of completions. All must be successful.
func (e *end) completed(t *testing.T) int {
	t.Helper()
	n := 0
	for k := -1; k != 0; n += k {
		k = e.poll(t)
		for _, wc := range e.wcs[:k] {
			if wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
		}
	}
	return n
}

// TestDirectPassiveCalls checks that no call on the passive side waits until all messages that the
// other side has posted are copied.
func TestDirectPassiveCalls(t *testing.T) {
	over(t, ways[1:], func(t *testing.T, s setting) {
		e := &newEnds(t, s, longMessage).side
		a, b := &e[0], &e[1]
		other, err := b.mr.PD().RegMR(make([]byte, 64), 0)
		if err != nil {
			t.Fatal(err)
		}
		calls := map[string]func() error{
			"QP.State": func() error { b.QP().State(); return nil },
			"QP.Query": func() error { _, _, err := b.QP().Query(); return err },
			"QP.Modify": func() error {
				return b.QP().Modify(&verbs.QPAttr{QPAccessFlags: verbs.AccessRemoteWrite}, verbs.QPAttrAccessFlags)
			},
			"QP.PostRecv": func() error { return b.QP().PostRecv(&verbs.RecvWR{}) },
			"CQ.Poll":     func() error { _, err := b.cq.Poll(b.wcs[:]); return err },
			"MR.Rereg":    func() error { return other.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite) },
			"HWCounters":  func() error { _, err := b.HWCounters(); return err },
			"MW.Close": func() error {
				mw, err := b.mr.PD().AllocMW(verbs.MWType2)
				if err != nil {
					return err
				}
				return mw.Close()
			},
			"RegMR and Close": func() error {
				mr, err := b.mr.PD().RegMR(make([]byte, 64), 0)
				if err != nil {
					return err
				}
				return mr.Close()
			},
		}
		for name, call := range calls {
			n := batchLen
			// The call may come before the messages, or too late.
			for try := 0; try < 20 && n == batchLen; try++ {
				n = 0
				wait := a.postBatch(t, b, func() error {
					err := call()
					n = a.completed(t)
					return err
				})
				k := n
				for wait(); k < batchLen; k += a.take(t) {
				}
			}
			if n == batchLen {
				t.Errorf("%s waits for all posted messages", name)
			}
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if b.direct(t)+a.direct(t) < batchLen*uint64(len(calls)) {
			t.Error("the messages went in packets")
		}
	})
}

// TestDirectPassiveClose checks that a passive QP can be closed before all messages that the
// other side has posted are copied.
func TestDirectPassiveClose(t *testing.T) {
	over(t, ways[1:2], func(t *testing.T, s setting) {
		s.lan = new(pipe.Switch)
		n := batchLen
		for try := 0; try < 20 && n == batchLen; try++ {
			pair := newEnds(t, s, longMessage)
			s.devs = pair.devs
			a, b := &pair.side[0], &pair.side[1]
			wait := a.postBatch(t, b, func() error {
				err := b.QP().Close()
				n = a.completed(t)
				return err
			})
			wait()
			ok(t, a.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
		}
		if n == batchLen {
			t.Error("Close waits for all posted messages")
		}
	})
}

// TestDirectOtherPosters checks that a goroutine that posts while another's messages are copied
// does not wait for them. The other's PostSend returns when its own messages are copied. All
// complete in the order in which they were posted.
func TestDirectOtherPosters(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) {
			e := &newEnds(t, setting{transport: transport, devices: 2}, longMessage).side
			a, b := &e[0], &e[1]
			var posted, returned bool
			for try := 0; try < 20 && !(posted && returned); try++ {
				next := uint64(0)
				take := func() {
					for k := -1; k != 0; {
						k = a.poll(t)
						for _, wc := range a.wcs[:k] {
							if wc.Status != verbs.WCSuccess || wc.WRID != next {
								t.Fatalf("%+v, want WR %d", wc, next)
							}
							next++
						}
					}
				}
				wait := a.postBatch(t, b, func() error {
					err := a.QP().PostSend(a.batch(b, batchLen)...)
					take()
					return err
				})
				posted = posted || next < batchLen
				wait()
				take()
				returned = returned || next < 2*batchLen
				for next < 2*batchLen {
					take()
					runtime.Gosched()
				}
			}
			if !posted {
				t.Error("PostSend waits for earlier messages of another goroutine")
			}
			if !returned {
				t.Error("PostSend continues with messages of other goroutines")
			}
		})
	}
}

// TestDirectDoesNotBlockReceiver checks the goroutine that receives the last packet before a long
// queue can be copied directly. It does not copy the whole queue, because its port or connection
// would receive nothing meanwhile.
func TestDirectDoesNotBlockReceiver(t *testing.T) {
	twoAtOnce(t)
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) {
			const longMessage = 4 << 20
			e := &newEnds(t, setting{transport: transport, devices: 2}, longMessage).side
			a, b := &e[0], &e[1]
			fileOf := func(e *end) *verbs.MR {
				mr, err := e.mr.PD().RegMREx(&verbs.MRInitAttr{Buf: make([]byte, 64), Access: iwarpAccess, Mapped: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { mr.Close() })
				return mr
			}
			// An atomic whose result is in memory that may fault is sent in packets.
			onA, onB := fileOf(a), fileOf(b)
			var wrs []*verbs.SendWR
			for i := range batchLen {
				wr := &verbs.SendWR{WRID: uint64(i), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{a.mr.SGE(0, longMessage)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
				if i == 0 {
					wr.Opcode, wr.SGList[0], wr.RemoteAddr, wr.RKey = verbs.AtomicFetchAndAdd, onA.SGE(0, 8), b.mr.Addr(), b.mr.RKey()
				}
				wrs = append(wrs, wr)
			}
			in := false
			for try := 0; try < 100 && !in; try++ { // other goroutines may have the processors
				if err := a.QP().PostSend(wrs...); err != nil {
					t.Fatal(err)
				}
				n := 0
				for n < 2 { // the second is one of those that waited for the first
					n += a.take(t)
				}
				if n < batchLen {
					b.post(t, &verbs.SendWR{WRID: 100, Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendSignaled,
						SGList: []verbs.SGE{onB.SGE(0, 8)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey()})
					if wc := b.next(t); wc.WRID != 100 || wc.Status != verbs.WCSuccess {
						t.Fatalf("%+v", wc)
					}
					n += a.completed(t)
				}
				in = n < batchLen
				for n < batchLen {
					n += a.take(t)
				}
			}
			if !in {
				t.Error("an atomic's packets wait for all posted messages")
			}
		})
	}
}

// TestDirectBothLong copies long messages in both directions at the same time, posted by two
// goroutines on each side.
func TestDirectBothLong(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		const size, count = 5<<19 + 1000, 3
		e := &newEnds(t, s, 6*size).side
		var busy sync.WaitGroup
		for i := range e {
			for j := range count {
				// Sent from the first two parts of an end's memory, received in the next, written
				// to the last.
				if err := e[i].QP().PostRecv(&verbs.RecvWR{WRID: uint64(100 + j),
					SGList: []verbs.SGE{e[i].mr.SGE((2+j%2)*size, size)}}); err != nil {
					t.Fatal(err)
				}
			}
			fillWith(e[i].mr.Buf()[:2*size], byte(i))
		}
		for i := range e {
			for k := range 2 {
				wr := &verbs.SendWR{WRID: uint64(k), Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e[i].mr.SGE(0, size)}}
				if k == 1 {
					wr = &verbs.SendWR{WRID: uint64(k), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
						SGList:     []verbs.SGE{e[i].mr.SGE(size, size)},
						RemoteAddr: e[1-i].mr.Addr() + 4*size, RKey: e[1-i].mr.RKey()}
				}
				busy.Go(func() {
					for range count {
						if err := e[i].QP().PostSend(wr); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		got := map[uint64]int{}
		for i := range e {
			for range 3 * count {
				wc := e[i].next(t)
				if wc.Status != verbs.WCSuccess {
					t.Fatalf("end %d: %+v", i, wc)
				}
				got[wc.WRID]++
			}
		}
		busy.Wait()
		for i := range e {
			mine, theirs := e[i].mr.Buf(), e[1-i].mr.Buf()
			for _, to := range []int{2, 3} {
				if !bytes.Equal(mine[to*size:(to+1)*size], theirs[:size]) {
					t.Errorf("end %d: a SEND has other data", i)
				}
			}
			if s.transport == verbs.RoCEv2 && !bytes.Equal(mine[4*size:5*size], theirs[size:2*size]) {
				t.Errorf("end %d: a WRITE has other data", i)
			}
		}
		if got[0] != 2*count || got[1] != 2*count {
			t.Errorf("completions: %v", got)
		}
	})
}
