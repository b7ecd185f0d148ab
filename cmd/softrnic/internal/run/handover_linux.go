package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/softrnic/softrnic/link/ring"
)

// passDirectory passes a directory to the command outside, which creates the files there and keeps
// them as the devices are. It waits until they are there. fd is a socket, which it closes.
func passDirectory(fd int, path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	conn, err := packetConn(fd)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ring.Send(conn, []byte{0}, int(dir.Fd())); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the command outside has not created the files: %w", err)
	}
	return nil
}

// receiveDirectory returns the directory that the command inside passes. Its path is valid while
// the file is open. The error is io.EOF if the command has ended before, which then says why.
func receiveDirectory(conn *net.UnixConn) (dir *os.File, path string, err error) {
	_, fds, err := ring.Receive(conn, make([]byte, 1))
	if err == nil && len(fds) != 1 {
		err = errors.New("the command in the namespace has passed no directory")
	}
	if err != nil {
		ring.CloseAll(fds)
		return nil, "", err
	}
	path = "/proc/self/fd/" + strconv.Itoa(fds[0])
	return os.NewFile(uintptr(fds[0]), path), path, nil
}

// packetConn makes a descriptor a connection, and closes it.
func packetConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("descriptor %d is no unix socket: %w", fd, os.ErrInvalid), c.Close())
	}
	return conn, nil
}
