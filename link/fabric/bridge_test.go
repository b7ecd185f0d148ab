package fabric_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
)

// TestForward: a host that stands for something real sends frames with any addresses, to one host
// or to all that receive. What does not fit is refused.
func TestForward(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(4), MTU: 1500})
	a, b, c, d := f.Hosts()[0], f.Hosts()[1], f.Hosts()[2], f.Hosts()[3]
	got := map[*fabric.Host]int{}
	for _, h := range []*fabric.Host{a, b, c} { // nothing is at d
		h.Attach(func(frames []link.Frame) { got[h] += len(frames) })
	}
	frame := linktest.Plain([]byte{8, 0, 0, 0, 0, 1}, []byte{8, 0, 0, 0, 0, 2}, 1000, "").Data
	if !a.Forward(frame, b) || !a.Forward(frame, nil) {
		t.Error("a frame is refused")
	}
	tooLong := linktest.Plain([]byte{8, 0, 0, 0, 0, 1}, []byte{8, 0, 0, 0, 0, 2}, 1600, "").Data
	if a.Forward(tooLong, b) || a.Forward(frame[:link.EthernetHeaderLen-1], b) || a.Forward(frame, a) {
		t.Error("a frame that is too long, too short or for the host itself is not refused")
	}
	f.Run(time.Millisecond)
	if got[a] != 0 || got[b] != 2 || got[c] != 1 || f.Port("switch", d.Name()).Counters().Packets != 0 {
		t.Errorf("received %d, %d, %d and %d", got[a], got[b], got[c], f.Port("switch", d.Name()).Counters().Packets)
	}
	n := 0
	for a.Forward(frame, b) {
		n++
	}
	if held := n * (len(frame) + 24); held < 4<<20 || held > 5<<20 {
		t.Errorf("the adapter holds %d bytes", held)
	}
	f.Run(time.Second)
	if got[b] != 2+n {
		t.Errorf("%d of %d frames have arrived", got[b]-2, n)
	}
}
