package inlet

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unwatched makes of a socket one that Go's scheduler does not watch. A watched one wakes a thread of the scheduler for whatever comes,
// and whenever something has left, whether anybody waits for that or not: on few processors that takes the time of those who poll. The
// caller waits by other means, and says MSG_DONTWAIT in each call. conn is closed.
func Unwatched(conn *net.UDPConn) (*os.File, syscall.RawConn, error) {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	fd := -1
	if e := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	if err != nil {
		return nil, nil, fmt.Errorf("duplicating a socket: %w", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil { // package os has the scheduler watch those that do not block
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("fcntl: %w", err)
	}
	f := os.NewFile(uintptr(fd), "udp")
	raw, err = f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, raw, nil
}

// bell has Go's scheduler wait for a socket that it does not watch, each time that it is asked to: it is an epoll instance, which
// the scheduler watches.
type bell struct {
	file *os.File
	raw  syscall.RawConn
	set  bool // it rings, or will
}

func (b *bell) init(socket syscall.RawConn) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	if e := socket.Control(func(of uintptr) {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(of), &unix.EpollEvent{Events: unix.EPOLLONESHOT})
	}); e != nil {
		err = e
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	b.file = os.NewFile(uintptr(fd), "epoll")
	b.raw, err = b.file.SyscallConn()
	return err
}

// ring has it ring once, when there is something to receive from the socket.
func (b *bell) ring(fd, socket uintptr) {
	b.set = true
	_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, int(socket), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT})
}

// stop has it ring no longer.
func (b *bell) stop(fd uintptr) {
	if b.set {
		b.set = false
		var event [1]unix.EpollEvent
		_, _ = unix.EpollWait(int(fd), event[:], 0)
	}
}
