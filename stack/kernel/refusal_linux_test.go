package kernel

import (
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// TestRefusedSuperframes checks that if the kernel claims to cut superframes and then refuses them,
// one superframe is lost and later datagrams are sent singly. Exceeding the path's MTU changes
// nothing.
func TestRefusedSuperframes(t *testing.T) {
	real := sendmmsg
	defer func() { sendmmsg = real }()
	for _, c := range []struct {
		name            string
		superframe, one syscall.Errno // the kernel's answers
		off             bool
		sent, errors    uint64 // of four datagrams in a superframe, and a single one
	}{
		{"no checksums in the device", unix.EIO, 0, true, 1, 1},
		{"no such option", unix.EINVAL, 0, true, 2, 1},
		{"longer than the path's MTU", unix.EINVAL, unix.EMSGSIZE, false, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			sendmmsg = real
			h, err := New(&Config{Interface: "lo", Addrs: []string{"127.17.0.1"}})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			port := h.nic.port
			if !port.segments.Load() {
				t.Skip("this kernel does not support superframes")
			}
			came := make(chan int, 100)
			port.Receive(func(d *stack.Datagram) {
				for {
					b, ok := d.Next()
					if !ok {
						return
					}
					came <- len(b)
				}
			})
			sendmmsg = func(fd uintptr, first *mmsghdr, n int) (int, syscall.Errno) {
				errno := c.one
				if int(first.hdr.Controllen) > unix.CmsgSpace(4)*2 {
					errno = c.superframe
				}
				if errno != 0 {
					return -1, errno
				}
				return real(fd, first, 1)
			}
			a := netip.MustParseAddr("127.17.0.1")
			p, err := port.Path(stack.PathAttr{Src: a, Dst: a})
			if err != nil {
				t.Fatal(err)
			}
			send := func(sizes ...int) {
				s := port.Sender()
				for _, n := range sizes {
					_, b := s.Datagram(p, n)
					clear(b)
				}
				s.Flush()
			}
			// A superframe with a shorter last datagram, and a single datagram.
			send(100, 100, 100, 100, 50, 200)
			k := h.nic.Counters()
			if port.segments.Load() == c.off || k.TxErrors != c.errors || k.TxDatagrams != c.sent {
				t.Errorf("superframes: %t; %d datagrams sent, %d errors, want %d, %d",
					port.segments.Load(), k.TxDatagrams, k.TxErrors, c.sent, c.errors)
			}
			if n := p.Batch(100); (n == 1) != c.off {
				t.Errorf("Batch returns %d", n)
			}
			if !c.off {
				return
			}
			send(100, 100, 100)
			if k := h.nic.Counters(); k.TxDatagrams != c.sent+3 || k.TxErrors != c.errors {
				t.Errorf("then %d datagrams sent, %d errors", k.TxDatagrams-c.sent, k.TxErrors-c.errors)
			}
			var got []int
			for range c.sent + 3 {
				got = append(got, <-came)
			}
			if n := len(got); got[n-1] != 100 || got[n-4] != 200 {
				t.Errorf("datagrams of %v bytes arrived", got)
			}
		})
	}
}

// TestFullSocket checks that a full socket delays senders for a bounded time. Refused datagrams are
// lost and counted, with several waiting senders too. Sending works again once the socket has room.
func TestFullSocket(t *testing.T) {
	real := sendmmsg
	defer func() { sendmmsg = real }()
	h, err := New(&Config{Interface: "lo", Addrs: []string{"127.17.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	port := h.nic.port
	a := netip.MustParseAddr("127.17.0.1")
	p, err := port.Path(stack.PathAttr{Src: a, Dst: a})
	if err != nil {
		t.Fatal(err)
	}
	var full atomic.Bool
	sendmmsg = func(fd uintptr, first *mmsghdr, n int) (int, syscall.Errno) {
		if full.Load() {
			return -1, unix.EAGAIN
		}
		return real(fd, first, n)
	}
	send := func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := port.Sender()
			_, b := s.Datagram(p, 100)
			clear(b)
			s.Flush()
		}()
		return done
	}
	const senders = 20
	for round := range uint64(2) {
		full.Store(true)
		var all []<-chan struct{}
		for range senders {
			all = append(all, send())
		}
		give := time.After(10 * time.Second) // less than 20 times one sender's wait
		for i, done := range all {
			select {
			case <-done:
			case <-give:
				t.Fatalf("sender %d is still waiting", i)
			}
		}
		if n := h.nic.Counters().TxErrors; n != senders*(round+1) {
			t.Errorf("%d datagrams are counted as lost, want %d", n, senders*(round+1))
		}
		full.Store(false)
		for range 2 {
			<-send()
		}
		if n := h.nic.Counters().TxDatagrams; n != 2*(round+1) {
			t.Errorf("%d datagrams were sent, want %d", n, 2*(round+1))
		}
	}
}
