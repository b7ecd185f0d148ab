package hub

// What a client asks the hub for.

import (
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
// answer changes nothing, as for what ends something, ask gives up then too: the hub reads the request when it can.
//
// With a new hub, what repeat asks for comes first.
func (c *Client) ask(r *request) error { return c.request(r, false) }

func (c *Client) request(r *request, repeated bool) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	late := time.NewTimer(c.answerTime)
	defer late.Stop()
	for {
		c.mu.Lock()
		conn, changed, closed := c.conn, c.changed, c.closed
		early := conn != nil && !repeated && !c.up.Load()
		c.number++
		r.number = c.number
		select {
		case <-c.answers: // one that came too late
		default:
		}
		c.mu.Unlock()
		answers := c.answers
		switch {
		case closed:
			return net.ErrClosed
		case early:
			answers = nil
			c.asking.Unlock()
		case conn != nil:
			r.send(conn) // an error is the end of the connection, which Run finds out
		}
		again, err := c.await(r, answers, changed, late, conn != nil)
		if early {
			c.asking.Lock()
		}
		if !again {
			return err
		}
	}
}

// await waits for the answer to a request, which is to be made again if there is another hub, or none.
func (c *Client) await(r *request, answers <-chan answer, changed <-chan struct{}, late *time.Timer, connected bool) (again bool, err error) {
	ends := r.kind == dropAddr || r.kind == endServe || r.kind == unpair
	for {
		select {
		case a := <-answers:
			return false, a.err
		case <-changed:
			return true, nil
		case <-c.ended:
			return false, net.ErrClosed
		case <-late.C:
			if !connected || ends {
				return false, fmt.Errorf("the hub in %s does not answer: %w", c.cfg.Directory, unix.ETIMEDOUT)
			}
			c.isLate()
			late.Reset(c.answerTime)
		}
	}
}

// isLate logs that there is a hub which has not answered for answerTime.
func (c *Client) isLate() {
	c.cfg.Log.Warn("the hub does not answer yet: it is stopped, or gets no processor", "directory", c.cfg.Directory, "after", c.answerTime)
}

func (r *request) send(conn *net.UnixConn) {
	if r.socket == nil {
		_, _ = conn.Write(r.encode())
		return
	}
	err := r.socket.Control(func(fd uintptr) { _ = ring.Send(conn, r.encode(), int(fd)) })
	if err != nil { // the socket is closed: the hub is to answer all the same
		r.kind, r.socket = dropAddr, nil
		_, _ = conn.Write(r.encode())
	}
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
	c.mu.Unlock()
	_ = c.ask(&request{kind: dropAddr, addr: a}) // one who is no client any more has no addresses
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
	c.mu.Unlock()
	_ = c.ask(&request{kind: endServe, service: s})
}

// repeat asks a new hub for what the client had with the one before. Then the client is up.
func (c *Client) repeat(conn *net.UnixConn) {
	c.mu.Lock()
	var all []request
	for a, zone := range c.addrs {
		all = append(all, request{kind: addAddr, addr: a, zone: zone})
	}
	for _, o := range c.outlets {
		all = append(all, request{kind: addOutlet, socket: o.raw})
	}
	for s, n := range c.services {
		for range n {
			all = append(all, request{kind: serve, service: s})
		}
	}
	c.mu.Unlock()
	for i := range all {
		if err := c.request(&all[i], true); err != nil && !c.isClosed() {
			c.cfg.Log.Error("the new hub does not do what the one before did", "error", err)
		}
	}
	c.keepPairs()
	c.mu.Lock()
	if c.conn == conn { // and not yet another
		c.up.Store(true)
		c.hubChanged()
	}
	c.mu.Unlock()
	c.cfg.Log.Info("there is a hub again", "directory", c.cfg.Directory)
	c.cfg.Changed(false)
}
