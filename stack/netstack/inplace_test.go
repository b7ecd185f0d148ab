package netstack_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// limitedLink is a link.InPlace that has room for every second frame, and records the order of the
// frames of datagrams. A host also sends others, such as reports of multicast groups, when it
// likes.
type limitedLink struct {
	link.Link
	mu     sync.Mutex // gVisor resolves addresses on other goroutines
	tries  int
	frames []string
}

// reset clears the record, and noted returns it.
func (n *limitedLink) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tries, n.frames = 0, nil
}

// tried reports whether a frame was to be placed.
func (n *limitedLink) tried() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tries > 0
}

func (n *limitedLink) noted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.frames)
}

func (n *limitedLink) AllowInPlace() {}

func (n *limitedLink) Backlog([6]byte) int { return 0 }

func (n *limitedLink) Reserve(_ [6]byte, size int) link.Reservation {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tries++; n.tries%2 == 1 {
		return link.Reservation{}
	}
	n.frames = append(n.frames, "placed")
	return link.Reservation{Data: make([]byte, size), Owner: n}
}

func (n *limitedLink) Commit(uint64, *link.Frame, int) {}

func (n *limitedLink) Write(frames []link.Frame) (int, error) {
	n.mu.Lock()
	for i := range frames {
		if datagram(&frames[i]) {
			n.frames = append(n.frames, "written")
		}
	}
	n.mu.Unlock()
	return n.Link.Write(frames)
}

// TestInPlaceOrder checks the order of two frames, of which only the second fits into the
// receiver's memory. It must not overtake the first.
func TestInPlaceOrder(t *testing.T) {
	lan := new(pipe.Switch)
	out := &limitedLink{Link: lan.Port()}
	h := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	peer := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	resolved := make(chan bool, 100)
	peer.NICs()[0].Datagrams().Receive(func(*stack.Datagram) { resolved <- true })
	p := newPath(t, h, stack.PathAttr{Src: a4, Dst: b4})
	// The neighbour's address is known to senders only after what has waited for it is sent.
	for late := time.After(20 * time.Second); !out.tried(); {
		send(t, h, p, 1)
		select {
		case <-resolved:
		case <-late:
			t.Fatal("the neighbour is not known")
		}
	}
	out.reset()
	s := h.NICs()[0].Datagrams().Sender()
	// Each begins a frame, as none may be longer than those before it.
	for _, size := range []int{1000, 1040, 1000, 1040} {
		if _, payload := s.Datagram(p, size); payload == nil {
			t.Fatal("no datagram")
		}
	}
	s.Flush()
	// The third shares the second's frame.
	if want := []string{"written", "placed", "written"}; !slices.Equal(out.noted(), want) {
		t.Errorf("%q, want %q", out.noted(), want)
	}
}

// datagram reports whether a frame carries UDP over IPv4.
func datagram(f *link.Frame) bool {
	return header.Ethernet(f.Data).Type() == header.IPv4ProtocolNumber && header.IPv4(f.Data[14:]).Protocol() == 17
}
