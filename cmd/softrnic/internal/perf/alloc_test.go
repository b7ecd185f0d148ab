//go:build !race

package perf

import (
	"fmt"
	"runtime"
	"testing"
)

// TestPerfAllocatesNothing: the measuring loops and the code below them allocate nothing per
// message. The test does not run with the race detector, which empties sync.Pool on purpose.
func TestPerfAllocatesNothing(t *testing.T) {
	allocations := func(args string, iters int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		runPerf(t, fmt.Sprintf("%s --loopback --iters %d", args, iters))
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	const few, many = 1000, 11000
	for _, args := range []string{"write rate", "send rate", "read rate", "atomic rate", "send lat", "write lat", "read lat"} {
		a, b := allocations(args, few), allocations(args, many)
		if each := (float64(b) - float64(a)) / (many - few); each > 0.1 {
			t.Errorf("%s: %.2f allocations a message", args, each)
		}
	}
}
