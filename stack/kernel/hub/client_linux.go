package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/stack"
)

// Client is this process as a client of a hub.
type Client struct {
	cfg     ClientConfig
	numbers stack.Numbers
	secret  secret
	ended   chan struct{} // closed by Close
	up      atomic.Bool
	group   *ring.Group // of the hub's ring, and of those of other clients
	quota   ring.Quota
	work    sync.WaitGroup

	answerTime time.Duration

	asking chan struct{} // full while a request is made: one at a time

	mu       sync.Mutex
	closed   bool
	conn     *net.UnixConn // nil while there is no hub
	hub      *ring.Pair    // with it, whose one ring is the client's; it stays until there is the next
	number   uint32        // of the last request
	answers  chan answer
	changed  chan struct{} // closed, and replaced, when conn or up changes
	addrs    map[netip.Addr]string
	services map[stack.Service]int
	outlets  []outletSocket
	owed     []request // that end something, and which a hub that does not answer has not been told
	neighbours
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
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	c := &Client{cfg: cfg, ended: make(chan struct{}), group: ring.NewGroup(), quota: ring.Quota{Bytes: quotaBytes},
		answerTime: answerTime,
		asking:     make(chan struct{}, 1), answers: make(chan answer, 1), changed: make(chan struct{}), addrs: map[netip.Addr]string{}, services: map[stack.Service]int{}}
	c.neighbours.init()
	c.group.AllowInPlace()
	c.group.SetHub()
	if err := userdir.Make(cfg.Directory); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	conn, w, err := c.connect()
	if err != nil {
		return nil, fmt.Errorf("hub in %s: %w", cfg.Directory, err)
	}
	c.numbers, c.secret, c.conn = w.numbers(), w.secret, conn
	c.up.Store(true)
	c.work.Go(c.group.Run)
	c.work.Go(c.askForRings)
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
	return ownUser(conn) == nil
}

// Numbers are those that the hub has leased to the client. They never change.
func (c *Client) Numbers() stack.Numbers { return c.numbers }

// Up tells whether there is a hub.
func (c *Client) Up() bool { return c.up.Load() }

// connect finds a hub, or starts one, and says hello.
func (c *Client) connect() (conn *net.UnixConn, w welcome, err error) {
	const (
		interval = 10 * time.Millisecond
		tries    = 3000 // for half a minute: a busy machine may take long to start a process
	)
	// How many tries to wait before another hub is started, as the one that was may have been killed at once: twice as many each
	// time, as it may also have got no processor.
	patient := 100
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
		case try >= patient:
			patient *= 2
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
	if err := ownUser(conn); err != nil {
		return nil, w, err
	}
	// The welcome is waited for as long as the connection stands: a hub may be ready to run and get no processor.
	welcomed := make(chan struct{})
	defer close(welcomed)
	go c.awaitWelcome(conn, welcomed)
	fd, memory, err := ring.NewMemory(DefaultRing)
	if err != nil {
		return nil, w, err
	}
	h := hello{ring: DefaultRing, bits: c.cfg.bits(), secret: c.secret}
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
	p, err := ring.NewPair(c.group, &c.quota, conn, memory, nil)
	if err != nil {
		return nil, w, err
	}
	c.setHub(p)
	return conn, w, nil
}

// awaitWelcome says so when a welcome is late, and ends the wait for it with the client.
func (c *Client) awaitWelcome(conn *net.UnixConn, welcomed <-chan struct{}) {
	late := time.NewTicker(c.answerTime)
	defer late.Stop()
	for {
		select {
		case <-late.C:
			c.isLate()
		case <-c.ended:
			_ = conn.SetDeadline(time.Unix(1, 0))
			return
		case <-welcomed:
			return
		}
	}
}

// Run receives until Close.
func (c *Client) Run() {
	for {
		c.mu.Lock()
		conn, p := c.conn, c.hub
		c.mu.Unlock()
		deliver := c.cfg.Receiver()
		var a Arrival
		err := p.Serve(func(frames []link.Frame) {
			c.group.Drain(p) // a disconnect must not pass the last acknowledgement
			for i := range frames {
				a = arrivalOf(&frames[i])
				deliver(&a, frames[i].Polled)
			}
		}, c.hear)
		if err == nil {
			err = errGone
		}
		c.setHub(nil)
		p.Close()
		_ = conn.Close()
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
			had := c.setConn(conn)
			if c.isClosed() {
				c.leaveHub() // setConn, or Close, has closed the connection
				return false
			}
			go c.repeat(conn, had)
			return true
		case err == nil:
			c.leaveHub()
			c.hangUpAll()
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

// setConn says which connection is that with the hub; nil: there is none. It returns the requests for what the client has.
func (c *Client) setConn(conn *net.UnixConn) (had []request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	c.up.Store(false)
	c.hubChanged()
	if c.closed && conn != nil {
		_ = conn.Close()
	}
	return c.had()
}

// hubChanged has requests that wait look again. mu is held.
func (c *Client) hubChanged() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// hear takes in a message of the hub, with its descriptors.
func (c *Client) hear(b []byte, fds []int) error {
	if m, ok := decodeMeeting(b); ok {
		return c.meet(&m, fds)
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

// setHub says which pair is that with the hub; nil: there is none.
func (c *Client) setHub(p *ring.Pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hub = p
	c.setGroup()
}

// leaveHub closes a pair with a hub, which was never served.
func (c *Client) leaveHub() {
	c.mu.Lock()
	p := c.hub
	c.mu.Unlock()
	c.setHub(nil)
	p.Close()
}

// Poll receives what has come, on the goroutine of the caller; false if there was nothing, or somebody else receives it.
func (c *Client) Poll() bool { return c.group.Poll() }

// EndPoll has the client receive by itself again. Without it that begins a little after the last Poll.
func (c *Client) EndPoll() { c.group.EndPoll() }

// Wait waits until what is being received now has been handed out.
func (c *Client) Wait() { c.group.Wait() }

// Close ends the client. Nothing is received any more when Run and Close have returned.
func (c *Client) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.ended)
		c.group.Close()
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
	c.mu.Unlock()
	c.hangUpAll()
	c.work.Wait()
}
