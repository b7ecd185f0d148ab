package namespace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/softrnic/softrnic/link/ring"
)

// Messages of the program: a byte, and the text of an error.
const (
	directory = 'd' // with a descriptor of the directory for the files, which is empty
	noMount   = 'm' // mounting is not allowed
	failed    = 'f'
)

// longest message; the text of a longer error is cut off.
const longest = 4096

// Outside is the side of softrnic run.
type Outside struct{ conn *net.UnixConn }

// Inside is the side of the program.
type Inside struct{ conn *net.UnixConn }

// NewOutside and NewInside take over a socket of the kind SOCK_SEQPACKET.
func NewOutside(fd int) (Outside, error) {
	conn, err := packetConn(fd)
	return Outside{conn}, err
}

func NewInside(fd int) (Inside, error) {
	conn, err := packetConn(fd)
	return Inside{conn}, err
}

// MountError says why the program may not mount.
type MountError string

func (e MountError) Error() string { return string(e) }

// Directory waits for the directory that the program has mounted. The error is a MountError if it
// may not mount, and io.EOF if it has ended.
func (o Outside) Directory() (*os.File, error) {
	message := make([]byte, longest)
	n, fds, err := ring.Receive(o.conn, message)
	if err != nil {
		return nil, err
	}
	if len(fds) == 1 && n == 1 && message[0] == directory {
		return os.NewFile(uintptr(fds[0]), "files"), nil
	}
	ring.CloseAll(fds)
	return nil, reason(message[:n])
}

// Created says that the files are there, and waits until the program runs or has ended. Its exit
// status then says why.
func (o Outside) Created() error {
	message := make([]byte, longest)
	_, err := o.conn.Write([]byte{0})
	if err != nil {
		return nil
	}
	n, err := o.conn.Read(message)
	if n == 0 || err != nil {
		return nil // exec has closed the socket
	}
	return reason(message[:n])
}

// Close closes the socket. The other side waits no longer.
func (o Outside) Close() error { return o.conn.Close() }
func (i Inside) Close() error  { return i.conn.Close() }

// reason returns the error in a message.
func reason(message []byte) error {
	switch {
	case len(message) == 0:
		return io.EOF
	case message[0] == noMount:
		return MountError(message[1:])
	case message[0] == failed:
		return errors.New(string(message[1:]))
	}
	return fmt.Errorf("the program in the namespace has sent %q", message)
}

// Pass passes the directory, and waits until the files are there.
func (i Inside) Pass(dir *os.File) error {
	if err := ring.Send(i.conn, []byte{directory}, int(dir.Fd())); err != nil {
		return err
	}
	n, err := i.conn.Read(make([]byte, 1))
	if err == nil && n == 0 {
		err = io.EOF
	}
	return err
}

// NoMount and Failed report why the program ends.
func (i Inside) NoMount(err error) { i.report(noMount, err) }
func (i Inside) Failed(err error)  { i.report(failed, err) }

func (i Inside) report(kind byte, err error) {
	text := err.Error()
	_, _ = i.conn.Write(append([]byte{kind}, text[:min(len(text), longest-1)]...))
}

// packetConn makes a descriptor a connection, and closes it.
func packetConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, os.ErrInvalid)
	}
	defer f.Close()
	c, err := net.FileConn(f) // which exec closes
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("descriptor %d is no unix socket: %w", fd, os.ErrInvalid), c.Close())
	}
	return conn, nil
}
