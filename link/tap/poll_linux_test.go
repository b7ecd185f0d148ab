package tap

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/internal/link/linktest"
	"github.com/softrnic/softrnic/link"
)

// TestPollingStartsAndStops checks that each frame arrives once, in order and in one call at a
// time, whether the host polls, has just stopped or has never polled. A frame that Poll receives is
// marked Polled.
func TestPollingStartsAndStops(t *testing.T) {
	for _, opts := range [][]Option{{Wait(link.WaitAdaptive)}, {Wait(link.WaitEvent)}, {Wait(link.WaitPoll)}, {NoOffloads()}} {
		inNamespace(t)
		linktest.Bridge(t, "br0", 0)
		a := openTAP(t, "a0", Bridge("br0"))
		b := openTAP(t, "b0", append(opts, Bridge("br0"))...)
		if a.Poll() {
			t.Error("Poll before Attach received something")
		}
		var busy, polling atomic.Bool
		var got, polled atomic.Uint32
		poll := func() {
			polling.Store(true)
			b.Poll()
			polling.Store(false)
		}
		arrived := make(chan uint32, 1)
		b.Attach(func(frames []link.Frame) {
			if busy.Swap(true) {
				t.Error("concurrent calls of the receiver")
			}
			for _, f := range frames {
				if f.Data[12] != 0x88 || f.Data[13] != 0xb5 {
					continue
				}
				n := binary.BigEndian.Uint32(f.Data[14:])
				if n != got.Load() {
					t.Errorf("frame %d, want %d", n, got.Load())
				}
				if f.Polled {
					polled.Add(1)
					if !polling.Load() {
						t.Error("a frame is marked Polled outside of Poll")
					}
				}
				got.Add(1)
				arrived <- n
			}
			busy.Store(false)
		})
		f := linktest.Plain(b.MAC(), a.MAC(), 50, "")
		for i := range uint32(1000) {
			binary.BigEndian.PutUint32(f.Data[14:], i)
			if i%3 == 1 { // polls that end before the frame
				poll()
				poll()
				b.EndPoll()
			}
			if _, err := a.Write([]link.Frame{f}); err != nil {
				t.Fatal(err)
			}
			if i%3 == 2 { // polls that receive the frame, or stop without EndPoll
				for n := uint32(0); n < i%7 && got.Load() == i; n++ {
					poll()
				}
			}
			<-arrived
		}
		if polled.Load() == 0 {
			t.Error("no Poll has received a frame")
		}
		b.Close()
		a.Close()
	}
}

// TestCloseWhilePolled checks that Close returns, and that nothing is received afterwards.
func TestCloseWhilePolled(t *testing.T) {
	inNamespace(t)
	for range 20 {
		a := openTAP(t, "a0")
		var closed atomic.Bool
		a.Attach(func([]link.Frame) {
			if closed.Load() {
				t.Error("received after Close")
			}
		})
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					a.Poll()
				}
			}
		}()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		closed.Store(true)
		if a.Poll() {
			t.Error("Poll after Close received something")
		}
		a.EndPoll()
		close(stop)
		<-done
	}
}
