package rxsocket

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// DetachNetpoll returns a duplicate of a socket that is not in Go's network poller, and closes
// conn. The poller would wake a thread of the scheduler for every arrival and every transmission,
// even if no goroutine waits. With few processors that takes time from polling applications. The
// caller waits by other means, and passes MSG_DONTWAIT in each call.
func DetachNetpoll(conn *net.UDPConn) (*os.File, syscall.RawConn, error) {
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
	// Package os adds non-blocking descriptors to the poller.
	if err := unix.SetNonblock(fd, false); err != nil {
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

// epollWaiter lets Go's scheduler wait for a detached socket on demand. It is an epoll instance
// that is in the network poller.
type epollWaiter struct {
	file  *os.File
	raw   syscall.RawConn
	armed bool // it reports the socket, or will
}

func (b *epollWaiter) init(socket syscall.RawConn) error {
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

// arm makes the instance report the socket once, when it has something to receive.
func (b *epollWaiter) arm(fd, socket uintptr) {
	b.armed = true
	_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, int(socket), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT})
}

// disarm reverts arm.
func (b *epollWaiter) disarm(fd uintptr) {
	if b.armed {
		b.armed = false
		var event [1]unix.EpollEvent
		_, _ = unix.EpollWait(int(fd), event[:], 0)
	}
}
