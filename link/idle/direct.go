package idle

import (
	"runtime"
	"sync/atomic"
)

// DirectWait has the sockets of a program that mostly receives, and needs low latency. Each socket
// waits for its next datagram in the kernel, without telling Go's scheduler. For each datagram this
// saves four system calls of the scheduler, and waking a thread. On one processor these are most of
// a datagram's cost. But the waiting socket occupies a P. One P is therefore always left to other
// goroutines. If a program has one socket and one P, the socket takes the P, and other goroutines
// run after each reception.
type DirectWait struct {
	sockets, waiting atomic.Int32
}

// Add adds n sockets.
func (d *DirectWait) Add(n int32) { d.sockets.Add(n) }

// Begin reserves a P for a socket that waits, if one is free. If it returns true, the caller must
// call End after the wait.
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
