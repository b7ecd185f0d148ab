package inlet

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/idle"
)

// eagerness is how long an eager socket waits after a datagram before it lets Go's scheduler wait. It sleeps meanwhile.
const eagerness = 2 * time.Millisecond

// Eager is the sockets of a program that does little but receive, and is in a hurry: [Socket.RunEager] waits for a while for the next
// datagram itself, in the kernel, without telling Go's scheduler. That saves the scheduler's four system calls and the thread that
// it wakes for each datagram that is waited for, which on one processor are most of the time that a datagram takes. The price is
// a processor (a P of Go's) that runs no other goroutine meanwhile. So one processor is always left to others, unless this is the
// only socket of a program that has only one: then other goroutines run when something was received.
type Eager struct {
	sockets, waiting atomic.Int32
}

// RunEager is Run as one of e's sockets.
func (s *Socket) RunEager(e *Eager) {
	e.sockets.Add(1)
	defer e.sockets.Add(-1)
	s.batch.eager = e
	s.Run()
}

// await waits for a datagram; false if none came soon, or others need the processor.
func (e *Eager) await(fd uintptr) bool {
	if e == nil || !e.begin() {
		return false
	}
	defer e.waiting.Add(-1)
	runtime.Gosched()
	idle.YieldGoroutines()
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	atMost := unix.NsecToTimespec(int64(eagerness))
	// A signal ends the call, which is how Go stops a thread, for the garbage collector too.
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&atMost)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

// begin takes a processor, if there is one to take. waiting is to be decremented then.
func (e *Eager) begin() bool {
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
