package fabric_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// frame is what the largest packet with a path MTU of 4096 takes, at most.
const frame = 4200 + 14 + 24

// share returns the least and the most that streams have moved since before, which it updates.
func share(streams []*stream, before []int64) (least, most int64) {
	least = 1 << 62
	for i, s := range streams {
		n := s.bytes - before[i]
		least, most, before[i] = min(least, n), max(most, n), s.bytes
	}
	return least, most
}

// TestAdapterQueue: a few packets of each QP wait in an adapter, not their windows. QPs share its
// rate, and all go on after a pause.
func TestAdapterQueue(t *testing.T) {
	for _, read := range []bool{false, true} {
		t.Run(fmt.Sprint("read ", read), func(t *testing.T) {
			const qps = 48
			f := newFabric(t, &fabric.Config{Topology: fabric.Star(4),
				Switch: fabric.Switch{PFC: fabric.PFC{Classes: 1, Xoff: 100e3}}})
			var nodes []*node
			for _, h := range f.Hosts() {
				nodes = append(nodes, onStatic(t, f, h, roce.Config{}))
			}
			var streams []*stream
			for i := range qps { // all data leaves host 0
				x, y := connect(nodes[0], nodes[1+i%3], verbs.MTU4096)
				if read {
					streams = append(streams, y.stream(verbs.RDMARead, x, 64<<10, -1))
				} else {
					streams = append(streams, x.stream(verbs.RDMAWrite, y, 64<<10, -1))
				}
			}
			port, before := nodes[0].h.Port(), make([]int64, qps)
			f.Run(2 * time.Millisecond)
			share(streams, before)
			f.Run(5 * time.Millisecond)
			if least, most := share(streams, before); gbps(least*qps, 5*time.Millisecond) < 85 || most-least > 2*64<<10 {
				t.Errorf("QPs have moved %d to %d bytes", least, most)
			}
			for _, n := range nodes[1:] {
				n.h.Pause(1, true)
			}
			f.Run(time.Millisecond / 4)
			paused := f.Counters().Delivered
			f.Run(time.Millisecond / 4)
			if n := f.Counters().Delivered - paused; n > 0 || port.Queued() == 0 || port.Counters().Pauses == 0 {
				t.Errorf("%d packets are delivered in a pause, %d bytes are queued, %+v", n, port.Queued(), port.Counters())
			}
			for _, n := range nodes[1:] {
				n.h.Pause(1, false)
			}
			share(streams, before)
			f.Run(5 * time.Millisecond)
			if least, _ := share(streams, before); gbps(least*qps, 5*time.Millisecond) < 85 {
				t.Errorf("QPs have moved %d bytes after the pause", least)
			}
			if n := port.Counters().MaxQueue; n < qps*2*4096 || n > qps*3*frame {
				t.Errorf("%d bytes were queued of %d QPs", n, qps)
			}
			if c := f.Counters(); c.Dropped+c.Lost > 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestAdapterTurns: the requests of a QP and its READ responses, which have the same queue, both
// move.
func TestAdapterTurns(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	x, y := connect(a, b, verbs.MTU4096)
	// All data leaves host 0, and nothing is posted there after the beginning.
	reads, before := y.stream(verbs.RDMARead, x, 64<<10, -1), make([]int64, 1)
	writes := x.write(y, 256<<10, 1)
	f.Run(10 * time.Millisecond)
	if writes.bytes != 256<<10 {
		t.Errorf("WRITEs have moved %d bytes", writes.bytes)
	}
	f.Run(time.Millisecond)
	share([]*stream{reads}, before)
	f.Run(time.Millisecond)
	if least, _ := share([]*stream{reads}, before); gbps(least, time.Millisecond) < 85 {
		t.Errorf("READs have moved %d bytes in a millisecond", least)
	}
}

// TestPausedClass: a pause of one class stops its QPs, and no others of the host.
func TestPausedClass(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(3),
		Switch: fabric.Switch{Weights: [8]int{1, 1}, PFC: fabric.PFC{Classes: 3, Xoff: 100e3}}})
	a, b, c := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{}),
		onStatic(t, f, f.Hosts()[2], roce.Config{})
	var streams []*stream
	for class, to := range []*node{b, c} {
		a.class, to.class = uint8(class), 7 // acknowledgements are not paused
		for range 4 {
			x, y := connect(a, to, verbs.MTU4096)
			streams = append(streams, x.stream(verbs.RDMAWrite, y, 64<<10, -1))
		}
	}
	before := make([]int64, 8)
	b.h.Pause(1, true)
	f.Run(time.Millisecond)
	for range 3 {
		share(streams, before)
		f.Run(time.Millisecond)
		_, stopped := share(streams[:4], before)
		least, _ := share(streams[4:], before[4:])
		if stopped > 0 || gbps(4*least, time.Millisecond) < 85 {
			t.Errorf("%d bytes of the paused class, %d of the other", stopped, least)
		}
	}
	b.h.Pause(1, false)
	share(streams, before)
	f.Run(2 * time.Millisecond)
	if least, most := share(streams, before); least < most*8/10 {
		t.Errorf("%d to %d bytes after the pause", least, most)
	}
}

// TestAcknowledgementsOvertake: what a host has to send does not delay its acknowledgements, and
// these do not overtake READ responses before them, which would then be taken for lost.
func TestAcknowledgementsOvertake(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(3)})
	a, b, c := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{}),
		onStatic(t, f, f.Hosts()[2], roce.Config{})
	for range 30 {
		x, y := connect(a, c, verbs.MTU4096)
		x.stream(verbs.RDMAWrite, y, 64<<10, -1)
	}
	x, y := connect(b, a, verbs.MTU4096)
	write := x.stream(verbs.RDMAWrite, y, 8<<10, -1)
	z, w := connect(b, a, verbs.MTU4096)
	mixed := z.stream(verbs.RDMARead, w, 10000, -1)
	n := 0
	mixed.done = func() {
		mixed.wr.Opcode = []verbs.WROpcode{verbs.RDMARead, verbs.RDMAWrite}[n%2]
		n++
	}
	f.Run(2 * time.Millisecond)
	before := write.bytes
	f.Run(5 * time.Millisecond)
	if rate := gbps(write.bytes-before, 5*time.Millisecond); rate < 20 { // two WRITEs in a round trip of some 5 µs
		t.Errorf("%.1f Gbit/s: acknowledgements wait for 30 QPs", rate)
	}
	for _, d := range []*node{a, b} {
		counters := must(d.dev.HWCounters())(t)
		if mixed.bytes == 0 || counters["completer_retry_err"]+counters["selective_repeats"]+counters["out_of_seq_request"] > 0 {
			t.Errorf("%d bytes, %v", mixed.bytes, counters)
		}
	}
}

// TestFullAndLost: QPs go on whose packets are lost in a full adapter, and fail after their retries
// if the cable stays cut.
func TestFullAndLost(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2), Switch: fabric.Switch{PFC: fabric.PFC{Classes: 1, Xoff: 100e3}}})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	var streams []*stream
	for range 8 {
		x, y := connect(a, b, verbs.MTU4096)
		streams = append(streams, x.stream(verbs.RDMAWrite, y, 64<<10, -1))
	}
	before := make([]int64, 8)
	port := a.h.Port()
	flush := func() { port.Flush() }
	b.h.Pause(1, true)
	for _, lose := range []func(){flush, func() { b.h.Pause(1, false) }, flush,
		func() { port.SetDown(true) }, func() { port.SetDown(false) }} {
		f.Run(time.Millisecond)
		lose()
	}
	share(streams, before)
	f.Run(100 * time.Millisecond)
	if least, _ := share(streams, before); least < 50e6 {
		t.Errorf("a QP has moved %d bytes", least)
	}
	failed := 0
	for _, s := range streams {
		s.failed = func(status verbs.WCStatus) {
			if status == verbs.WCRetryExcErr {
				failed++
			}
		}
	}
	port.SetDown(true)
	f.Run(time.Second)
	if failed != len(streams) || port.Queued() > 0 {
		t.Errorf("%d of %d QPs have failed, %d bytes are queued", failed, len(streams), port.Queued())
	}
}

// TestFullUC: an unreliable connection sends at the rate of its cable, without the pauses that it
// makes on real links, and nothing waits but a few packets.
func TestFullUC(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	a.service, b.service = verbs.UC, verbs.UC
	x, y := connect(a, b, verbs.MTU4096)
	s := x.stream(verbs.RDMAWrite, y, regionSize, -1)
	f.Run(time.Millisecond)
	if n := a.h.Port().Counters().MaxQueue; gbps(s.bytes, f.Now()) < 85 || n > 3*frame {
		t.Errorf("%.1f Gbit/s, %d bytes queued", gbps(s.bytes, f.Now()), n)
	}
}

// TestQueue: a queue of an adapter has one sender at a time, which is called once when it is empty
// after it was full, and not after Close.
func TestQueue(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(3)})
	a, b := f.Hosts()[0], f.Hosts()[1]
	to := func(h *fabric.Host, qpn byte) link.Frame {
		fr := linktest.Plain(h.MAC(), a.MAC(), 4000, "")
		clear(fr.Data[12:54])
		copy(fr.Data[12:], []byte{8, 0, 0x45})
		fr.Data[23] = 17 // UDP
		copy(fr.Data[36:], []byte{4791 >> 8, 4791 & 0xff})
		fr.Data[42+7] = qpn
		return fr
	}
	calls := 0
	open := func(fr link.Frame) link.Queue { return a.Queue(fr.Data[:54], func() { calls++ }) }
	q := open(to(b, 1))
	for _, c := range []struct {
		name string
		to   link.Frame
		has  bool
	}{{"with a sender", to(b, 1), false}, {"to the host itself", to(a, 1), false}, {"of another QP", to(b, 2), true},
		{"of another host", to(f.Hosts()[2], 1), true}} {
		if has := open(c.to) != nil; q == nil || has != c.has {
			t.Fatalf("a queue %s: %t", c.name, has)
		}
	}
	fill := func() (n int) {
		for !q.Full() {
			must(a.Write([]link.Frame{to(b, 1)}))(t)
			n++
		}
		return n
	}
	if n := fill(); n != 4 || !q.Full() { // one of them on the cable
		t.Errorf("it is full with %d frames", n)
	}
	must(a.Write([]link.Frame{to(b, 2), to(b, 2), to(b, 2), to(b, 2), to(b, 2), to(b, 2)}))(t) // its sender does not wait
	f.Run(time.Millisecond)
	if calls != 1 || q.Full() {
		t.Errorf("the sender was called %d times", calls)
	}
	fill()
	a.Port().Flush()
	if calls != 2 {
		t.Errorf("the sender was called %d times, with a flush", calls)
	}
	fill()
	q.Close()
	f.Run(time.Millisecond)
	if calls != 2 || a.Port().Queued() > 0 || open(to(b, 1)) == nil {
		t.Errorf("%d calls after Close, %d bytes are queued", calls-2, a.Port().Queued())
	}
}
