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
	Hello Reply // the target's answer to hello

	conn net.Conn
	in   *bufio.Scanner
	wait time.Duration
	err  error // why the target can no longer be used
}

// Dial connects to a target's host:port and sends hello. The answer to a request may take wait
// longer than the request's own wait.
func Dial(addr, token string, wait time.Duration) (*Client, error) {
	conn, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		return nil, err
	}
	return New(conn, token, wait)
}

// New is Dial over an existing connection. It owns conn even if it fails.
func New(conn net.Conn, token string, wait time.Duration) (c *Client, err error) {
	c = &Client{conn: conn, in: bufio.NewScanner(conn), wait: wait}
	c.in.Buffer(nil, MaxLine)
	if c.Hello, err = c.Do(&Request{Op: Hello, Token: token}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close closes the connection. The target destroys the connection's objects.
func (c *Client) Close() error { return c.conn.Close() }

// Err returns why the target can no longer be used: it has closed the connection, does not answer,
// or has sent an invalid answer.
func (c *Client) Err() error { return c.err }

// Do sends a request and returns the answer. A refusal is an error.
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
