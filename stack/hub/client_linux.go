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
	group   *ring.Group // the rings of the hub and of other clients
	quota   ring.Quota
	work    sync.WaitGroup

	answerTime time.Duration

	asking chan struct{} // full during a request: only one at a time

	mu     sync.Mutex
	closed bool
	conn   *net.UnixConn // nil while there is no hub
	// The pair with the hub, which has only the client's ring. It stays until the next hub.
	hub           *ring.Pair
	first, number uint32 // of the requests that were sent last, which are one or more
	answers       chan answer
	changed       chan struct{} // closed and replaced when conn or up changes
	addrs         map[netip.Addr]string
	takes         map[netip.Addr]bool // addresses for which the client takes a socket
	services      map[stack.Service]int
	sourceSockets []sourceSocket
	owed          []request // requests to end something that have not reached the hub
	neighbours
}

// sourceSocket is a socket that the client sends from.
type sourceSocket struct {
	addr netip.Addr
	raw  syscall.RawConn
}

// Join connects to the hub. If there is none, it calls ClientConfig.Start. The caller then calls
// Run.
func Join(cfg ClientConfig) (*Client, error) {
	if cfg.Directory == "" {
		cfg.Directory = find()
	}
	system := cfg.Directory == SystemDirectory()
	if system {
		cfg.Start = nil
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	c := &Client{cfg: cfg, ended: make(chan struct{}), group: ring.NewGroup(), quota: ring.Quota{Bytes: quotaBytes},
		answerTime: answerTime,
		asking:     make(chan struct{}, 1), answers: make(chan answer, 1), changed: make(chan struct{}),
		addrs: map[netip.Addr]string{}, takes: map[netip.Addr]bool{}, services: map[stack.Service]int{}}
	c.neighbours.init()
	c.group.AllowInPlace()
	c.group.SetHub()
	if !system {
		if err := userdir.Make(cfg.Directory); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
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

// Running reports whether a hub that this user may use runs in a directory. "" means one that a
// client finds by itself.
func Running(directory string) bool {
	if directory == "" {
		directory = find()
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(directory, socketName), Net: "unixpacket"})
	if err != nil {
		return false
	}
	defer conn.Close()
	return isHub(conn, directory) == nil
}

// isHub returns an error unless the process at the other end of a connection is the hub of a
// directory: of this user, or, if it is that of the machine, of the user to whom root has given the
// directory.
func isHub(conn *net.UnixConn, directory string) error {
	if directory != SystemDirectory() {
		return ownUser(conn)
	}
	owner, err := userdir.Owner(directory)
	if err != nil {
		return err
	}
	cred, err := userdir.Credentials(conn)
	if err == nil && int(cred.Uid) != owner {
		err = fmt.Errorf("the process at the other end is of user %d, and %s of user %d: %w", cred.Uid, directory, owner, unix.EPERM)
	}
	return err
}

// Numbers returns the numbers that the hub has leased to the client. They never change.
func (c *Client) Numbers() stack.Numbers { return c.numbers }

// Up reports whether there is a hub.
func (c *Client) Up() bool { return c.up.Load() }

// connect finds or starts a hub, and completes the handshake.
func (c *Client) connect() (conn *net.UnixConn, w welcome, err error) {
	const (
		interval = 10 * time.Millisecond
		tries    = 3000 // half a minute: a busy machine may take long to start a process
	)
	// startAfter is the number of tries before another hub is started, because the first may have been
	// killed at once. It doubles each time, because the first may also have got no CPU time.
	startAfter := 100
	var started *os.File
	defer func() {
		if started != nil {
			_ = started.Close()
		}
	}()
	for try := 0; ; try++ {
		conn, w, err = c.handshake()
		if err == nil || try >= tries || !isAbsent(err) {
			return conn, w, err
		}
		err = nil
		switch {
		case started == nil:
			started, err = c.start()
		case try >= startAfter:
			startAfter *= 2
			err = c.cfg.Start(c.cfg.Directory)
		}
		if err != nil {
			return nil, w, fmt.Errorf("starting a hub: %w", err)
		}
		select {
		case <-time.After(interval):
		case <-c.ended:
			return nil, w, net.ErrClosed
		}
	}
}

// isAbsent reports whether an error means that there is no hub, or that it has just ended.
func isAbsent(err error) bool {
	for _, absent := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, errGone} {
		if errors.Is(err, absent) {
			return true
		}
	}
	return false
}

var errGone = errors.New("the hub has disconnected")

// start starts a hub, unless another client is starting one. The returned file is locked until it
// is closed.
func (c *Client) start() (*os.File, error) {
	if c.cfg.Start == nil {
		return nil, fmt.Errorf("no hub runs: start one with softrnic hub, or that of the machine with systemctl start softrnic-hub: %w",
			unix.ENOENT)
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

// handshake connects to the hub, and gives it a ring to put records into.
func (c *Client) handshake() (_ *net.UnixConn, w welcome, err error) {
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
	if err := isHub(conn, c.cfg.Directory); err != nil {
		return nil, w, err
	}
	// There is no time limit for the welcome while the connection exists: the hub may be runnable but
	// get no CPU time.
	welcomed := make(chan struct{})
	defer close(welcomed)
	go c.awaitWelcome(conn, welcomed)
	fd, memory, err := ring.NewMemory(defaultRing)
	if err != nil {
		return nil, w, err
	}
	h := hello{ring: defaultRing, bits: c.cfg.bits(), secret: c.secret}
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

// awaitWelcome logs a late welcome, and ends the wait when the client is closed.
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
			c.group.Drain(p) // so that a disconnect does not overtake the last acknowledgement
			if c.cfg.DrainSockets != nil {
				c.cfg.DrainSockets()
			}
			for i := range frames {
				a = arrivalOf(&frames[i])
				deliver(&a, frames[i].Polled)
			}
		}, c.onMessage)
		if err == nil {
			err = errGone
		}
		c.setHub(nil)
		p.Close()
		_ = conn.Close()
		if c.isClosed() {
			return
		}
		if c.cfg.SocketsEnd != nil {
			c.cfg.SocketsEnd() // the next hub opens others
		}
		c.cfg.Log.Warn("the hub has disappeared", "directory", c.cfg.Directory, "error", err)
		c.setConn(nil)
		c.cfg.Changed(false)
		if !c.rejoin() {
			return
		}
	}
}

// rejoin connects to the next hub. It returns false if the client is closed or has lost its lease.
func (c *Client) rejoin() bool {
	const pause = 100 * time.Millisecond
	for {
		conn, w, err := c.connect()
		switch {
		case err == nil && w.secret == c.secret:
			had := c.setConn(conn)
			if c.isClosed() {
				c.leaveHub() // setConn or Close has closed the connection
				return false
			}
			go c.repeat(conn, had)
			return true
		case err == nil:
			c.leaveHub()
			c.disconnectAll()
			c.cfg.Log.Error("the hub has released this process's numbers", "directory", c.cfg.Directory)
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

// setConn sets the connection to the hub; nil: none. It returns requests that restore the client's
// registrations.
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

// hubChanged wakes waiting requests. mu is held.
func (c *Client) hubChanged() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// onMessage processes a message of the hub, with its descriptors.
func (c *Client) onMessage(b []byte, fds []int) error {
	if m, ok := decodePairMessage(b); ok {
		return c.onPair(&m, fds)
	}
	if m, ok := decodeSocketMessage(b); ok {
		c.onSocket(&m, fds)
		return nil
	}
	a, err := decodeAnswer(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The hub answers in order. The first error counts, or else the last answer.
	if a.number == c.number || a.err != nil && a.number-c.first < c.number-c.first {
		select {
		case c.answers <- a:
		default:
		}
	}
	return nil
}

// setHub sets the pair with the hub; nil: none.
func (c *Client) setHub(p *ring.Pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hub = p
	c.setGroup()
}

// leaveHub closes a pair with a hub that was never served.
func (c *Client) leaveHub() {
	c.mu.Lock()
	p := c.hub
	c.mu.Unlock()
	c.setHub(nil)
	p.Close()
}

// onSocket takes a socket from the hub.
func (c *Client) onSocket(m *socketMessage, fds []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takes[m.addr] || len(fds) != 1 {
		return
	}
	fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = c.cfg.Socket(m.addr, os.NewFile(uintptr(fd), "steered"))
	}
	if err != nil {
		c.cfg.Log.Warn("datagrams come through the hub", "addr", m.addr, "error", err)
		return
	}
	c.oweLocked(&request{kind: useSocket, addr: m.addr, on: c.conn})
}

// Mixed tells the hub that a superframe from a peer at one of the client's sockets was in part for
// other clients. The peer's datagrams come through the hub from then on.
func (c *Client) Mixed(own netip.Addr, peer netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.oweLocked(&request{kind: mixedFlow, own: own, addr: peer.Addr(), qpn: uint32(peer.Port()), on: c.conn})
}

// Poll receives on the goroutine of the caller. It returns false if there was nothing, or if
// another goroutine is receiving. busy says that the application is not idle, as it receives from
// other sockets.
func (c *Client) Poll(busy bool) bool { return c.group.PollBeside(busy) }

// EndPoll makes the client's goroutines receive again. Without it they start a little after the
// last Poll.
func (c *Client) EndPoll() { c.group.EndPoll() }

// Wait waits until running receivers have returned.
func (c *Client) Wait() { c.group.Wait() }

// Close ends the client. Nothing is received once Run and Close have returned.
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
	c.disconnectAll()
	c.work.Wait()
}
