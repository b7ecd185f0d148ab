//go:build amd64 || arm64

package netstack

import (
	"testing"
	"unsafe"
)

// Different flows are received, and counted, in different cache lines.
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
}
