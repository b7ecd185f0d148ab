package tap

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link"
)

// TestQueues: each frame arrives once, those of a flow in order, and a superframe uncut.
func TestQueues(t *testing.T) {
	inNamespace(t)
	bridge(t, "br0", 4200)
	a := openTAP(t, "a0", WithBridge("br0"), WithMTU(4200), WithQueues(3))
	b := openTAP(t, "b0", WithBridge("br0"), WithMTU(4200), WithQueues(3))
	if !a.Offloads().USO {
		t.Skip("needs a kernel with UDP segmentation offload in TAP (6.2)")
	}
	const flows, each = 16, 100
	var mu sync.Mutex
	var next [flows]int
	all, total := make(chan struct{}), 0
	b.Attach(func(frames []link.Frame) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range frames {
			if len(f.Data) < 46 || f.Data[12] != 8 || f.Data[36] != 4791>>8 {
				continue
			}
			flow, n := f.Data[35]%flows, int(binary.BigEndian.Uint16(f.Data[42:]))
			if n != next[flow] || f.Segmentation != link.UDP {
				t.Errorf("flow %d: frame %d, segmentation %d; want %d, uncut", flow, n, f.Segmentation, next[flow])
			}
			next[flow] = n + 1
			if total++; total == flows*each {
				close(all)
			}
		}
	})
	a.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			if len(f.Data) > 36 && f.Data[12] == 8 && f.Data[36] == 4791>>8 {
				t.Error("a link received what it sent")
			}
		}
	})
	f := superframe(b.MAC(), a.MAC(), false, 2, 1040)
	for n := range uint16(each) {
		for flow := range byte(flows) {
			f.Data[35] = flow
			binary.BigEndian.PutUint16(f.Data[42:], n)
			if _, err := a.Write([]link.Frame{f}); err != nil {
				t.Fatal(err)
			}
		}
		b.Poll()
	}
	<-all
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, MaxQueues + 1} {
		if _, err := Open("a0", WithQueues(n)); err == nil {
			t.Errorf("%d queues opened", n)
		}
	}
	one := openTAP(t, "c0")
	if _, err := Open("c0", WithQueues(2)); err == nil {
		t.Error("a second program has opened ", one.Name())
	}
}
