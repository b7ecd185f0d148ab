package fabric_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestWorkers: any number of workers gives the packets, counters, captures and digests that the
// fabric gives without, also with failures.
func TestWorkers(t *testing.T) {
	ecn := fabric.ECN{Min: 5e3, Max: 100e3, P: 0.05}
	for _, c := range []struct {
		name     string
		topology fabric.Topology
		sw       fabric.Switch
		want     func(c fabric.Counters) bool
	}{
		{"star", fabric.Star(6), fabric.Switch{ECN: ecn, Queue: 200e3}, func(c fabric.Counters) bool { return c.Marked > 0 }},
		{"dumbbell", fabric.Dumbbell(4), fabric.Switch{Buffer: 300e3}, func(c fabric.Counters) bool { return c.Dropped > 0 }},
		{"leaf-spine", fabric.LeafSpine(4, 3, 2), fabric.Switch{ECN: ecn, PFC: fabric.PFC{Classes: 0xff, Xoff: 60e3}},
			func(c fabric.Counters) bool { return c.Pauses > 0 && c.Marked > 0 }},
		{"spray", fabric.LeafSpine(3, 2, 3), fabric.Switch{ECMP: fabric.Spray, Queue: 100e3},
			func(c fabric.Counters) bool { return c.Dropped > 0 }},
		{"trim", fabric.LeafSpine(3, 2, 3), fabric.Switch{Queue: 60e3, Trim: fabric.Trim{DSCP: 10}, ECN: ecn},
			func(c fabric.Counters) bool { return c.Trimmed > 0 }},
		{"uneven", uneven, fabric.Switch{Queue: 100e3}, func(c fabric.Counters) bool { return c.Dropped > 0 }},
		{"fat tree", fabric.FatTree(4), fabric.Switch{ECN: ecn, Queue: 150e3}, func(c fabric.Counters) bool { return c.Marked > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := ""
			for workers := range stacktest.Size(4, 5, 9) {
				f := newFabric(t, &fabric.Config{Topology: c.topology, Switch: c.sw, Workers: workers, Seed: 3, Link: fabric.Link{Rate: 40e9}})
				got, counters := load(t, f)
				if !c.want(counters) || counters.Lost == 0 {
					t.Fatalf("%+v", counters)
				}
				if workers == 0 {
					first = got
				} else if got != first {
					t.Errorf("with %d workers:\n%s\nwithout:\n%s", workers, got, first)
				}
				if windows := f.Lookahead() > 0; windows != (workers > 0 && c.name != "star") {
					t.Errorf("the lookahead is %v with %d workers", f.Lookahead(), workers)
				}
			}
		})
	}
}

// uneven has a switch with as many hosts as the others together, which have fewer each.
var uneven = fabric.Topology{Switches: []string{"s", "a", "b", "c", "d"}, Hosts: []string{"a", "a", "a", "a", "b", "b", "c", "d"},
	Cables: []fabric.Cable{{A: "s", B: "a"}, {A: "s", B: "b"}, {A: "s", B: "c"}, {A: "s", B: "d"}}}

// load has streams from each host to two others, failures of the first switch's cables, and a
// capture at each switch. It returns what can be seen of the run.
func load(t *testing.T, f *fabric.Fabric) (seen string, counters fabric.Counters) {
	var nodes []*node
	for _, h := range f.Hosts() {
		n := onStatic(t, f, h, roce.Config{DCQCN: &roce.DCQCN{}, TrimmedDSCP: 10})
		n.timeout = 5
		nodes = append(nodes, n)
	}
	var streams []*stream
	for i, n := range nodes {
		for _, to := range []int{(i + len(nodes)/2) % len(nodes), (i + 1) % 2} {
			if to != i {
				x, y := connect(n, nodes[to], verbs.MTU1024)
				s := x.write(y, 20e3, -1)
				s.done = n.h.Mark
				streams = append(streams, s)
			}
		}
	}
	var mirrors []*watcher
	for i, o := range f.Ports()[len(nodes):] {
		if i%5 == 0 {
			m := &watcher{c: o.Mirror().Clock()}
			o.Mirror().Attach(m.see)
			mirrors = append(mirrors, m)
		}
	}
	h, down := f.Hosts()[0], h0Cable(f)
	h.Alone(20*time.Microsecond, func() { down.SetDown(true) })
	h.Alone(30*time.Microsecond, func() {
		down.SetDown(false)
		ok(t, down.SetBitErrors(1e-6))
		h.Alone(100*time.Nanosecond, func() { down.Peer().Flush() })
	})
	h.Clock().AfterFunc(40*time.Microsecond, func() { h.Pause(0xff, true) })
	h.Clock().AfterFunc(55*time.Microsecond, func() { h.Pause(0xff, false) })
	f.Hosts()[1].Clock().AfterFunc(45500*time.Nanosecond, func() { // a function of a host, while others run
		f.Hosts()[1].Alone(1200*time.Nanosecond, func() { ok(t, down.SetBitErrors(1e-7)) })
	})
	f.Run(33333 * time.Nanosecond)
	f.Run(time.Nanosecond)
	seen = f.Digest()
	f.Run(100 * time.Microsecond)
	seen = fmt.Sprintln(seen, f.Digest(), f.Marked(), f.Now(), f.Counters())
	if next, ok := f.Next(); ok {
		seen += fmt.Sprintln("next event at", next)
	}
	for _, s := range streams {
		seen += fmt.Sprint(s.bytes, " ")
	}
	for _, o := range f.Ports() {
		seen += fmt.Sprint(o.Counters())
	}
	for _, m := range mirrors {
		seen += fmt.Sprintln(m.frames, m.sum)
	}
	return seen, f.Counters()
}

// h0Cable returns the first cable between switches, or that of a host if there is none.
func h0Cable(f *fabric.Fabric) *fabric.Port {
	ports := f.Ports()
	for _, o := range ports[len(f.Hosts()):] {
		if !strings.HasPrefix(o.Peer().Node(), "host") {
			return o
		}
	}
	return ports[1]
}

// watcher has a hash of the frames of a mirror, and of their times.
type watcher struct {
	c      clock.Clock
	frames int
	sum    uint64
}

func (w *watcher) see(frames []link.Frame) {
	for i := range frames {
		h := fnv.New64a()
		fmt.Fprintln(h, w.sum, w.c.Now())
		_, _ = h.Write(frames[i].Data)
		w.frames, w.sum = w.frames+1, h.Sum64()
	}
}

// TestWorkersProcesses: processes of hosts that run at the same time connect, with broadcasts for
// addresses, and give the same digest with any number of workers.
func TestWorkersProcesses(t *testing.T) {
	const hosts = 6
	first := ""
	for workers := 1; workers <= 4; workers++ {
		f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(3, hosts/3, 2), Seed: 7, Workers: workers})
		var rounds [hosts]int
		for i, h := range f.Hosts() {
			n := onNetstack(t, f, h, roce.Config{})
			h.Go(func(p *fabric.Process) { serve(t, n, p) })
			h.Go(func(p *fabric.Process) {
				p.Sleep(time.Millisecond)
				ctx, cancel := p.WithTimeout(context.Background(), time.Second)
				defer cancel()
				to := f.Hosts()[(i+1)%hosts].Addr().String() + ":7471"
				c, err := rdmacm.Dial(ctx, n.dev, to, &rdmacm.Config{Transport: verbs.RoCEv2, PD: n.pd})
				if err != nil {
					t.Errorf("host %d: %v", i, err)
					return
				}
				defer c.Close()
				for range 3 {
					ok(t, c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(4096, 100)}}))
					ok(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{n.mr.SGE(0, 100)}}))
					var wcs [1]verbs.WC
					if _, err := c.RecvCQ().Wait(ctx, wcs[:]); err != nil || wcs[0].Err() != nil {
						t.Errorf("host %d: %v, %v", i, err, wcs[0].Err())
					}
					rounds[i]++
				}
			})
		}
		ok(t, f.Wait(5*time.Second))
		if rounds != [hosts]int{3, 3, 3, 3, 3, 3} {
			t.Errorf("rounds: %d", rounds)
		}
		got := fmt.Sprint(f.Digest(), f.Now(), f.Counters())
		if workers == 1 {
			first = got
		}
		if got != first {
			t.Errorf("with %d workers %s, and with one %s", workers, got, first)
		}
	}
}

// TestWorkersOutside: what waits on the goroutine that runs the fabric sees all hosts at one time.
func TestWorkersOutside(t *testing.T) {
	var first time.Duration
	for workers := range 3 {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: workers})
		a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
		b.h.Go(func(p *fabric.Process) { serve(t, b, p) })
		f.Run(0)
		c := must(rdmacm.Dial(t.Context(), a.dev, b.h.Addr().String()+":7471", &rdmacm.Config{Transport: verbs.RoCEv2}))(t)
		switch now := f.Now(); {
		case now != a.h.Now() || now != b.h.Now():
			t.Errorf("it is %v, %v and %v", now, a.h.Now(), b.h.Now())
		case workers == 0:
			first = now
		case now != first:
			t.Errorf("with %d workers, connected at %v, and %v without", workers, now, first)
		}
		ok(t, c.Close())
		ok(t, f.Wait(time.Second))
	}
}

// TestWorkersUnwound: a panic, and the end of a goroutine, are those of the goroutine that runs the
// fabric, on whichever worker they happen.
func TestWorkersUnwound(t *testing.T) {
	for host := range 2 {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: 2})
		h, other := f.Hosts()[host], f.Hosts()[1-host]
		if h.Worker() != host {
			t.Fatalf("host %d has the worker %d", host, h.Worker())
		}
		panics := func(want string, do func()) {
			t.Helper()
			h.Clock().AfterFunc(time.Microsecond/2, do)
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("host %d: %s: want %q", host, said, want)
				}
			}()
			f.Run(10 * time.Microsecond)
		}
		panics("mine", func() { panic("mine") })
		panics("at least 1µs", func() { h.Alone(time.Microsecond-1, func() {}) })
		panics("see Host.Alone", func() { h.Port().SetDown(true) })
		panics("see Host.Alone", func() { h.Port().Counters() })
		panics("see Host.Alone", func() { other.Pause(1, true) })
		panics("which runs it", func() { f.Run(1) })
		h.Go(func(p *fabric.Process) {
			p.Sleep(time.Microsecond)
			runtime.Goexit()
		})
		ended := make(chan bool, 1)
		go func() {
			returned := false
			defer func() { ended <- !returned }()
			f.Run(10 * time.Microsecond)
			returned = true
		}()
		if !<-ended {
			t.Errorf("host %d: Run returns after Goexit", host)
		}
		ran := false
		other.Clock().AfterFunc(time.Millisecond, func() { ran = true })
		if f.Run(2 * time.Millisecond); !ran {
			t.Errorf("host %d: the other one does not go on", host)
		}
	}
}

// TestAloneWakes: a process sees what a function of another host's Alone has done.
func TestAloneWakes(t *testing.T) {
	for workers := range 3 {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: workers})
		done, at := false, time.Duration(0)
		f.Hosts()[1].Go(func(p *fabric.Process) {
			p.Until(func() bool { return done })
			at = p.Now()
		})
		f.Hosts()[0].Alone(20*time.Microsecond, func() { done = true })
		if err := f.Wait(time.Millisecond); err != nil || at != 20*time.Microsecond {
			t.Errorf("with %d workers, seen after %v: %v", workers, at, err)
		}
	}
}

// TestWorkersIdle: workers jump over a time in which nothing happens, also if only one of them has
// something to do after it. In steps of the lookahead this test would take longer than its timeout.
func TestWorkersIdle(t *testing.T) {
	for host := range 2 {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: 2})
		c := f.Hosts()[host].Clock()
		ticks := 0
		var tick func()
		tick = func() {
			ticks++
			c.AfterFunc(time.Minute, tick)
		}
		tick()
		if f.Run(100 * time.Hour); ticks != 6001 {
			t.Errorf("host %d: %d ticks, want 6001", host, ticks)
		}
	}
}

// TestWorkersPackets: packets that are freed by another worker than the one that needs them come
// back, so that nothing is allocated for each.
func TestWorkersPackets(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: 2})
	from, to := f.Hosts()[0], f.Hosts()[1]
	arrived := 0
	to.Attach(func([]link.Frame) { arrived++ })
	frame := append(append(append([]byte{}, to.MAC()...), from.MAC()...), make([]byte, 1000)...)
	timer := clock.Timer(nil)
	timer = from.Clock().AfterFunc(time.Microsecond, func() {
		must(from.Write([]link.Frame{{Data: frame}}))(t)
		timer.Reset(time.Microsecond)
	})
	f.Run(time.Millisecond)
	const packets = 5000
	before := arrived
	allocated := testing.AllocsPerRun(1, func() { f.Run(packets * time.Microsecond) })
	if arrived-before != 2*packets || allocated > packets/10 { // AllocsPerRun runs it twice
		t.Errorf("%d packets, and %v allocations for %d", arrived-before, allocated, packets)
	}
}
