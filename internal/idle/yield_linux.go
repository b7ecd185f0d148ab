package idle

import "runtime"

// YieldGoroutines lets other goroutines run before the caller blocks in a raw system call, which
// keeps its P. With GOMAXPROCS above 1 another P runs them, and the call does nothing.
//
// One runtime.Gosched is not enough. On every 61st turn Go's scheduler takes the head of the global
// queue, and that may be the caller itself. The other goroutines would then wait until sysmon
// retakes the P, 10 ms or more later.
func YieldGoroutines() {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
		runtime.Gosched()
	}
}
