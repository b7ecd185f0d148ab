package cable_test

import (
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/cable"
	"github.com/softrnic/softrnic/link/pipe"
)

// TestCable: a pulled cable loses frames in both directions and reports no carrier; the MTU can be
// lowered.
func TestCable(t *testing.T) {
	sw := new(pipe.Switch)
	a, b := cable.New(sw.Port()), sw.Port()
	defer func() { _ = a.Close(); _ = b.Close() }()
	arrived := [2]chan int{make(chan int, 10), make(chan int, 10)}
	a.Attach(func(f []link.Frame) { arrived[0] <- len(f) })
	b.Attach(func(f []link.Frame) { arrived[1] <- len(f) })
	var states []link.State
	a.Watch(func() { states = append(states, a.State()) })

	frame := func(to, from link.Link) []link.Frame {
		data := append(append([]byte{}, to.MAC()...), from.MAC()...)
		return []link.Frame{{Data: append(data, make([]byte, 50)...)}}
	}
	send := func(from, to link.Link) {
		t.Helper()
		if n, err := from.Write(frame(to, from)); n != 1 || err != nil {
			t.Fatalf("%d frames written, error %v", n, err)
		}
	}
	a.SetDown(true)
	a.SetDown(true) // no change
	send(a, b)
	send(b, a)
	a.SetDown(false)
	send(a, b)
	if n := <-arrived[1]; n != 1 || len(arrived[1]) != 0 {
		t.Errorf("%d frames arrived, and %d times more", n, len(arrived[1]))
	}
	send(b, a)
	<-arrived[0]
	if len(states) != 2 || states[0] != link.NoCarrier || states[1] != link.Up {
		t.Errorf("states %v", states)
	}
	if err := a.SetMTU(b.MTU() + 1); err == nil {
		t.Error("the MTU is raised")
	}
	if err := a.SetMTU(1500); err != nil || a.MTU() != 1500 || len(states) != 3 {
		t.Errorf("MTU %d, error %v, %d changes", a.MTU(), err, len(states))
	}
}
