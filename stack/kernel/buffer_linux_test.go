package kernel_test

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceiveBuffer checks that a stream whose buffer was limited gets Linux's initial buffer back.
// Linux 6.1 does not enlarge a smaller one. Over the loopback interface the window closed after
// each batch, and a transfer waited 200 ms for the next.
func TestReceiveBuffer(t *testing.T) {
	_, y := pair(t)
	raw := must(y.(syscall.Conn).SyscallConn())(t)
	size := func() (n int) {
		if err := raw.Control(func(fd uintptr) { n, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	y.SetReadBuffer(32 << 10)
	if n := size(); n > 32<<10 {
		t.Errorf("limited: the buffer has %d bytes, want 32 KiB", n)
	}
	y.SetReadBuffer(0)
	if n := size(); n < 128<<10 {
		t.Errorf("not limited: the buffer has %d bytes, want 128 KiB", n)
	}
}
