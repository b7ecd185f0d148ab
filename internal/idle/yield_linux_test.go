package idle

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestYieldGoroutines checks that with one P every runnable goroutine has run when the call
// returns.
func TestYieldGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Int32
	for asked := int32(1); asked <= 1000; asked++ {
		go ran.Add(1)
		if YieldGoroutines(); ran.Load() != asked {
			t.Fatalf("%d goroutines were runnable, and %d have run", asked, ran.Load())
		}
	}
}
