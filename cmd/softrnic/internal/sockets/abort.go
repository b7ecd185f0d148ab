//go:build linux

package sockets

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// A Unix socket ends, but has no reset (SO_LINGER with a time of 0). Agents tell each other over
// RDMA whether the end of a direct connection is a reset. The peer's library then asks its agent
// when a stream ends.

// Bytes on the connection over RDMA of a direct connection.
const (
	aborts       = 'A' // from now on the end of the stream is a reset
	ends         = 'E' // from now on it is not
	acknowledged = 'K'
)

// ackTimeout is how long an agent waits until the other one knows how the stream will end.
const ackTimeout = time.Second

// link is the connection over RDMA of a direct connection.
type link struct {
	rdma       net.Conn
	peerAborts atomic.Bool
	acked      chan struct{}
	telling    sync.Mutex
}

// newLink starts to read what the other agent tells. It ends when the connection is closed.
func (a *Agent) newLink(rdma net.Conn) *link {
	l := &link{rdma: rdma, acked: make(chan struct{}, 1)}
	a.work.Go(func() {
		defer context.AfterFunc(a.ctx, func() { relay.Abort(rdma) })()
		var b [1]byte
		for {
			if _, err := io.ReadFull(rdma, b[:]); err != nil {
				return
			}
			switch b[0] {
			case aborts, ends:
				l.peerAborts.Store(b[0] == aborts)
				_, _ = rdma.Write([]byte{acknowledged}) // without it, the peer only waits longer
			case acknowledged:
				select {
				case l.acked <- struct{}{}:
				default:
				}
			}
		}
	})
	return l
}

// tell tells the other agent how the stream will end, and waits until it knows.
func (l *link) tell(ctx context.Context, abort bool) {
	l.telling.Lock()
	defer l.telling.Unlock()
	select {
	case <-l.acked: // of a call that has not waited for it
	default:
	}
	b := byte(ends)
	if abort {
		b = aborts
	}
	// A peer that stands still may leave no room to write.
	_ = l.rdma.SetWriteDeadline(time.Now().Add(ackTimeout))
	_, err := l.rdma.Write([]byte{b})
	_ = l.rdma.SetWriteDeadline(time.Time{})
	if err != nil {
		return
	}
	select {
	case <-l.acked:
	case <-time.After(ackTimeout):
	case <-ctx.Done():
	}
}

// unixEnd is an end of a pair that the agent has. Its resets are known to the other end's library.
type unixEnd struct {
	*net.UnixConn
	aborts func() bool // whether the other end is reset when it closes
	abort  func()      // called before this end is closed by a reset
}

// newUnixEnd makes a connection of a further descriptor of an end.
func (a *Agent) newUnixEnd(end int, aborts func() bool, abort func()) (*unixEnd, error) {
	fd, err := dup(end)
	if err != nil {
		return nil, err
	}
	c, err := unixConn(fd)
	return &unixEnd{c, aborts, abort}, err
}

// unixConn makes a connection of a Unix socket, whose descriptor it closes.
func unixConn(socket int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(socket), "direct")
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("an end is no Unix socket")
	}
	return u, nil
}

// Read is as of a TCP connection.
func (u *unixEnd) Read(b []byte) (int, error) {
	n, err := u.UnixConn.Read(b)
	if errors.Is(err, io.EOF) && u.aborts() {
		err = syscall.ECONNRESET
	}
	return n, err
}

// Abort closes the end so that the other end gets an error.
func (u *unixEnd) Abort() error {
	u.abort()
	return u.Close()
}

// descriptors returns those in a control message.
func descriptors(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		if some, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds, err
}
