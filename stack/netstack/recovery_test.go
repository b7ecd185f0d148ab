package netstack_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

// fullQueue is a link whose queue is full once: it loses what is sent behind an offset, as a switch
// does whose process has no processor for a while, until something comes again. It has no offloads,
// and the other host's link must have none either.
type fullQueue struct {
	link.Link
	from uint32 // the offset in the stream of data, bytes

	mu          sync.Mutex
	began       bool
	first, next uint32 // sequence numbers
	lost        int
	over        bool
}

func (*fullQueue) Offloads() link.Offloads { return link.Offloads{} }

func (l *fullQueue) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if l.loses(&frames[i]) {
			continue
		}
		if _, err := l.Link.Write(frames[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

func (l *fullQueue) loses(f *link.Frame) bool {
	const before = link.EthernetHeaderLen + header.IPv4MinimumSize
	b := f.Data
	if len(b) < before+header.TCPMinimumSize || header.Ethernet(b).Type() != header.IPv4ProtocolNumber {
		return false
	}
	tcp := header.TCP(b[before:])
	n := uint32(f.Len() - before - int(tcp.DataOffset()))
	if n == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := tcp.SequenceNumber()
	if !l.began {
		l.began, l.first, l.next = true, seq, seq
	}
	if int32(seq-l.next) < 0 { // it comes again
		l.over = l.over || l.lost > 0
		return false
	}
	if l.next = seq + n; l.over || l.next-l.first <= l.from {
		return false
	}
	l.lost++
	return true
}

// TestLostTail checks that TCP soon recovers what a full queue has lost, of whatever size. gVisor's
// RACK recovers two segments in each retransmission timeout. These would take 15 s or more, and
// the connection would be given up after UserTimeout though data is acknowledged all the time.
func TestLostTail(t *testing.T) {
	t.Parallel()
	const enough = 150
	for attempts := 1; ; attempts++ {
		lost := lostTail(t)
		if lost >= enough {
			return
		}
		if attempts == 20 { // a sender that has paused begins with a small window
			t.Fatalf("%d segments were lost, want %d: the test shows nothing", lost, enough)
		}
	}
}

// lostTail sends data of which the end is lost once, and returns how many segments were lost.
func lostTail(t *testing.T) int {
	t.Helper()
	const passes, tail = 4 << 20, 2 << 20
	lan, err := pipe.New(&pipe.Config{MTU: 4200})
	if err != nil {
		t.Fatal(err)
	}
	l := &fullQueue{Link: lan.Port(), from: passes}
	a, b := streamsOn(t, l, bare{lan.Port()}, &netstack.Config{TCP: netstack.TCPConfig{SendBuffer: 8 << 20}})
	wrote := make(chan error, 1)
	go func() {
		_, err := a.Write(zeros[:passes+tail])
		wrote <- err
	}()
	if err := b.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyN(io.Discard, b, passes+tail)
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if err != nil {
		t.Fatalf("after %d bytes, and %d lost segments: %v", n, lost, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	return lost
}
