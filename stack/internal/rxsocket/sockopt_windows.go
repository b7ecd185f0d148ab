package rxsocket

import "golang.org/x/sys/windows"

// setReceiving prepares a socket that will be bound to port 4791.
func setReceiving(fd uintptr, _ bool) error {
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_RCVBUF, SocketBuffer)
	return nil
}
