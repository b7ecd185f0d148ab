package inlet

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// awayWhile is a Receiver of a program that polls, until it is told otherwise.
type awayWhile struct {
	polled atomic.Bool
	asked  chan struct{} // Run has asked whether it is so
	got    chan bool     // whether what came was polled
}

func (r *awayWhile) Polled() bool {
	defer func() {
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}()
	return r.polled.Load()
}

func (r *awayWhile) Deliver(_ *Arrival, polled bool) { r.got <- polled }

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

// TestEndPoll: Run, which stays away while somebody polls, comes back at EndPoll, and not only when it looks again.
func TestEndPoll(t *testing.T) {
	was := awayFor
	awayFor = time.Hour
	defer func() { awayFor = was }()
	r := &awayWhile{asked: make(chan struct{}, 1), got: make(chan bool, 1)}
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
			t.Error("it was polled, by nobody")
		}
	case <-time.After(20 * time.Second):
		t.Error("Run did not come back")
	}
	s.Close()
	<-ended
}
