package kernel

import "errors"

// errWouldBlock says that there is nothing to read, or no room, now.
var errWouldBlock = errors.New("kernel: not now")

// writeNow writes nothing: Go's sockets on Windows are overlapped, and have no non-blocking write.
// The goroutine drain writes.
func writeNow(uintptr, []byte) (int, error) { return 0, errWouldBlock }

// readNow reads nothing, for the same reason. The method fill reads.
func readNow(uintptr, []byte) (int, error) { return 0, errWouldBlock }

// fill waits for data, and reads it into have.
func (s *stream) fill() error {
	s.buffer = buffers.Get().(*[pieceBuffer]byte)
	n, err := s.TCPConn.Read(s.buffer[:])
	s.have = s.buffer[:n]
	s.release()
	return err
}
