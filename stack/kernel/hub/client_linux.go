package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/stack"
)

const (
	// spinTime is how long a client looks for more before it sleeps.
	spinTime = 50 * time.Microsecond
	// controlInterval is how many records a client takes before it looks whether there is a message.
	controlInterval = 256
)

// Client is this process as a client of a hub.
type Client struct {
	cfg     ClientConfig
	numbers stack.Numbers
	secret  secret
	ended   chan struct{} // closed by Close
	up      atomic.Bool

	asking sync.Mutex // one request at a time

	mu       sync.Mutex
	closed   bool
	conn     *net.UnixConn // nil while there is no hub
	number   uint32        // of the last request
	answers  chan answer
	changed  chan struct{} // closed, and replaced, when conn changes
	addrs    map[netip.Addr]string
	services map[stack.Service]int
	outlets  []outletSocket

	receiving sync.Mutex // held while records are taken
	ring      *ring.Consumer
	memory    []byte
	arena     [ring.MaxFrame]byte
	arrival   Arrival
	idle      uint32 // polls that found nothing
}

// outletSocket is a socket that the client sends from.
type outletSocket struct {
	addr netip.Addr
	raw  syscall.RawConn
}

// Join connects to the hub, which it starts if there is none and the config says how. Run is to be called then.
func Join(cfg ClientConfig) (*Client, error) {
	if cfg.Directory == "" {
		cfg.Directory = Directory()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{cfg: cfg, ended: make(chan struct{}), answers: make(chan answer, 1), changed: make(chan struct{}), addrs: map[netip.Addr]string{}, services: map[stack.Service]int{}}
	if err := userdir.Make(cfg.Directory); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	conn, w, err := c.connect()
	if err != nil {
		return nil, fmt.Errorf("hub in %s: %w", cfg.Directory, err)
	}
	c.numbers, c.secret, c.conn = numbers(w.qpnSlot, w.commSlot), w.secret, conn
	c.up.Store(true)
	return c, nil
}

// Running tells whether there is a hub of this user in a directory; "" is that of Directory.
func Running(directory string) bool {
	if directory == "" {
		directory = Directory()
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(directory, socketName), Net: "unixpacket"})
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = credentials(conn)
	return err == nil
}

// Numbers are those that the hub has leased to the client. They never change.
func (c *Client) Numbers() stack.Numbers { return c.numbers }

// Up tells whether there is a hub.
func (c *Client) Up() bool { return c.up.Load() }

// connect finds a hub, or starts one, and says hello.
func (c *Client) connect() (conn *net.UnixConn, w welcome, err error) {
	const (
		interval = 10 * time.Millisecond
		tries    = 500 // for five seconds
		patient  = 100 // tries, before another hub is started: the one that was may have been killed at once
	)
	var started *os.File
	defer func() {
		if started != nil {
			_ = started.Close()
		}
	}()
	for try := 0; ; try++ {
		conn, w, err = c.greet()
		if err == nil || try >= tries || !isAbsent(err) {
			return conn, w, err
		}
		err = nil
		switch {
		case started == nil:
			started, err = c.start()
		case try%patient == 0:
			err = c.cfg.Start(c.cfg.Directory)
		}
		if err != nil {
			return nil, w, fmt.Errorf("a hub is to be started: %w", err)
		}
		select {
		case <-time.After(interval):
		case <-c.ended:
			return nil, w, net.ErrClosed
		}
	}
}

// isAbsent tells whether an error means that there is no hub, or that it has ended just now.
func isAbsent(err error) bool {
	for _, absent := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, errGone} {
		if errors.Is(err, absent) {
			return true
		}
	}
	return false
}

var errGone = errors.New("the hub has hung up")

// start starts a hub unless another client is about to. The file that it returns then is locked until it is closed.
func (c *Client) start() (*os.File, error) {
	if c.cfg.Start == nil {
		return nil, fmt.Errorf("no hub runs: start one with softrnic hub: %w", unix.ENOENT)
	}
	f, err := os.OpenFile(filepath.Join(c.cfg.Directory, startName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil, nil
	}
	if err := c.cfg.Start(c.cfg.Directory); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// greet connects to the hub that there is, and gives it a ring to put records in.
func (c *Client) greet() (_ *net.UnixConn, w welcome, err error) {
	path := filepath.Join(c.cfg.Directory, socketName)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, w, err
	}
	var memory []byte
	defer func() {
		if err != nil {
			_ = conn.Close()
			if memory != nil {
				_ = unix.Munmap(memory)
			}
		}
	}()
	if _, err := credentials(conn); err != nil {
		return nil, w, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, w, err
	}
	fd, memory, err := ring.NewMemory(DefaultRing)
	if err != nil {
		return nil, w, err
	}
	h := hello{ring: DefaultRing, secret: c.secret}
	err = ring.Send(conn, h.encode(), fd)
	_ = unix.Close(fd)
	if err != nil {
		return nil, w, err
	}
	b := make([]byte, maxMessage+1)
	n, err := conn.Read(b)
	if err != nil || n == 0 {
		return nil, w, errors.Join(err, errGone)
	}
	if w, err = decodeWelcome(b[:n]); err != nil {
		return nil, w, err
	}
	if w.err != nil {
		return nil, w, w.err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, w, err
	}
	consumer, err := ring.NewConsumer(memory)
	if err != nil {
		return nil, w, err
	}
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if c.memory != nil {
		_ = unix.Munmap(c.memory)
	}
	c.ring, c.memory = consumer, memory
	return conn, w, nil
}

// Run receives until Close.
func (c *Client) Run() {
	for {
		c.mu.Lock()
		conn := c.conn
		c.mu.Unlock()
		err := c.receiveFrom(conn)
		_ = conn.Close()
		c.drain()
		if c.isClosed() {
			return
		}
		c.cfg.Log.Warn("the hub has gone", "directory", c.cfg.Directory, "error", err)
		c.setConn(nil)
		c.cfg.Changed(false)
		if !c.rejoin() {
			return
		}
	}
}

// rejoin connects to the next hub; false if the client is closed, or has lost its lease.
func (c *Client) rejoin() bool {
	const pause = 100 * time.Millisecond
	for {
		conn, w, err := c.connect()
		switch {
		case err == nil && w.secret == c.secret:
			c.setConn(conn)
			go c.repeat(conn)
			return !c.isClosed()
		case err == nil:
			_ = conn.Close()
			c.cfg.Log.Error("the hub has given this process's numbers up", "directory", c.cfg.Directory)
			c.cfg.Changed(true)
			return false
		case c.isClosed():
			return false
		}
		c.cfg.Log.Debug("no hub yet", "error", err)
		select {
		case <-time.After(pause):
		case <-c.ended:
			return false
		}
	}
}

func (c *Client) setConn(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	c.up.Store(false)
	close(c.changed)
	c.changed = make(chan struct{})
	if c.closed && conn != nil {
		_ = conn.Close()
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// receiveFrom takes records and messages until the connection ends.
func (c *Client) receiveFrom(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	b := make([]byte, maxMessage+1)
	last, deadline := time.Now(), false
	for n := 0; ; {
		polled := c.cfg.Polled()
		if polled || deadline { // who polls says nothing when he ends
			var until time.Time
			if polled {
				until = time.Now().Add(time.Millisecond)
			}
			if err := conn.SetReadDeadline(until); err != nil {
				return err
			}
			deadline = polled
		}
		if !polled {
			taken, err := c.take(false)
			if err != nil {
				return err
			}
			if taken > 0 {
				last = time.Now()
				if n += taken; n >= controlInterval { // else messages would wait for the stream of records to end
					n = 0
					if err := c.look(raw, b); err != nil {
						return err
					}
				}
				runtime.Gosched() // whom the records have woken runs before more are waited for
				continue
			}
			if time.Since(last) < spinTime {
				runtime.Gosched()
				continue
			}
			if !c.sleeps() {
				continue
			}
		}
		m, err := conn.Read(b)
		c.awake()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		case m == 0:
			return errGone
		}
		if err := c.hear(b[:m]); err != nil {
			return err
		}
		last = time.Now()
	}
}

// look takes a message if there is one.
func (c *Client) look(raw syscall.RawConn, b []byte) error {
	n, err := 0, error(nil)
	failed := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return true
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0:
		return errGone
	}
	return c.hear(b[:n])
}

// hear takes in a message of the hub.
func (c *Client) hear(b []byte) error {
	if len(b) == len(bell) {
		return nil
	}
	a, err := decodeAnswer(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.number == c.number {
		select {
		case c.answers <- a:
		default:
		}
	}
	return nil
}

// take hands up to eight records to the receiver, and returns how many.
func (c *Client) take(polled bool) (n int, err error) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	return c.takeLocked(polled)
}

func (c *Client) takeLocked(polled bool) (n int, err error) {
	const most = 8
	for n < most {
		size, err := c.ring.Next()
		if err != nil {
			return n, err
		}
		if size == 0 {
			break
		}
		f := c.ring.Take(c.arena[:])
		c.ring.Release()
		c.arrival = readRecord(f.Data)
		c.cfg.Deliver(&c.arrival, polled)
		n++
	}
	return n, nil
}

// drain takes what a hub has left, which is no more than fits into the ring.
func (c *Client) drain() {
	for range DefaultRing / recordLen {
		if n, err := c.take(false); n == 0 || err != nil {
			return
		}
	}
}

// sleeps has the hub ring from now on; false if there is something already.
func (c *Client) sleeps() bool {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	return c.ring.Sleep()
}

func (c *Client) awake() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.ring.Awake()
}

// Poll receives what has come, on the goroutine of the caller; false if there was nothing, or somebody else receives it.
func (c *Client) Poll() bool {
	if !c.receiving.TryLock() {
		return false
	}
	defer c.receiving.Unlock()
	if c.memory == nil {
		return false
	}
	n, _ := c.takeLocked(true) // Run finds the error out
	if n == 0 {
		c.yield()
	}
	return n > 0
}

// While polls find nothing, another thread, such as the hub's, is let run on this processor once in yieldPolls, and another
// goroutine once in goschedPolls. A look at the ring takes less than either.
const (
	yieldPolls   = 8
	goschedPolls = 4096
)

func (c *Client) yield() {
	switch c.idle++; {
	case c.idle%goschedPolls == 0:
		runtime.Gosched()
	case c.idle%yieldPolls == 0:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// Do calls f while nothing is received.
func (c *Client) Do(f func()) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	f()
}

// Close ends the client. Nothing is received when it returns, if Run was called and has returned.
func (c *Client) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.ended)
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
	c.mu.Unlock()
}

// Free unmaps the ring, after Close and Run have returned.
func (c *Client) Free() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if c.memory != nil {
		_ = unix.Munmap(c.memory)
		c.memory = nil
	}
}
