package userdir

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Accept hands the connections to a listener to greet, until the listener is closed.
func Accept(l *net.UnixListener, greet func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(100 * time.Millisecond) // all descriptors may be used up
		default:
			greet(conn)
		}
	}
}

// Credentials are those of the process that was the other side of a connection when it began, or began to listen. The process ID
// is 0 if it is in another PID namespace.
func Credentials(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, failed)
}
