package hub

// What a client asks the hub for.

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// answerTime is how long the hub has to answer before that is logged, and how long a request waits for a hub where there is none.
// A variable for tests, of which a client takes the value when it joins.
var answerTime = 5 * time.Second

// ask makes a request, and waits for the answer. While there is no hub, it waits for one, and gives up after answerTime. A hub that
// there is, as the connection stands, is waited for as long as it takes: it may be ready to run and get no processor. Only if the
// answer changes nothing, as for what ends something, or if it is asked again, ask gives up then too: the hub reads the request when
// it can.
//
// With a new hub, what repeat asks for comes first.
func (c *Client) ask(r *request) error { return c.request(r, false) }

// request is ask, also for what is repeated. The error is errGone if there is not the connection any more that r is for.
func (c *Client) request(r *request, repeated bool) error {
	late := time.NewTimer(c.answerTime)
	defer late.Stop()
	for {
		c.mu.Lock()
		conn, changed, closed := c.conn, c.changed, c.closed
		turn := c.asking
		if conn == nil || !repeated && !c.up.Load() {
			turn = nil // not yet
		}
		c.mu.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case r.on != nil && conn != r.on:
			return errGone
		}
		select {
		case turn <- struct{}{}:
			again, err := c.exchange(r, conn, late)
			<-c.asking
			if !again {
				return err
			}
		case <-changed:
		case <-c.ended:
			return net.ErrClosed
		case <-late.C:
			switch {
			case conn == nil || r.kind == pair:
				return c.noAnswer()
			case r.ends():
				c.owe(r)
				return c.noAnswer()
			case turn == nil: // else whoever has the turn says so
				c.isLate()
			}
			late.Reset(c.answerTime)
		}
	}
}

// fullPause is how soon a request is sent again that there was no room for, as the hub has not read those before it.
const fullPause = 10 * time.Millisecond

// exchange makes a request and waits for the answer. It is to be made again if there is another hub, or none. The caller has the turn
// to ask.
func (c *Client) exchange(r *request, conn *net.UnixConn, late *time.Timer) (again bool, err error) {
	c.mu.Lock()
	if c.conn != conn {
		c.mu.Unlock()
		return true, nil
	}
	changed := c.changed
	c.number++
	r.number = c.number
	select {
	case <-c.answers: // one that came too late
	default:
	}
	c.mu.Unlock()
	for {
		err := r.send(conn)
		if errors.Is(err, unix.ETOOMANYREFS) {
			return false, fmt.Errorf("the hub in %s cannot be given a descriptor: %w", c.cfg.Directory, err)
		}
		if !errors.Is(err, unix.EAGAIN) {
			break // an error is the end of the connection, which Run finds out
		}
		select {
		case <-time.After(fullPause):
		case <-changed:
			return true, nil
		case <-c.ended:
			return false, net.ErrClosed
		case <-late.C:
			switch {
			case r.kind == pair:
				return false, c.noAnswer()
			case r.ends():
				c.owe(r)
				return false, c.noAnswer()
			}
			c.isLate()
			late.Reset(c.answerTime)
		}
	}
	for {
		select {
		case a := <-c.answers:
			return false, a.err
		case <-changed:
			return true, nil
		case <-c.ended:
			return false, net.ErrClosed
		case <-late.C:
			if r.ends() || r.kind == pair {
				return false, c.noAnswer()
			}
			c.isLate()
			late.Reset(c.answerTime)
		}
	}
}

func (c *Client) noAnswer() error {
	return fmt.Errorf("the hub in %s does not answer: %w", c.cfg.Directory, unix.ETIMEDOUT)
}

// owe has askForRings make a request that ends something, for which nobody waits any more and which the hub has not been sent: it
// would keep what the client does not have.
func (c *Client) owe(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = append(c.owed, *r)
	c.askSoon()
}

// end makes a request that ends something which the client had with the hub at the other end of a connection. If that has gone, the
// next does not hear of it in the first place.
func (c *Client) end(r *request, conn *net.UnixConn) {
	if r.on = conn; conn != nil {
		_ = c.ask(r)
	}
}

// isLate logs that there is a hub which has not answered for answerTime.
func (c *Client) isLate() {
	c.cfg.Log.Warn("the hub does not answer yet: it is stopped, or gets no processor", "directory", c.cfg.Directory, "after", c.answerTime)
}

// sendSocket is a variable for tests.
var sendSocket = func(conn *net.UnixConn, message []byte, fd int) error {
	return ring.TrySend(conn, message, unix.UnixRights(fd))
}

// send sends a request. The error is EAGAIN if the hub has not read so many that there is no room for it.
func (r *request) send(conn *net.UnixConn) (err error) {
	if r.socket != nil {
		closed := r.socket.Control(func(fd uintptr) { err = sendSocket(conn, r.encode(), int(fd)) })
		if closed == nil {
			return err
		}
		r.kind, r.socket = dropAddr, nil // the hub is to answer all the same
	}
	return ring.TrySend(conn, r.encode(), nil)
}

// AddOutlet tells the hub that datagrams from a socket, which is bound to an address that was added, are this client's. Those
// from other sockets at the hub's addresses are lost.
func (c *Client) AddOutlet(a netip.Addr, socket syscall.RawConn) error {
	if err := c.ask(&request{kind: addOutlet, socket: socket}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outlets = append(c.outlets, outletSocket{a, socket})
	return nil
}

// AddAddr asks for what comes to an address, of the interface of this name. The error wraps EADDRINUSE if a process that is no
// client of the hub has UDP port 4791 of it.
func (c *Client) AddAddr(a netip.Addr, zone string) error {
	if err := c.ask(&request{kind: addAddr, addr: a, zone: zone}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs[a] = zone
	return nil
}

// DropAddr undoes AddAddr.
func (c *Client) DropAddr(a netip.Addr) {
	c.mu.Lock()
	delete(c.addrs, a)
	c.outlets = slices.DeleteFunc(c.outlets, func(o outletSocket) bool { return o.addr == a })
	conn := c.conn
	c.mu.Unlock()
	c.end(&request{kind: dropAddr, addr: a}, conn)
}

// Serve implements [stack.Shared].
func (c *Client) Serve(s stack.Service) error {
	if err := c.ask(&request{kind: serve, service: s}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[s]++
	return nil
}

// EndServe implements [stack.Shared].
func (c *Client) EndServe(s stack.Service) {
	c.mu.Lock()
	if c.services[s]--; c.services[s] <= 0 {
		delete(c.services, s)
	}
	conn := c.conn
	c.mu.Unlock()
	c.end(&request{kind: endServe, service: s}, conn)
}

// had are the requests for what the client has. mu is held.
func (c *Client) had() (all []request) {
	for a, zone := range c.addrs {
		all = append(all, request{kind: addAddr, addr: a, zone: zone, on: c.conn})
	}
	for _, o := range c.outlets {
		all = append(all, request{kind: addOutlet, socket: o.raw, on: c.conn})
	}
	for s, n := range c.services {
		for range n {
			all = append(all, request{kind: serve, service: s, on: c.conn})
		}
	}
	return all
}

// repeat asks a new hub for what the client had with the one before when this one came. Then the client is up.
func (c *Client) repeat(conn *net.UnixConn, had []request) {
	for i := range had {
		err := c.request(&had[i], true)
		for errors.Is(err, unix.ETOOMANYREFS) { // for a second each time
			err = c.request(&had[i], true)
		}
		if errors.Is(err, errGone) {
			return // there is another to do the same
		}
		if err != nil && !c.isClosed() {
			c.cfg.Log.Error("the new hub does not do what the one before did", "error", err)
		}
	}
	c.keepPairs(conn)
	c.mu.Lock()
	current := c.conn == conn
	if current {
		c.up.Store(true)
		c.hubChanged()
	}
	c.mu.Unlock()
	if current {
		c.cfg.Log.Info("there is a hub again", "directory", c.cfg.Directory)
		c.cfg.Changed(false)
	}
}
