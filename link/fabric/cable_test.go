package fabric_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
)

// TestPorts: all ports of hosts and then of switches, with their cables.
func TestPorts(t *testing.T) {
	topology := fabric.LeafSpine(2, 2, 1)
	topology.Cables[0].Link = fabric.Link{Rate: 400e9, Delay: 3 * time.Microsecond}
	f := newFabric(t, &fabric.Config{Topology: topology})
	all := f.Ports()
	if len(all) != 4+4+4 || all[0] != f.Hosts()[0].Port() || all[4].Node() != "leaf0" {
		t.Fatalf("%d ports", len(all))
	}
	for _, p := range all {
		if p.Peer().Peer() != p || p != f.Port(p.Node(), p.Peer().Node()) {
			t.Errorf("the port of %s to %s", p.Node(), p.Peer().Node())
		}
	}
	if up := f.Port("leaf0", "spine0"); up.Rate() != 400e9 || up.Delay() != 3*time.Microsecond || all[0].Rate() != 100e9 {
		t.Errorf("%v bit/s and %v", up.Rate(), up.Delay())
	}
}

// frames has a host send frames of 1000 bytes to another, and counts those that arrive.
func frames(t *testing.T, f *fabric.Fabric, n int) *int {
	t.Helper()
	a, b := f.Hosts()[0], f.Hosts()[1]
	got := new(int)
	b.Attach(func(frames []link.Frame) { *got += len(frames) })
	frame := linktest.Plain(b.MAC(), a.MAC(), 1000, "")
	for range n {
		must(a.Write([]link.Frame{frame}))(t)
	}
	return got
}

// TestBitErrors: frames with a wrong bit are lost, on both cables of a way.
func TestBitErrors(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	ok(t, f.Hosts()[0].Port().SetBitErrors(1e-5)) // of about 8,300 bits
	got := frames(t, f, 1000)
	f.Run(time.Second)
	lost := f.Counters().Lost
	if lost < 50 || lost > 120 || *got != 1000-int(lost) || f.Port("host0", "switch").Counters().Lost != lost {
		t.Errorf("%d frames of 1000 arrive, %d are lost", *got, lost)
	}
	ok(t, f.Hosts()[0].Port().SetBitErrors(0))
	if got := frames(t, f, 100); f.Wait(time.Second) != nil {
		t.Error("it waits")
	} else if f.Run(time.Second); *got != 100 {
		t.Errorf("%d of 100 arrive without errors", *got)
	}
	for _, rate := range []float64{-1, 1} {
		if f.Hosts()[0].Port().SetBitErrors(rate) == nil {
			t.Errorf("a rate of %v is no error", rate)
		}
	}
}

// TestPause: a host stops its switch, for a class.
func TestPause(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	b := f.Hosts()[1]
	b.Pause(1<<1, true)
	f.Run(10 * time.Microsecond)
	got := frames(t, f, 10) // of class 0
	f.Run(time.Millisecond)
	if *got != 10 {
		t.Errorf("%d frames of another class arrive", *got)
	}
	b.Pause(1<<0|1<<1, true)
	f.Run(10 * time.Microsecond)
	got = frames(t, f, 10)
	f.Run(time.Millisecond)
	if *got != 0 || f.Port("switch", "host1").Queued() == 0 {
		t.Errorf("%d frames of a paused class arrive", *got)
	}
	b.Pause(1<<0, false)
	f.Run(time.Millisecond)
	if *got != 10 {
		t.Errorf("%d frames arrive after the pause", *got)
	}
}

// TestRates: frames take their exact time on a cable, also at rates at which a byte takes no whole
// number of picoseconds.
func TestRates(t *testing.T) {
	for _, rate := range []float64{1e6, 7e9, 300e9, 1.6e12, 5999999999999} {
		f := newFabric(t, &fabric.Config{Topology: fabric.Star(2), Link: fabric.Link{Rate: rate, Delay: fabric.None}})
		a, b := f.Hosts()[0], f.Hosts()[1]
		var last time.Duration
		b.Attach(func([]link.Frame) { last = f.Now() })
		frame := linktest.Plain(b.MAC(), a.MAC(), 1001, "")
		const n = 3000
		for range n {
			must(a.Write([]link.Frame{frame}))(t)
		}
		f.Run(time.Hour)
		want := time.Duration(float64((n+1)*(frame.Len()+24)) * 8e9 / rate)
		if last < want-time.Nanosecond || last > want+time.Nanosecond || f.Ports()[0].Rate() != rate {
			t.Errorf("at %v bit/s the last of %d frames arrives at %v, not at %v; the rate is %v", rate, n, last, want, f.Ports()[0].Rate())
		}
	}
}

// TestFlush: what is queued at a port is lost, and its room is free again, with the pauses that it
// has caused.
func TestFlush(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2), Switch: fabric.Switch{Buffer: 60e3, PFC: fabric.PFC{Classes: 1, Xoff: 10e3}}})
	a, b := f.Hosts()[0], f.Hosts()[1]
	b.Pause(1, true)
	f.Run(10 * time.Microsecond)
	for round := range 3 {
		got := frames(t, f, 100)
		f.Run(time.Millisecond)
		to := f.Port("switch", "host1")
		n := to.Queued() / (1000 + 24)
		if n < 10 || n > 58 || a.Port().Queued() == 0 {
			t.Fatalf("%d frames are queued at the switch, and %d bytes at the host that it pauses", n, a.Port().Queued())
		}
		before := f.Counters().Flushed
		a.Port().Flush()
		to.Flush()
		if now := f.Counters().Flushed - before; now != 100 || to.Queued() != 0 || a.Port().Queued() != 0 {
			t.Errorf("round %d: %d frames are flushed, %d bytes are left", round, now, to.Queued())
		}
		f.Run(time.Millisecond)
		if c := f.Counters(); *got != 0 || c.Dropped > 0 || c.Lost > 0 || to.Counters().Flushed == 0 {
			t.Errorf("%d frames arrive, %+v", *got, f.Counters())
		}
	}
	b.Pause(1, false)
	got := frames(t, f, 30)
	f.Run(time.Millisecond)
	if *got != 30 {
		t.Errorf("%d of 30 frames arrive afterwards", *got)
	}
}

// TestPauseAfterCut: a host that pauses goes on when its cable was cut and is mended.
func TestPauseAfterCut(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	b := f.Hosts()[1]
	b.Pause(1, true)
	f.Run(10 * time.Microsecond)
	b.Port().SetDown(true)
	f.Run(10 * time.Microsecond)
	b.Port().SetDown(false)
	f.Run(10 * time.Microsecond)
	got := frames(t, f, 10)
	f.Run(time.Millisecond)
	if *got != 0 {
		t.Errorf("%d frames arrive at a host that pauses", *got)
	}
	b.Pause(1, false)
	f.Run(time.Millisecond)
	if *got != 10 {
		t.Errorf("%d of 10 frames arrive", *got)
	}
}

// TestMirrors: each mirror of a port has all frames until it is closed.
func TestMirrors(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	var seen [2]int
	var mirrors [2]*fabric.Mirror
	for i := range mirrors {
		mirrors[i] = f.Port("switch", "host1").Mirror()
		mirrors[i].Attach(func(frames []link.Frame) { seen[i] += len(frames) })
	}
	frames(t, f, 5)
	f.Run(time.Millisecond)
	ok(t, mirrors[0].Close())
	frames(t, f, 5)
	f.Run(time.Millisecond)
	if seen != [2]int{5, 10} {
		t.Errorf("the mirrors have %d frames, want 5 and 10", seen)
	}
}
