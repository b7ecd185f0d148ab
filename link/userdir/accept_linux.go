package userdir

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Accept accepts connections and passes them to handle, until the listener is closed.
func Accept(l *net.UnixListener, handle func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(100 * time.Millisecond) // the process may be out of descriptors
		default:
			handle(conn)
		}
	}
}

// Credentials returns the credentials that the peer process had when it connected or began to
// listen. The process ID is 0 if the peer is in another PID namespace.
func Credentials(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, failed)
}
