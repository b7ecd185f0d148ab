package rest

import "runtime"

// Gosched lets the goroutines run that can, before this one waits in the kernel. Where there is one processor, runtime.Gosched
// alone would at times let none run: once in 61 turns Go's scheduler takes who has waited longest for any processor, which
// may be who asks. All others then wait until the scheduler notices that its processor does nothing, 10 ms and more later.
func Gosched() {
	runtime.Gosched()
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
	}
}
