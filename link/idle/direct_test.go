package idle

import (
	"runtime"
	"testing"
)

// TestDirectWait checks that waiting sockets leave a P to others, unless there is
// one socket and one P.
func TestDirectWait(t *testing.T) {
	old := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(old)
	for _, c := range []struct {
		procs          int
		sockets, waits int32
	}{{1, 1, 1}, {1, 2, 0}, {2, 1, 1}, {2, 3, 1}, {3, 3, 2}, {8, 3, 3}} {
		runtime.GOMAXPROCS(c.procs)
		var d DirectWait
		d.Add(c.sockets)
		for range c.sockets {
			d.Begin()
		}
		if got := d.waiting.Load(); got != c.waits {
			t.Errorf("%d processors, %d sockets: %d wait, want %d", c.procs, c.sockets, got, c.waits)
		}
	}
}
