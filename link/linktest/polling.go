package linktest

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link"
)

// PollingLink is a link whose host can poll.
type PollingLink interface {
	link.Link
	link.Poller
}

// Polling checks that each of n frames from a to b arrives once, in order and in one call at a
// time. b's host polls, has just stopped, or has never polled. A frame that Poll receives is marked
// Polled.
func Polling(t *testing.T, a, b PollingLink, n uint32) {
	t.Helper()
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
			if binary.BigEndian.Uint16(f.Data[12:]) != etherType {
				continue
			}
			i := binary.BigEndian.Uint32(f.Data[14:])
			if i != got.Load() {
				t.Errorf("frame %d, want %d", i, got.Load())
			}
			if f.Polled {
				polled.Add(1)
				if !polling.Load() {
					t.Error("a frame is marked Polled outside of Poll")
				}
			}
			got.Add(1)
			arrived <- i
		}
		busy.Store(false)
	})
	f := Plain(b.MAC(), a.MAC(), 50, "")
	for i := range n {
		binary.BigEndian.PutUint32(f.Data[14:], i)
		if i%3 == 1 { // polls that end before the frame
			poll()
			poll()
			b.EndPoll()
		}
		if sent, err := a.Write([]link.Frame{f}); sent != 1 || err != nil {
			t.Fatal(sent, err)
		}
		if i%3 == 2 { // polls that receive the frame, or stop without EndPoll
			for k := uint32(0); k < i%7 && got.Load() == i; k++ {
				poll()
			}
		}
		<-arrived
	}
	if polled.Load() == 0 {
		t.Error("no Poll has received a frame")
	}
}

// CloseWhilePolled closes l while a goroutine polls it. Before that it calls send, which may send
// frames to l. Close must return, and nothing may be received afterwards.
func CloseWhilePolled(t *testing.T, l PollingLink, send func()) {
	t.Helper()
	var closed atomic.Bool
	l.Attach(func([]link.Frame) {
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
				l.Poll()
			}
		}
	}()
	send()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	closed.Store(true)
	if l.Poll() {
		t.Error("Poll after Close received something")
	}
	l.EndPoll()
	close(stop)
	<-done
}
