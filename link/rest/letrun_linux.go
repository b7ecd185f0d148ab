package rest

import "runtime"

// LetRun is called before a goroutine waits in a system call, which keeps its processor. Where there is one processor it lets
// other goroutines run; with more, another processor runs them. One runtime.Gosched is not enough: once in 61 turns Go's
// scheduler takes who has waited longest for any processor, which may be who asks. The others would wait then until the
// scheduler notices that its processor does nothing, 10 ms and more later.
func LetRun() {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
		runtime.Gosched()
	}
}
