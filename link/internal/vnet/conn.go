//go:build linux

package vnet

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// Conn sends and receives through the descriptor, on Go's poller.
type Conn struct {
	name     string
	mtu      int
	offloads link.Offloads
	file     *os.File
	raw      syscall.RawConn

	started atomic.Bool
	closed  atomic.Bool
	done    chan struct{} // closed when the receiving goroutine has ended
	senders sync.Pool     // of *sender
}

// NewConn takes over fd. name goes into errors.
func NewConn(fd int, name string, mtu int, o link.Offloads) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := &Conn{name: name, mtu: mtu, offloads: o, file: os.NewFile(uintptr(fd), name), done: make(chan struct{})}
	raw, err := c.file.SyscallConn()
	if err != nil {
		_ = c.file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.raw = raw
	c.senders.New = func() any { return newSender() }
	return c, nil
}

// Name, MTU and Offloads are what NewConn got.
func (c *Conn) Name() string { return c.name }

// MTU is what NewConn got.
func (c *Conn) MTU() int { return c.mtu }

// Offloads are what NewConn got.
func (c *Conn) Offloads() link.Offloads { return c.offloads }

// Attach starts the receiving goroutine.
func (c *Conn) Attach(recv link.Receiver) {
	if c.started.Swap(true) {
		if c.closed.Load() {
			return
		}
		panic(c.name + ": Attach called twice: a link serves one host")
	}
	go c.receive(recv)
}

// Close stops reception and closes the descriptor.
func (c *Conn) Close() error {
	var err error
	if !c.closed.Swap(true) {
		err = c.file.Close()
		if !c.started.Swap(true) {
			close(c.done)
		}
	}
	<-c.done
	return err
}

// A batch is what can be read at once, as long as there is room for the largest frame.
const (
	largest     = HeaderLen + link.EthernetHeaderLen + link.MaxSuperframe
	arenaLen    = 256 << 10
	batchFrames = 64
)

// receiver reads a batch.
type receiver struct {
	arena  []byte
	frames []link.Frame
	err    error
}

func (c *Conn) receive(recv link.Receiver) {
	defer close(c.done)
	r := &receiver{arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames)}
	read := r.read
	for {
		r.frames, r.err = r.frames[:0], nil
		if err := c.raw.Read(read); err != nil {
			return // closed
		}
		if len(r.frames) > 0 {
			recv(r.frames)
		}
		switch r.err {
		case nil, unix.EAGAIN, unix.EINTR, unix.ENETDOWN, unix.ENOBUFS: // the interface may come up again
		case unix.EINVAL: // a packet socket's answer to one frame whose segmentation has no virtio name
		default:
			return
		}
	}
}

// read takes what is there; false makes the poller wait.
func (r *receiver) read(fd uintptr) bool {
	free := r.arena
	for len(free) >= largest && len(r.frames) < batchFrames {
		n, err := unix.Read(int(fd), free)
		if err != nil {
			if err == unix.EAGAIN && len(r.frames) == 0 {
				return false
			}
			r.err = err
			return true
		}
		if n == 0 {
			r.err = unix.EBADFD
			return true
		}
		var f link.Frame
		if decode(free[:n:n], &f) {
			r.frames = append(r.frames, f)
		}
		free = free[(n+63)&^63:]
	}
	return true
}

// maxPieces is how much of a frame goes to the kernel in pieces: writev takes 1024 in all (UIO_MAXIOV), and a TCP
// superframe of small writes has more.
const maxPieces = 1024 - 2

// sender writes one frame.
type sender struct {
	header [HeaderLen]byte
	iov    []unix.Iovec
	whole  []byte // where a frame of more than maxPieces is put together
	errno  syscall.Errno
	cutter link.Cutter
	// Function values made once: a closure a frame would be an allocation a frame.
	control func(fd uintptr)
	write   func(fd uintptr) bool
}

func newSender() *sender {
	s := new(sender)
	s.control = s.writev
	s.write = func(fd uintptr) bool {
		s.writev(fd)
		return s.errno != unix.EAGAIN
	}
	return s
}

func (s *sender) writev(fd uintptr) {
	for {
		_, _, s.errno = syscall.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&s.iov[0])), uintptr(len(s.iov)))
		if s.errno != unix.EINTR {
			return
		}
	}
}

// Write implements link.Link. It waits where the kernel's send buffer is full; what its queues drop is lost.
func (c *Conn) Write(frames []link.Frame) (int, error) {
	s := c.senders.Get().(*sender)
	defer c.senders.Put(s)
	for i := range frames {
		f := &frames[i]
		if err := f.Validate(c.mtu, c.offloads); err != nil {
			return i, fmt.Errorf("%s: %w", c.name, err)
		}
		if err := c.writeFrame(s, f); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

func (c *Conn) writeFrame(s *sender, f *link.Frame) error {
	err := c.send(s, f)
	if err != nil && f.Segmentation == link.UDP && (s.errno == unix.EINVAL || s.errno == unix.ENOBUFS) {
		// A device, or a kernel before 6.2, that does not carry UDP superframes.
		for p := range s.cutter.Packets(f) {
			if err = c.send(s, &link.Frame{Data: p}); err != nil {
				break
			}
		}
	}
	if err != nil && s.errno == unix.ENOBUFS {
		return nil // the interface's queue was full
	}
	return err
}

func (c *Conn) send(s *sender, f *link.Frame) error {
	encode(&s.header, f)
	s.iov = append(s.iov[:0], iovec(s.header[:]))
	if len(f.More) > maxPieces {
		s.whole = append(s.whole[:0], f.Data...)
		for _, m := range f.More {
			s.whole = append(s.whole, m...)
		}
		s.iov = append(s.iov, iovec(s.whole))
	} else {
		s.iov = append(s.iov, iovec(f.Data))
		for _, m := range f.More {
			if len(m) > 0 {
				s.iov = append(s.iov, iovec(m))
			}
		}
	}
	s.errno = 0
	// Control takes no lock; only a full buffer needs the poller, and writers then queue.
	err := c.raw.Control(s.control)
	if err == nil && s.errno == unix.ENETDOWN {
		err = c.raw.Control(s.control) // the first reports that the interface was down at some time before
	}
	if err == nil && s.errno == unix.EAGAIN {
		err = c.raw.Write(s.write)
	}
	clear(s.iov)
	switch {
	case err != nil && c.closed.Load():
		return fmt.Errorf("%s: %w", c.name, net.ErrClosed)
	case err != nil:
		return fmt.Errorf("%s: %w", c.name, err)
	case s.errno == unix.EIO || s.errno == unix.ENETDOWN:
		return fmt.Errorf("%s is down: have root bring it up: ip link set dev %s up: %w", c.name, c.name, s.errno)
	case s.errno != 0:
		return fmt.Errorf("%s: write of %d bytes: %w", c.name, f.Len(), s.errno)
	}
	return nil
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}
