package idle

import (
	"runtime"
	"sync/atomic"
)

// DirectWait is the sockets of a program that does little but receive, and needs low latency. Each
// waits for its next datagram in the kernel, without telling Go's scheduler. That saves four system
// calls of the scheduler, and the thread that it wakes, for each datagram. On one processor these
// are most of a datagram's cost. In exchange the waiting socket occupies a P. One P is therefore
// always left to other goroutines, except for the only socket of a program with one P; then other
// goroutines run after each reception.
type DirectWait struct {
	sockets, waiting atomic.Int32
}

// Add adds n sockets.
func (d *DirectWait) Add(n int32) { d.sockets.Add(n) }

// Begin reserves a P for a socket that waits, if one is free.
// If it returns true, the caller calls End after the wait.
func (d *DirectWait) Begin() bool {
	spare := int32(runtime.GOMAXPROCS(0)) - 1
	if d.sockets.Load() == 1 {
		spare = max(spare, 1)
	}
	if d.waiting.Add(1) > spare {
		d.waiting.Add(-1)
		return false
	}
	return true
}

// End ends a wait.
func (d *DirectWait) End() { d.waiting.Add(-1) }
