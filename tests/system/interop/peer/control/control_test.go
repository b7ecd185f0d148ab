//go:build linux

package control

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/stacktest"
)

func connect(t *testing.T) *Client {
	t.Helper()
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(there) }()
	c := NewClient(here)
	t.Cleanup(func() {
		_ = c.Close()
		<-served
	})
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func start(t *testing.T, c *Client, command string) *Process {
	t.Helper()
	p, err := c.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wait(t *testing.T, p *Process) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func TestOutputAndExitStatus(t *testing.T) {
	p := start(t, connect(t), "echo out; echo err >&2; exit 3")
	if code := wait(t, p); code != 3 {
		t.Errorf("exit status %d, want 3", code)
	}
	if got := p.Output(); got != "out\nerr\n" {
		t.Errorf("output %q", got)
	}
}

func TestInputLargerThanAPipeComesBackWhole(t *testing.T) {
	p := start(t, connect(t), "cat")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = p.Write(data)
		_ = p.Close()
	}()
	if code := wait(t, p); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if got := p.Output(); got != string(data) {
		t.Errorf("%d bytes came back, want the %d sent", len(got), len(data))
	}
}

func TestProcessesRunAtOnce(t *testing.T) {
	c := connect(t)
	first, second := start(t, c, "read x; echo first $x"), start(t, c, "read x; echo second $x")
	for _, p := range []*Process{second, first} {
		if _, err := p.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(p).ReadString('\n')
		if err != nil || !strings.HasSuffix(line, " go\n") {
			t.Errorf("read %q, %v", line, err)
		}
		wait(t, p)
	}
}

func TestKillReachesChildren(t *testing.T) {
	p := start(t, connect(t), "echo up; sleep 1000 | sleep 1000")
	if _, err := bufio.NewReader(p).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := wait(t, p); code != 128+9 {
		t.Errorf("exit status %d, want %d", code, 128+9)
	}
}

func TestBackgroundChildDoesNotHoldUpTheEnd(t *testing.T) {
	p := start(t, connect(t), "sleep 1000 & echo $!")
	wait(t, p)
	wait(t, start(t, p.client, "kill "+strings.TrimSpace(p.Output())))
}

// A process may end while its last output cannot be sent yet: machines may stall for a while.
func TestOutputOutlivesItsProcess(t *testing.T) {
	here, there := net.Pipe()
	go func() { _ = Serve(&stalling{ReadWriter: there, t: t}) }()
	c := NewClient(here)
	t.Cleanup(func() { _ = c.Close() })
	const n = 60_000 // a pipe has room for it
	p := start(t, c, fmt.Sprintf("head -c %d /dev/zero", n))
	if code := wait(t, p); code != 0 || len(p.Output()) != n {
		t.Errorf("exit status %d, %d bytes of output, want %d", code, len(p.Output()), n)
	}
}

// stalling is a stream whose second message is accepted when the process that it is from has ended.
type stalling struct {
	io.ReadWriter
	t        *testing.T
	messages int
}

func (s *stalling) Write(b []byte) (int, error) {
	if s.messages++; s.messages == 2 {
		stacktest.AwaitWaiting(s.t, "control.(*server).run.func2", "chan receive") // for the rest of the output
	}
	return s.ReadWriter.Write(b)
}

func TestLostStreamEndsEveryProcess(t *testing.T) {
	here, there := net.Pipe()
	go func() { _ = Serve(there) }()
	c := NewClient(here)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := start(t, c, "exec sleep 1")
	_ = there.Close()
	if code, err := p.Wait(t.Context()); err == nil {
		t.Errorf("exit status %d, want an error", code)
	}
	if _, err := c.Start("true"); err == nil {
		t.Error("a process started on a stream that has ended")
	}
}
