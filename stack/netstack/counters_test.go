//go:build amd64 || arm64

package netstack

import (
	"runtime"
	"testing"
	"unsafe"
)

// Different flows are received, and counted, in different cache lines, and have their IPv4 IDs in different ones.
func TestFlowsShareNoCacheLine(t *testing.T) {
	const line = 64
	var p port
	var l lane
	var c tally
	for what, o := range map[string]struct{ size, used uintptr }{
		"lane":  {unsafe.Sizeof(p.lanes[0]), unsafe.Offsetof(l.d) + unsafe.Sizeof(l.d)},
		"tally": {unsafe.Sizeof(p.sent[0]), unsafe.Sizeof(c.counters)},
	} {
		if o.size-o.used < line { // wherever the first of them lies
			t.Errorf("a %s uses %d of %d bytes: less than a cache line is between two", what, o.used, o.size)
		}
	}
	owners := make(map[uintptr]int)
	kept := make([]*path, 100)
	for i := range kept {
		kept[i] = new(path)
		at := uintptr(unsafe.Pointer(kept[i]))
		for l := at / line; l <= (at+unsafe.Sizeof(path{})-1)/line; l++ {
			if owner, taken := owners[l]; taken {
				t.Fatalf("paths of %d bytes: %d and %d share a cache line", unsafe.Sizeof(path{}), owner, i)
			}
			owners[l] = i
		}
	}
	runtime.KeepAlive(kept)
}
