package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// passedTo is the descriptor of the socket through which the command in the namespace passes the
// directory with its files. The command outside keeps them as the devices are.
const passedTo = 3

// passDirectory passes a directory to the command outside.
func passDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	conn, err := packetConn(passedTo)
	if err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(dir.Fd())), nil)
	return errors.Join(err, conn.Close())
}

// receiveDirectory returns the directory that the command inside passes. Its path is valid while
// the file is open.
func receiveDirectory(conn *net.UnixConn) (dir *os.File, path string, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, "", err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, "", fmt.Errorf("the command in the namespace has passed no directory: %w", errors.Join(err, os.ErrInvalid))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
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
