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
}

// Dial connects to a target's host:port and says hello. Each request may take as long as wait beyond what it asks for itself.
func Dial(addr, token string, wait time.Duration) (*Client, error) {
	conn, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, in: bufio.NewScanner(conn), wait: wait}
	c.in.Buffer(nil, MaxLine)
	if c.Hello, err = c.Do(&Request{Op: Hello, Token: token}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close ends the connection; the target destroys what it has made for it.
func (c *Client) Close() error { return c.conn.Close() }

// Do sends a request and returns the answer. A refusal of the target is an error.
func (c *Client) Do(r *Request) (reply Reply, err error) {
	b, err := json.Marshal(r)
	if err != nil {
		return reply, err
	}
	limit := time.Now().Add(c.wait + time.Duration(r.WaitMillis)*time.Millisecond)
	if err := c.conn.SetDeadline(limit); err != nil {
		return reply, err
	}
	if _, err := c.conn.Write(append(b, '\n')); err != nil {
		return reply, fmt.Errorf("%s: %w", r.Op, err)
	}
	if !c.in.Scan() {
		return reply, fmt.Errorf("%s: %w", r.Op, errors.Join(errors.New("the target ends the connection"), c.in.Err()))
	}
	if err := json.Unmarshal(c.in.Bytes(), &reply); err != nil {
		return reply, fmt.Errorf("%s: %w", r.Op, err)
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("%s: the target says: %s", r.Op, reply.Error)
	}
	return reply, nil
}
