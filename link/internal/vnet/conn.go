//go:build linux

package vnet

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/idle"
)

// Conn sends and receives through the descriptors of one medium, its queues. The descriptors are
// not in Go's network poller, which would wake a thread for every frame, even while an application
// polls.
type Conn struct {
	name     string
	mtu      func() int // the present MTU
	bare     bool       // without virtio-net headers
	offloads link.Offloads
	packets  bool // the descriptors are packet sockets with PACKET_AUXDATA
	wait     link.Wait
	queues   []*queue
	stop     event         // set by Close: wakes goroutines that wait for a descriptor
	closing  chan struct{} // closed by Close

	started   atomic.Bool
	closed    atomic.Bool
	err       error         // result of Close
	done      chan struct{} // closed when Close has finished
	poller    idle.Poller
	nextQueue atomic.Uint32 // index of the queue that the next Poll begins with

	writing sync.RWMutex // held for reading by writers; Close locks it to close the descriptors
	senders sync.Pool    // of *sender
}

// NewConn takes ownership of fds, even when it fails. name appears in errors. mtu is called for
// each frame.
func NewConn(fds []int, name string, mtu func() int, o link.Offloads, wait link.Wait) (*Conn, error) {
	return newConn(&Conn{name: name, mtu: mtu, offloads: o, wait: wait}, fds)
}

// NewPacketConn is NewConn for packet sockets with PACKET_AUXDATA.
func NewPacketConn(fds []int, name string, mtu func() int, o link.Offloads, wait link.Wait) (*Conn, error) {
	return newConn(&Conn{name: name, mtu: mtu, offloads: o, packets: true, wait: wait}, fds)
}

// NewBareConn is NewConn for a descriptor whose frames have no virtio-net headers.
func NewBareConn(fd int, name string, mtu func() int, wait link.Wait) (*Conn, error) {
	return newConn(&Conn{name: name, mtu: mtu, bare: true, wait: wait}, []int{fd})
}

func newConn(c *Conn, fds []int) (*Conn, error) {
	c.poller.Init(idle.Device)
	c.stop, c.closing, c.done = noEvent, make(chan struct{}), make(chan struct{})
	c.senders.New = func() any { return newSender(c) }
	for _, fd := range fds {
		c.queues = append(c.queues, newQueue(c, fd))
	}
	err := c.prepare()
	if err != nil {
		_ = c.release()
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return c, nil
}

func (c *Conn) prepare() (err error) {
	if c.stop, err = newEvent(); err != nil {
		return err
	}
	for _, q := range c.queues {
		if err := unix.SetNonblock(q.fd, true); err != nil {
			return err
		}
	}
	return nil
}

// release closes all descriptors.
func (c *Conn) release() error {
	var first error
	for _, q := range c.queues {
		if err := unix.Close(q.fd); err != nil && first == nil {
			first = fmt.Errorf("%s: %w", c.name, err)
		}
	}
	c.stop.close()
	return first
}

// Name is NewConn's name.
func (c *Conn) Name() string { return c.name }

// Offloads are NewConn's offloads.
func (c *Conn) Offloads() link.Offloads { return c.offloads }

// Attach starts a receiving goroutine for each queue.
func (c *Conn) Attach(recv link.Receiver) {
	if c.started.Swap(true) {
		if c.closed.Load() {
			return
		}
		panic(c.name + ": Attach called twice: a link serves one host")
	}
	for _, q := range c.queues {
		q.start(recv)
	}
}

// Poll implements link.Poller.
func (c *Conn) Poll() bool {
	any, first := false, 0
	if len(c.queues) > 1 {
		first = int(c.nextQueue.Add(1))
	}
	for i := range c.queues {
		any = c.queues[(first+i)%len(c.queues)].poll() || any
	}
	if any {
		c.poller.Found()
	} else {
		c.poller.Empty()
	}
	return any
}

// EndPoll implements link.Poller.
func (c *Conn) EndPoll() {
	for _, q := range c.queues {
		q.endPoll()
	}
}

// Close stops reception and closes the descriptors.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		<-c.done
		return c.err
	}
	close(c.closing)
	c.stop.set()
	started := c.started.Swap(true)
	for _, q := range c.queues {
		if started {
			<-q.done
		}
		q.mu.Lock() // no poller receives any more
		q.recv = nil
		q.mu.Unlock()
	}
	c.writing.Lock()
	c.err = c.release()
	c.writing.Unlock()
	close(c.done)
	return c.err
}

// Write implements link.Link. It waits while the kernel's send buffer is full. Frames that the
// kernel's queues drop are lost.
func (c *Conn) Write(frames []link.Frame) (int, error) {
	c.writing.RLock()
	defer c.writing.RUnlock()
	if c.closed.Load() {
		return 0, fmt.Errorf("%s: %w", c.name, net.ErrClosed)
	}
	s := c.senders.Get().(*sender)
	defer c.senders.Put(s)
	for i := range frames {
		f := &frames[i]
		if err := f.Validate(c.mtu(), c.offloads); err != nil {
			return i, fmt.Errorf("%s: %w", c.name, err)
		}
		if err := s.writeFrame(f); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}
