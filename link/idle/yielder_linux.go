package idle

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Yielder lets goroutines run that wait for a socket, while an application polls with GOMAXPROCS 1.
// Go's scheduler checks the network poller only when no goroutine is runnable, or after 10 ms, and
// a polling goroutine is always runnable. The Yielder therefore waits, too, for a file that is
// ready at once. Methods may be called from any goroutine. The zero value is ready for use.
type Yielder struct {
	empty atomic.Uint32 // polls that found nothing

	mu     sync.Mutex // guards the fields below; held by the waiting poller
	file   *os.File   // an eventfd; nil before the first wait, and after it could not be made
	raw    syscall.RawConn
	await  func(fd uintptr) bool // made once, because a closure allocates
	failed bool                  // or closed
	ready  bool                  // the eventfd
}

// EmptyPoll is called by a poll that has found nothing.
func (y *Yielder) EmptyPoll() {
	if runtime.GOMAXPROCS(0) > 1 || y.empty.Add(1)%pollsPerSocketYield != 0 || !y.mu.TryLock() {
		return
	}
	defer y.mu.Unlock()
	if y.file == nil && !y.open() {
		return
	}
	_ = y.raw.Read(y.await)
}

// wait is called once before the wait and once after it.
func (y *Yielder) wait(fd uintptr) (done bool) {
	count := [8]byte{1}
	if y.ready {
		_, _ = unix.Read(int(fd), count[:])
		y.ready = false
		return true
	}
	_, err := unix.Write(int(fd), count[:])
	y.ready = err == nil
	return err != nil
}

// open creates the file. y.mu is held.
func (y *Yielder) open() bool {
	if y.failed {
		return false
	}
	y.failed = true
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	if y.raw, err = f.SyscallConn(); err != nil {
		_ = f.Close()
		return false
	}
	y.file, y.await, y.failed = f, y.wait, false
	return true
}

// Close releases the file. Later calls of EmptyPoll do nothing.
func (y *Yielder) Close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.failed = true; y.file != nil {
		_ = y.file.Close()
		y.file = nil
	}
}
