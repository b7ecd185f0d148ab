//go:build linux

package vnet

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/idle"
)

// pair returns a link over a socket pair, and the other end.
func pair(t *testing.T, wait link.Wait) (c *Conn, far int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	if c, err = NewBareConn(fds[0], "pair", func() int { return 1500 }, wait); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, fds[1]
}

// TestWaits checks that link.Wait has the values of idle.Wait, to which it is converted.
func TestWaits(t *testing.T) {
	for w, want := range map[link.Wait]idle.Wait{
		link.WaitAdaptive: idle.WaitAdaptive, link.WaitEvent: idle.WaitEvent, link.WaitPoll: idle.WaitPoll,
	} {
		if idle.Wait(w) != want {
			t.Errorf("link.Wait %d is idle.Wait %d", w, want)
		}
	}
}

// TestFullArena checks a read that fills the arena, or ends in its last bytes. The data is too long
// to be a frame, and does no harm.
func TestFullArena(t *testing.T) {
	c, far := pair(t, link.WaitEvent)
	lengths := make(chan int, 8)
	c.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			lengths <- len(f.Data)
		}
	})
	for _, n := range []int{arenaLen - 1, arenaLen, arenaLen + 1} {
		if err := unix.Sendto(far, make([]byte, n), 0, nil); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendto(far, make([]byte, 60), 0, nil); err != nil {
			t.Fatal(err)
		}
		for got := 0; got != 60; {
			got = <-lengths
		}
	}
}
