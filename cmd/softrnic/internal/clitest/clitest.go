// Package clitest runs command lines in tests as the program does, on a network of the test.
package clitest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/arguments"
	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// Main runs the tests of a package. Nodes publish their status in a temporary directory, so that
// tests leave nothing in the user's directory and do not see the user's nodes. More tests run at
// once than there are processors, as parallel tests mostly wait.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		panic(err)
	}
	flag.Parse()
	if err := errors.Join(os.Setenv("XDG_RUNTIME_DIR", dir), flag.Set("test.parallel", "8")); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// Program returns the commands that a test runs: a pointer to a struct of kong's.
type Program func() any

// Run runs a command line, on lan unless it is nil.
func (p Program) Run(ctx context.Context, lan *pipe.Switch, args ...string) (code int, stdout, stderr string) {
	o := <-p.Go(ctx, lan, nil, args...)
	return o.Code, o.Stdout, o.Stderr
}

// Outcome is the result of a command line.
type Outcome struct {
	Code           int
	Stdout, Stderr string
}

// Go starts a command line. announced, unless nil, is closed when the command first prints to
// stdout.
func (p Program) Go(ctx context.Context, lan *pipe.Switch, announced chan<- struct{}, args ...string) <-chan Outcome {
	done := make(chan Outcome, 1)
	var stdout, stderr Output
	stdout.seen = announced
	go func() {
		code := arguments.Run(ctx, args, &cli.Env{Stdout: &stdout, Stderr: &stderr, LAN: lan}, p(), "")
		done <- Outcome{code, stdout.String(), stderr.String()}
	}()
	return done
}

// Announce starts a command line. It returns when the command has printed to stdout, as a listening
// server does, or has ended.
func (p Program) Announce(ctx context.Context, lan *pipe.Switch, args ...string) <-chan Outcome {
	announced := make(chan struct{})
	done := p.Go(ctx, lan, announced, args...)
	ended := make(chan Outcome, 1)
	select {
	case <-announced:
		return done
	case o := <-done:
		ended <- o
		return ended
	}
}

// Output is the output of a running command.
type Output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	until string          // seen is closed when this text is printed
	seen  chan<- struct{} // nil: no goroutine waits
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	o.look()
	return len(p), nil
}

func (o *Output) look() {
	if o.seen != nil && strings.Contains(o.b.String(), o.until) {
		close(o.seen)
		o.seen = nil
	}
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Command is a run of the program.
type Command struct {
	Out, Err Output
	code     chan int
	Stop     context.CancelFunc
}

// Start starts a command line whose words are separated by single spaces. The command ends with the
// test.
func (p Program) Start(t *testing.T, lan *pipe.Switch, args string) *Command {
	return p.StartWith(t, lan, nil, args)
}

// StartWith is Start with a standard input.
func (p Program) StartWith(t *testing.T, lan *pipe.Switch, stdin io.Reader, args string) *Command {
	ctx, stop := context.WithCancel(t.Context())
	c := &Command{code: make(chan int, 1), Stop: stop}
	go func() {
		c.code <- arguments.Run(ctx, strings.Fields(args), &cli.Env{Stdin: stdin, Stdout: &c.Out, Stderr: &c.Err, LAN: lan}, p(), "")
	}()
	t.Cleanup(stop)
	return c
}

// Await waits until a text is printed.
func (c *Command) Await(t *testing.T, o *Output, text string) {
	t.Helper()
	seen := make(chan struct{})
	o.mu.Lock()
	o.until, o.seen = text, seen
	o.look()
	o.mu.Unlock()
	select {
	case <-seen:
	case code := <-c.code:
		t.Fatalf("exits with %d before it prints %q: %s", code, text, &c.Err)
	case <-time.After(30 * time.Second):
		t.Fatalf("does not print %q; stderr:\n%s", text, &c.Err)
	}
}

// Wait waits for the end of the command and returns the exit code.
func (c *Command) Wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-c.code:
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("still running; stdout:\n%s\nstderr:\n%s", &c.Out, &c.Err)
		return 0
	}
}
