package rxsocket

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/idle"
)

// RunDirectWait is Run for one of d's sockets: it waits for datagrams in the kernel when d allows
// that.
func (s *Socket) RunDirectWait(d *idle.DirectWait) {
	d.Add(1)
	defer d.Add(-1)
	s.batch.direct = d
	s.Run()
}

// awaitDirectly waits for a datagram in the kernel. It returns false if none arrived in time, or if
// other goroutines need the P.
func awaitDirectly(d *idle.DirectWait, fd uintptr) bool {
	if !d.Begin() {
		return false
	}
	defer d.End()
	runtime.Gosched()
	idle.YieldBeforeSleep()
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	atMost := unix.NsecToTimespec(int64(idle.DirectWaitTime))
	// A signal ends the call. Go stops threads by signals, for example for garbage collection.
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&atMost)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}
