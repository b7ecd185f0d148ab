package stacktest

import (
	"net"
	"runtime"
	"testing"
	"time"
)

// IPv6Loopback waits until no other test process of this machine uses UDP port 4791 of ::1, the
// only IPv6 address that every machine has. The test has the port until it ends.
func IPv6Loopback(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	// The kernel removes a socket with an abstract name when its process ends, so nothing is left.
	for range 3000 {
		l, err := net.Listen("unix", "@softrnic-test-ipv6-loopback")
		if err == nil {
			t.Cleanup(func() { l.Close() })
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("another test process has used ::1 for a minute")
}
