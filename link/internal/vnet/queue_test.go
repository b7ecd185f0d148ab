//go:build linux

package vnet

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// TestFullArena: what ends in the last bytes of the arena, or fills it, is too long to be a frame, and harms nothing.
func TestFullArena(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fds[1]) }()
	c, err := NewBareConn(fds[0], "pair", func() int { return 1500 }, link.WaitEvent)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	lengths := make(chan int, 8)
	c.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			lengths <- len(f.Data)
		}
	})
	for _, n := range []int{arenaLen - 1, arenaLen, arenaLen + 1} {
		if err := unix.Sendto(fds[1], make([]byte, n), 0, nil); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendto(fds[1], make([]byte, 60), 0, nil); err != nil {
			t.Fatal(err)
		}
		for got := 0; got != 60; {
			got = <-lengths
		}
	}
}
