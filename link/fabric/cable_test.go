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
