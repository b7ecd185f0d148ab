package rdmatransport_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// TestMemoryModel checks the memory model of package verbs, with -race in the sense of the race
// detector too. A program may read the data of WRITEs that precede an atomic whose new value it has
// loaded with sync/atomic, and of WRITEs that precede a message whose completion it has polled.
func TestMemoryModel(t *testing.T) {
	const size, rounds = 8 << 10, 100
	everyWay(t, func(t *testing.T, s setting) {
		e := &newEnds(t, s, size).side
		a, b := &e[0], &e[1]
		t.Cleanup(func() { ok(t, a.Conn.Close()) })
		flag := (*atomic.Uint64)(unsafe.Pointer(&b.mr.Buf()[0]))
		flag.Store(0)
		base, data := len(a.mr.Buf())/2, b.mr.Buf()[size/2:]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		seen := make(chan byte, 1) // the value of all bytes that the reader has seen, 0 if they differ
		check := func() {
			value := data[0]
			for _, v := range data {
				if v != value {
					value = 0
				}
			}
			select {
			case seen <- value:
			case <-ctx.Done():
			}
		}
		var reader sync.WaitGroup
		defer reader.Wait()
		defer cancel()
		reader.Go(func() {
			for i := range uint64(rounds) {
				for flag.Load() == i && ctx.Err() == nil {
					time.Sleep(time.Microsecond)
				}
				check()
			}
			var wcs [1]verbs.WC
			for range rounds {
				if _, err := b.cq.Wait(ctx, wcs[:]); err != nil || wcs[0].Status != verbs.WCSuccess {
					t.Errorf("receive: %v, %v", wcs[0].Status, err)
				}
				check()
			}
		})
		for range rounds {
			ok(t, b.QP().PostRecv(&verbs.RecvWR{}))
		}
		for i := range 2 * rounds {
			want := byte(1 + i%250)
			for j := range a.mr.Buf()[base:] {
				a.mr.Buf()[base+j] = want
			}
			a.post(t, &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{a.mr.SGE(base, size/2)},
				RemoteAddr: b.mr.Addr() + size/2, RKey: b.mr.RKey()})
			last := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}
			if i < rounds {
				last = &verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 1,
					SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			}
			a.post(t, last)
			if wc := a.next(t); wc.Status != verbs.WCSuccess {
				t.Fatalf("round %d: %v", i, wc.Status)
			}
			if got := <-seen; got != want {
				t.Fatalf("round %d: the reader sees %d, want %d", i, got, want)
			}
		}
	})
}
