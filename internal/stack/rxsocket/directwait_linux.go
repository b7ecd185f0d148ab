package rxsocket

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/internal/idle"
)

// directWaitTime is how long a socket waits in the kernel after a datagram before it leaves waiting
// to Go's scheduler.
const directWaitTime = 2 * time.Millisecond

// DirectWait is the sockets of a program that does little but receive, and needs low latency.
// [Socket.RunDirectWait] waits for the next datagram in the kernel, without telling Go's scheduler.
// That saves four system calls of the scheduler, and the thread that it wakes, for each datagram.
// On one processor these are most of a datagram's cost. In exchange the waiting socket occupies a
// P. One P is therefore always left to other goroutines, except for the only socket of a program
// with one P; then other goroutines run after each reception.
type DirectWait struct {
	sockets, waiting atomic.Int32
}

// RunDirectWait is Run as one of e's sockets.
func (s *Socket) RunDirectWait(e *DirectWait) {
	e.sockets.Add(1)
	defer e.sockets.Add(-1)
	s.batch.direct = e
	s.Run()
}

// await waits for a datagram. It returns false if none arrived in time, or if other goroutines need
// the P.
func (e *DirectWait) await(fd uintptr) bool {
	if e == nil || !e.begin() {
		return false
	}
	defer e.waiting.Add(-1)
	runtime.Gosched()
	idle.YieldGoroutines()
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	atMost := unix.NsecToTimespec(int64(directWaitTime))
	// A signal ends the call. Go stops threads by signals, for garbage collection too.
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&atMost)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

// begin reserves a P, if one is free. The caller decrements waiting afterwards.
func (e *DirectWait) begin() bool {
	spare := int32(runtime.GOMAXPROCS(0)) - 1
	if e.sockets.Load() == 1 {
		spare = max(spare, 1)
	}
	if e.waiting.Add(1) > spare {
		e.waiting.Add(-1)
		return false
	}
	return true
}
