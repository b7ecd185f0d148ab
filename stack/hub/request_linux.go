package hub

// Requests of a client to the hub.

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

// answerTime is the time after which a missing answer is logged, and the longest wait for a hub. It
// is a variable for tests. A client copies it when it joins.
var answerTime = 5 * time.Second

// ask makes a request and waits for the answer. Without a hub, it waits for one, and fails after
// answerTime. With a hub, it waits without a limit: the hub may be runnable but get no CPU time.
// Two kinds of requests fail after answerTime in any case: those that only end something, and those
// that are repeated later. The hub reads them when it can.
//
// A new hub first gets the requests that repeat makes.
func (c *Client) ask(r *request) error { return c.request(r, false) }

// request does the work of ask, and also makes the requests of repeat. The error is errGone if r's
// connection has ended.
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
			case turn == nil: // otherwise it is logged by the goroutine that has the turn
				c.isLate()
			}
			late.Reset(c.answerTime)
		}
	}
}

// fullPause is the pause before a request is sent again because the socket's buffer was full.
const fullPause = 10 * time.Millisecond

// exchange makes a request, with those that are sent with it, and waits for the answer. again says
// that the request must be made again, because the hub has changed. The caller has the turn to ask.
func (c *Client) exchange(r *request, conn *net.UnixConn, late *time.Timer) (again bool, err error) {
	c.mu.Lock()
	if c.conn != conn {
		c.mu.Unlock()
		return true, nil
	}
	changed := c.changed
	all := []*request{r}
	for i := range r.more {
		all = append(all, &r.more[i])
	}
	c.first = c.number + 1
	for _, r := range all {
		c.number++
		r.number = c.number
	}
	select {
	case <-c.answers: // a late answer
	default:
	}
	c.mu.Unlock()
	for len(all) > 0 {
		err := all[0].send(conn)
		if errors.Is(err, unix.ETOOMANYREFS) {
			return false, fmt.Errorf("passing a descriptor to the hub in %s: %w", c.cfg.Directory, err)
		}
		if !errors.Is(err, unix.EAGAIN) {
			all = all[1:] // the error ends the connection, which Run detects
			continue
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

// owe queues a request that ends something, for askForRings. The hub did not receive it in time,
// and would otherwise keep the registration.
func (c *Client) owe(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.oweLocked(r)
}

// oweLocked is owe with mu held.
func (c *Client) oweLocked(r *request) {
	c.owed = append(c.owed, *r)
	c.askSoon()
}

// end makes a request that ends a registration with the hub at the other end of a connection. If
// the connection has ended, the next hub never learns of the registration.
func (c *Client) end(r *request, conn *net.UnixConn) {
	if r.on = conn; conn != nil {
		_ = c.ask(r)
	}
}

// isLate logs that the hub has not answered for answerTime.
func (c *Client) isLate() {
	c.cfg.Log.Warn("the hub does not answer yet: it is stopped, or gets no processor",
		"directory", c.cfg.Directory, "after", c.answerTime)
}

// sendSocket is a variable for tests.
var sendSocket = func(conn *net.UnixConn, message []byte, fd int) error {
	return ring.TrySend(conn, message, unix.UnixRights(fd))
}

// send sends a request. The error is EAGAIN if the socket's buffer is full.
func (r *request) send(conn *net.UnixConn) (err error) {
	if r.socket != nil {
		closed := r.socket.Control(func(fd uintptr) { err = sendSocket(conn, r.encode(), int(fd)) })
		if closed == nil {
			return err
		}
		r.kind, r.socket = dropAddr, nil // the hub answers it like any other request
	}
	return ring.TrySend(conn, r.encode(), nil)
}

// AddSourceSockets registers sockets, bound to an added address, as this client's. The hub drops
// datagrams from other sockets at its addresses. The client waits for it once, not for each socket.
func (c *Client) AddSourceSockets(a netip.Addr, sockets ...syscall.RawConn) error {
	if len(sockets) == 0 {
		return nil
	}
	all := make([]request, len(sockets))
	for i, s := range sockets {
		all[i] = request{kind: addSourceSocket, socket: s}
	}
	first := &all[0]
	first.more = all[1:]
	if err := c.ask(first); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range sockets {
		c.sourceSockets = append(c.sourceSockets, sourceSocket{a, s})
	}
	return nil
}

// AddAddr starts to receive at an address. zone is the name of its interface. The error wraps
// EADDRINUSE if UDP port 4791 of the address is in use outside the hub.
func (c *Client) AddAddr(a netip.Addr, zone string) error {
	c.mu.Lock()
	takes := c.cfg.Socket != nil
	if takes {
		c.takes[a] = true // the socket may come before the answer
	}
	c.mu.Unlock()
	err := c.ask(&request{kind: addAddr, addr: a, zone: zone, takesSocket: takes})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.takes, a)
		return err
	}
	c.addrs[a] = zone
	return nil
}

// DropAddr undoes AddAddr.
func (c *Client) DropAddr(a netip.Addr) {
	c.mu.Lock()
	delete(c.addrs, a)
	delete(c.takes, a)
	c.sourceSockets = slices.DeleteFunc(c.sourceSockets, func(o sourceSocket) bool { return o.addr == a })
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

// had returns requests for the client's registrations. mu is held.
func (c *Client) had() (all []request) {
	for a, zone := range c.addrs {
		all = append(all, request{kind: addAddr, addr: a, zone: zone, takesSocket: c.takes[a], on: c.conn})
	}
	for _, o := range c.sourceSockets {
		all = append(all, request{kind: addSourceSocket, socket: o.raw, on: c.conn})
	}
	for s, n := range c.services {
		for range n {
			all = append(all, request{kind: serve, service: s, on: c.conn})
		}
	}
	return all
}

// repeat restores the client's registrations at a new hub. Then the client is up.
func (c *Client) repeat(conn *net.UnixConn, had []request) {
	for i := range had {
		err := c.request(&had[i], true)
		for errors.Is(err, unix.ETOOMANYREFS) { // for a second each time
			err = c.request(&had[i], true)
		}
		if errors.Is(err, errGone) {
			return // the next hub is handled by another call
		}
		if err != nil && !c.isClosed() {
			c.cfg.Log.Error("the new hub refuses a registration of the previous one", "error", err)
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
		c.cfg.Log.Info("the hub is up again", "directory", c.cfg.Directory)
		c.cfg.Changed(false)
	}
}
