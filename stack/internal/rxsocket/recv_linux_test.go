package rxsocket

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// pollingReceiver is a Receiver of a program that polls until polls is set to false.
type pollingReceiver struct {
	polled atomic.Bool
	asked  chan struct{} // Run has called Polling
	got    chan bool     // whether the datagram was polled
}

func (r *pollingReceiver) Polling() bool {
	defer func() {
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}()
	return r.polled.Load()
}

func (r *pollingReceiver) Deliver(_ *Arrival, polled bool) { r.got <- polled }

// send sends a byte to a socket.
func send(t *testing.T, s *Socket) {
	t.Helper()
	c, err := net.Dial("udp", netip.AddrPortFrom(s.addr, stack.RoCEPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
}

// TestEndPoll checks that Run, which pauses while an application polls, receives again at EndPoll,
// before its next check.
func TestEndPoll(t *testing.T) {
	was := pauseTime
	pauseTime = time.Hour
	defer func() { pauseTime = was }()
	r := &pollingReceiver{asked: make(chan struct{}, 1), got: make(chan bool, 1)}
	r.polled.Store(true)
	at := netip.MustParseAddr("127.14.9.1")
	s, err := Open(at, "", r)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { s.Run(); close(ended) }()
	<-r.asked
	send(t, s)
	r.polled.Store(false)
	s.EndPoll()
	select {
	case polled := <-r.got:
		if polled {
			t.Error("the datagram is marked polled without a poll")
		}
	case <-time.After(20 * time.Second):
		t.Error("Run did not receive again")
	}
	s.Close()
	<-ended
}
