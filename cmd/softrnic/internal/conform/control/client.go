package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Client is the tester's end of a connection. One goroutine uses it at a time.
type Client struct {
	Hello Reply // what the target said of itself

	conn net.Conn
	in   *bufio.Scanner
	wait time.Duration
	err  error // why the target cannot be asked any more
}

// Dial connects to a target's host:port and says hello. Each request may take as long as wait beyond what it asks for itself.
func Dial(addr, token string, wait time.Duration) (*Client, error) {
	conn, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		return nil, err
	}
	return New(conn, token, wait)
}

// New is Dial over a connection that is there already. It owns conn, also where it fails.
func New(conn net.Conn, token string, wait time.Duration) (c *Client, err error) {
	c = &Client{conn: conn, in: bufio.NewScanner(conn), wait: wait}
	c.in.Buffer(nil, MaxLine)
	if c.Hello, err = c.Do(&Request{Op: Hello, Token: token}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close ends the connection; the target destroys what it has made for it.
func (c *Client) Close() error { return c.conn.Close() }

// Err is why the target cannot be asked any more: it has ended the connection, does not answer, or not as it should.
func (c *Client) Err() error { return c.err }

// Do sends a request and returns the answer. A refusal of the target is an error.
func (c *Client) Do(r *Request) (reply Reply, err error) {
	b, err := json.Marshal(r)
	if err != nil || c.err != nil {
		return reply, errors.Join(err, c.err)
	}
	if reply, err = c.exchange(r, b); err != nil {
		c.err = fmt.Errorf("%s: %w", r.Op, err)
		return reply, c.err
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("%s: the target says: %s", r.Op, reply.Error)
	}
	return reply, nil
}

// exchange sends a request, b, and returns the answer.
func (c *Client) exchange(r *Request, b []byte) (reply Reply, err error) {
	limit := time.Now().Add(c.wait + time.Duration(r.WaitMillis)*time.Millisecond)
	if err := c.conn.SetDeadline(limit); err != nil {
		return reply, err
	}
	if _, err := c.conn.Write(append(b, '\n')); err != nil {
		return reply, err
	}
	if !c.in.Scan() {
		if err := c.in.Err(); err != nil {
			return reply, err
		}
		return reply, errors.New("the target ends the connection")
	}
	return reply, json.Unmarshal(c.in.Bytes(), &reply)
}
