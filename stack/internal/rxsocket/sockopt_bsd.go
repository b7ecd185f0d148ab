//go:build unix && !linux

package rxsocket

import "golang.org/x/sys/unix"

// setReceiving prepares a socket that will be bound to port 4791.
func setReceiving(fd uintptr, _ bool) error {
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, SocketBuffer)
	return nil
}
