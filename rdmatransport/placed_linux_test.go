package rdmatransport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// segment joins a segment of the test n times.
func segment(t testing.TB, n int) (links []*shm.Link) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for range n {
		l, err := shm.Open("x", &shm.Config{Directory: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		links = append(links, l)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		all := 0
		for _, l := range links {
			all += len(l.Peers())
		}
		if all == n*(n-1) {
			return links
		}
		if time.Now().After(deadline) {
			t.Fatal("not all are connected")
		}
	}
}

// watched is a link that counts received frames to port 4791, and may change them.
type watched struct {
	*shm.Link
	// Frames with ICRCs, frames without, and how many of the latter were in place.
	complete, without, inPlace atomic.Int64
	change                     func(*link.Frame)
}

func (w *watched) Attach(recv link.Receiver) {
	w.Link.Attach(func(frames []link.Frame) {
		for i := range frames {
			f := &frames[i]
			switch d := f.Data; {
			case f.NoICRC:
				w.without.Add(1)
				if len(f.More) > 0 {
					w.inPlace.Add(1)
				}
				if w.change != nil {
					w.change(f)
				}
			case len(d) >= 42 && d[23] == 17 && binary.BigEndian.Uint16(d[36:]) == stack.RoCEPort:
				w.complete.Add(1)
			}
		}
		recv(frames)
	})
}

// whole hides that a link is a link.InPlace, like link/capture and link/impair.
type whole struct{ link.Link }

// exchange sends messages of many lengths from a to b by WRITE, SEND and READ, and checks the data.
func exchange(t *testing.T, a, b *station, transport verbs.Transport) {
	t.Helper()
	const size = 300 << 10
	onA, onB := dial(a, b, transport, nil)
	from, to := make([]byte, size), make([]byte, size)
	mrA, mrB := a.reg(from, everyAccess), b.reg(to, everyAccess)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wait := func(c *rdmacm.Conn, recv bool) {
		t.Helper()
		cq := c.QP().SendCQ()
		if recv {
			cq = c.QP().RecvCQ()
		}
		var wc [1]verbs.WC
		for {
			n, err := cq.Poll(wc[:])
			ok(t, err)
			if n == 1 {
				if wc[0].Status != verbs.WCSuccess {
					t.Fatalf("%v: %v", wc[0].Opcode, wc[0].Status)
				}
				return
			}
			if ctx.Err() != nil {
				t.Fatal("no completion")
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 60, 1025, 4097, 65537, size} {
		for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.Send, verbs.RDMARead} {
			for i := range from {
				from[i], to[i] = byte(r.Uint32()), byte(r.Uint32())
			}
			// Orders b's accesses; the race detector does not see accesses to shared memory.
			onB.QP().State()
			wr := &verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrA.SGE(0, n)},
				RemoteAddr: mrB.Addr(), RKey: mrB.RKey()}
			if op == verbs.Send {
				ok(t, onB.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mrB.SGE(0, n)}}))
			}
			ok(t, onA.QP().PostSend(wr))
			wait(onA, false)
			// An iWARP WRITE completes when it is sent; after this the test may use b's memory.
			if op != verbs.Send {
				ok(t, onB.QP().PostRecv(&verbs.RecvWR{}))
				ok(t, onA.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
				wait(onA, false)
			}
			wait(onB, true)
			if !bytes.Equal(from[:n], to[:n]) {
				t.Fatalf("%v of %d bytes over %v: the data is not what was sent", op, n, transport)
			}
		}
	}
}

// spoil changes a byte, as another process would, whom the race detector does not see either.
//
//go:norace
func spoil(b []byte, r *rand.Rand) {
	b[r.IntN(len(b))] = byte(r.Uint32())
}

// TestPlaced checks packets between hosts on a segment in shared memory. They have no ICRC, and
// long ones are read in place. If one side does not support that, both sides get complete packets.
func TestPlaced(t *testing.T) {
	for name, bare := range map[string][2]bool{"both": {}, "one side": {true, false}, "none": {true, true}} {
		t.Run(name, func(t *testing.T) {
			var links [2]*watched
			var stations [2]*station
			for i, l := range segment(t, 2) {
				links[i] = &watched{Link: l}
				var on link.Link = links[i]
				if bare[i] {
					on = whole{on}
				}
				stations[i] = newStationOn(t, on, []string{"10.0.0.1/24", "10.0.0.2/24"}[i], nil)
			}
			both(t, func(t *testing.T, transport verbs.Transport) { exchange(t, stations[0], stations[1], transport) })
			for i, l := range links {
				complete, without, inPlace := l.complete.Load(), l.without.Load(), l.inPlace.Load()
				// Complete before the peer's address is known, and while its ring is full.
				right := without > 4*complete && inPlace > 0
				if bare[0] {
					right = complete > 0 && without+inPlace == 0
				}
				if !right {
					t.Errorf("side %d: %d frames with ICRCs, %d without, %d in place", i, complete, without, inPlace)
				}
				if c := must(stations[i].dev.HWCounters())(t); c["rcvd_icrc_errors"] != 0 {
					t.Errorf("ICRC errors: %d", c["rcvd_icrc_errors"])
				}
			}
		})
	}
}

// TestPlacedChanges checks a sender that changes packets while they are received. It can corrupt
// only the data that it sends. The receiver acts on the headers that it has checked.
func TestPlacedChanges(t *testing.T) {
	links := segment(t, 2)
	a := newStationOn(t, links[0], "10.0.0.1/24", nil)
	stop := make(chan struct{})
	var spoiling, spoiled atomic.Int64
	w := &watched{Link: links[1]}
	done := make(chan struct{})
	var victim atomic.Pointer[[]byte]
	w.change = func(f *link.Frame) {
		if len(f.More) > 0 {
			b := f.More[0]
			victim.Store(&b)
			spoiling.Add(1)
		}
	}
	go func() { // like another process
		defer close(done)
		r := rand.New(rand.NewPCG(5, 6))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if b := victim.Load(); b != nil {
				n := min(28, len(*b)) // BTH and RETH of the first packet
				spoil((*b)[:n], r)
				spoiled.Add(1)
			}
		}
	}()
	b := newStationOn(t, w, "10.0.0.2/24", nil)
	around := make([]byte, 1<<20)
	for i := range around {
		around[i] = 0xa5
	}
	inner := b.reg(around[256<<10:512<<10:512<<10], everyAccess)
	from := a.reg(make([]byte, 64<<10), everyAccess)
	began, least := time.Now(), time.Duration(stacktest.Size(300, 1000, 1000))*time.Millisecond
	enough := func() bool {
		took := time.Since(began)
		return took > least && spoiling.Load() > 0 && spoiled.Load() > 0 || took > 20*time.Second
	}
	for !enough() {
		onA, onB := dial(a, b, verbs.RoCEv2, nil)
		for range 200 {
			if onA.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{from.SGE(0, 64<<10)}, RemoteAddr: inner.Addr(), RKey: inner.RKey()}) != nil {
				break
			}
			var wc [1]verbs.WC
			for n := 0; n == 0 && !enough(); {
				n, _ = onA.QP().SendCQ().Poll(wc[:])
			}
			if wc[0].Status != verbs.WCSuccess {
				break
			}
		}
		onA.Close()
		onB.Close()
	}
	close(stop)
	<-done
	for i, v := range slices.Concat(around[:256<<10], around[512<<10:]) {
		if v != 0xa5 {
			t.Fatalf("byte %d outside of the region was written", i)
		}
	}
	t.Logf("%d frames in place, %d changes", spoiling.Load(), spoiled.Load())
	if spoiling.Load() == 0 || spoiled.Load() == 0 {
		t.Errorf("%d frames in place, %d changes", spoiling.Load(), spoiled.Load())
	}
}

// TestManyWaitForRoom checks that many connections can wait for a process that receives nothing for
// a while, and that no frame is lost.
func TestManyWaitForRoom(t *testing.T) {
	links := segment(t, 2)
	a := newStationOn(t, links[0], "10.0.0.1/24", nil)
	stuck := make(chan struct{})
	w := &watched{Link: links[1]}
	var closed atomic.Bool
	w.change = func(*link.Frame) {
		if closed.Load() {
			<-stuck
		}
	}
	b := newStationOn(t, w, "10.0.0.2/24", nil)
	const conns, size = 64, 1 << 20
	mrA, mrB := a.reg(make([]byte, size), everyAccess), b.reg(make([]byte, size), everyAccess)
	var qps []*rdmacm.Conn
	for range conns {
		c, _ := dial(a, b, verbs.RoCEv2, nil)
		qps = append(qps, c)
	}
	closed.Store(true)
	for _, c := range qps {
		ok(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{mrA.SGE(0, size)}, RemoteAddr: mrB.Addr(), RKey: mrB.RKey()}))
	}
	if n := links[0].Backlog([6]byte(links[1].MAC())); n < 1<<20 {
		t.Errorf("only %d bytes wait for room: the test checks nothing", n)
	}
	close(stuck)
	deadline := time.Now().Add(20 * time.Second)
	for i, c := range qps {
		var wc [1]verbs.WC
		for n := 0; n == 0; {
			n = must(c.QP().SendCQ().Poll(wc[:]))(t)
			if n == 0 && time.Now().After(deadline) {
				t.Fatalf("connection %d still waits", i)
			}
		}
		if wc[0].Status != verbs.WCSuccess {
			t.Fatal(wc[0].Status)
		}
	}
	if n := links[0].Dropped(); n != 0 {
		t.Errorf("%d frames were lost", n)
	}
}
