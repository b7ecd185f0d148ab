package rest

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestLetRun: on one processor, who can run has run, each time.
func TestLetRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Int32
	for asked := int32(1); asked <= 1000; asked++ {
		go ran.Add(1)
		if LetRun(); ran.Load() != asked {
			t.Fatalf("%d goroutines could run, and %d have", asked, ran.Load())
		}
	}
}
