package kernel

import "errors"

// errNothing says that there is nothing to read, or no room, now.
var errNothing = errors.New("kernel: not now")

// writeNow takes nothing: Go's sockets are overlapped on Windows, and cannot be asked to write without waiting. drain writes.
func writeNow(uintptr, []byte) (int, error) { return 0, errNothing }

// readNow reads nothing, for the same reason: what comes is read by fill.
func readNow(uintptr, []byte) (int, error) { return 0, errNothing }

// fill waits for something to come, and reads it into have.
func (s *stream) fill() error {
	s.buffer = buffers.Get().(*[pieceBuffer]byte)
	n, err := s.TCPConn.Read(s.buffer[:])
	s.have = s.buffer[:n]
	s.release()
	return err
}
