//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Client starts processes where [Serve] runs. Its methods may be called from any goroutine.
type Client struct {
	stream io.ReadWriteCloser
	ready  chan struct{} // closed when the server has reported that it serves
	done   chan struct{} // closed when the stream has ended

	sending sync.Mutex
	out     *json.Encoder

	mu        sync.Mutex
	last      uint64
	processes map[uint64]*Process
	err       error // why the stream ended
}

// NewClient communicates with the server at the other end of stream, which the client closes.
func NewClient(stream io.ReadWriteCloser) *Client {
	c := &Client{
		stream:    stream,
		ready:     make(chan struct{}),
		done:      make(chan struct{}),
		out:       json.NewEncoder(stream),
		processes: make(map[uint64]*Process),
	}
	go c.receive()
	return c
}

// Ready waits until the server serves.
func (c *Client) Ready(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the stream. The client loses contact with running processes.
func (c *Client) Close() error {
	err := c.stream.Close()
	<-c.done
	return err
}

func (c *Client) receive() {
	defer close(c.done)
	in := json.NewDecoder(c.stream)
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			c.fail(fmt.Errorf("control stream ended: %w", err))
			return
		}
		if m.Ready {
			close(c.ready)
			continue
		}
		c.mu.Lock()
		p := c.processes[m.ID]
		if m.Done {
			delete(c.processes, m.ID)
		}
		c.mu.Unlock()
		if p != nil {
			p.receive(m)
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for _, p := range c.processes {
		p.end(-1, err)
	}
	c.processes = nil
}

func (c *Client) send(m message) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.out.Encode(m)
}

// Start starts a shell command.
func (c *Client) Start(command string) (*Process, error) {
	if command == "" {
		return nil, errors.New("the command is empty: must be a command for sh -c")
	}
	p := &Process{client: c, done: make(chan struct{})}
	p.changed.L = &p.mu
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	p.id = c.last
	c.processes[p.id] = p
	c.mu.Unlock()
	return p, c.send(message{ID: p.id, Run: command})
}

// Process is a started command. It is a reader of the output (standard output and standard error,
// as they arrive) and a writer to the standard input.
type Process struct {
	client *Client
	id     uint64
	done   chan struct{} // closed when it has ended

	mu      sync.Mutex
	changed sync.Cond // on mu: output, or the end
	output  []byte
	read    int // bytes of output that Read has returned
	code    int
	err     error
	ended   bool
}

func (p *Process) receive(m message) {
	p.mu.Lock()
	p.output = append(p.output, m.Out...)
	p.mu.Unlock()
	p.changed.Broadcast()
	if m.Done {
		p.end(m.Code, nil)
	}
}

func (p *Process) end(code int, err error) {
	p.mu.Lock()
	p.code, p.err, p.ended = code, err, true
	p.mu.Unlock()
	p.changed.Broadcast()
	close(p.done)
}

// Read returns output as it arrives, from the beginning; io.EOF after the end.
func (p *Process) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.read == len(p.output) {
		if p.ended {
			if p.err != nil {
				return 0, p.err
			}
			return 0, io.EOF
		}
		p.changed.Wait()
	}
	n := copy(b, p.output[p.read:])
	p.read += n
	return n, nil
}

// Output returns all output so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.output)
}

// Write sends bytes to the process's standard input.
func (p *Process) Write(b []byte) (int, error) {
	const piece = 16 << 10
	for sent := 0; sent < len(b); sent += piece {
		if err := p.client.send(message{ID: p.id, In: b[sent:min(sent+piece, len(b))]}); err != nil {
			return sent, err
		}
	}
	return len(b), nil
}

// Close ends the process's standard input.
func (p *Process) Close() error { return p.client.send(message{ID: p.id, InEnd: true}) }

// Kill sends SIGKILL to the process's group. Wait waits for the end.
func (p *Process) Kill() error { return p.client.send(message{ID: p.id, Kill: true}) }

// Wait waits for the end and returns the exit status (128 + the signal's number after a signal). An
// error means that there is no status: the context ended, or the machine did.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, p.err
	case <-ctx.Done():
		return -1, ctx.Err()
	}
}
