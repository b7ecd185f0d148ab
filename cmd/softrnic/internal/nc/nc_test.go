package nc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/link/pipe"
)

// program is the command line with this package's command alone.
var program = clitest.Program(func() any {
	return new(struct {
		Nc Command `cmd:""`
	})
})

func text(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TestBothWays: the input of each end is the output of the other, and both end when both inputs
// have ended.
func TestBothWays(t *testing.T) {
	for _, transport := range []string{"rocev2", "iwarp"} {
		lan := new(pipe.Switch)
		to, from := text(3_000_000, 1), text(1_234_567, 2)
		s := program.StartWith(t, lan, bytes.NewReader(from), "nc -l -v 7471 --addr 10.0.0.1/24 --transport "+transport)
		s.Await(t, &s.Err, "listening on")
		c := program.StartWith(t, lan, bytes.NewReader(to), "nc -v 10.0.0.1 7471 --addr 10.0.0.2/24 --transport "+transport)
		for _, p := range []*clitest.Command{c, s} {
			if code := p.Wait(t); code != cli.ExitOK {
				t.Errorf("%s: exit code %d: %s", transport, code, &p.Err)
			}
		}
		if s.Out.String() != string(to) || c.Out.String() != string(from) {
			t.Errorf("%s: %d bytes of %d arrived, and %d of %d, or other ones", transport, len(s.Out.String()), len(to),
				len(c.Out.String()), len(from))
		}
	}
}

// TestHalfClose: after the end of its input, the client still receives.
func TestHalfClose(t *testing.T) {
	lan := new(pipe.Switch)
	r, answer := io.Pipe()
	s := program.StartWith(t, lan, r, "nc -l -v 7471 --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "listening on")
	c := program.StartWith(t, lan, strings.NewReader("question\n"), "nc 10.0.0.1 7471 --addr 10.0.0.2/24")
	s.Await(t, &s.Out, "question\n")
	_, _ = io.WriteString(answer, "answer\n")
	c.Await(t, &c.Out, "answer\n")
	answer.Close()
	if a, b := c.Wait(t), s.Wait(t); a != cli.ExitOK || b != cli.ExitOK {
		t.Errorf("exit codes %d and %d: %s%s", a, b, &c.Err, &s.Err)
	}
}

// TestKeep: with -k the server accepts one connection after the other until it is interrupted.
func TestKeep(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.StartWith(t, lan, strings.NewReader("not sent"), "nc -lkv 7471 --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "listening on")
	// Each client has its own address. On a pipe each has another MAC, and the server would send
	// its REP to the previous one.
	for i, say := range []string{"one\n", "two\n", "three\n"} {
		c := program.StartWith(t, lan, strings.NewReader(say), fmt.Sprintf("nc 10.0.0.1 7471 --addr 10.0.0.%d/24", 2+i))
		if code := c.Wait(t); code != cli.ExitOK || c.Out.String() != "" {
			t.Errorf("exit code %d, stdout %q: %s", code, &c.Out, &c.Err)
		}
		// A client ends when the server's device has all data, which may not yet be printed.
		s.Await(t, &s.Out, say)
	}
	s.Stop()
	if code := s.Wait(t); code != cli.ExitFailed || s.Out.String() != "one\ntwo\nthree\n" ||
		!strings.Contains(s.Err.String(), "interrupted") {
		t.Errorf("exit code %d, stdout %q: %s", code, &s.Out, &s.Err)
	}
}

// TestInterrupted: a command that waits for input can be interrupted, and the peer's connection
// ends.
func TestInterrupted(t *testing.T) {
	lan := new(pipe.Switch)
	endless, _ := io.Pipe()
	s := program.StartWith(t, lan, nil, "nc -l -v 7471 --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "listening on")
	c := program.StartWith(t, lan, endless, "nc -v 10.0.0.1 7471 --addr 10.0.0.2/24")
	c.Await(t, &c.Err, "connected to")
	s.Await(t, &s.Err, "connected to")
	c.Stop()
	if code := c.Wait(t); code != cli.ExitFailed || !strings.Contains(c.Err.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, &c.Err)
	}
	if code := s.Wait(t); code != cli.ExitOK {
		t.Errorf("the server: exit code %d: %s", code, &s.Err)
	}
}

// TestPeerGone: a client does not wait for input after the peer has closed the connection.
func TestPeerGone(t *testing.T) {
	lan := new(pipe.Switch)
	endless, w := io.Pipe()
	defer w.Close()
	s := program.StartWith(t, lan, endless, "nc -l -v 7471 --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "listening on")
	c := program.StartWith(t, lan, endless, "nc -v 10.0.0.1 7471 --addr 10.0.0.2/24")
	c.Await(t, &c.Err, "connected to")
	s.Await(t, &s.Err, "connected to")
	s.Stop()
	_ = s.Wait(t)
	if code := c.Wait(t); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, &c.Err)
	}
}

func TestRefusals(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"nc 10.0.0.1":         {cli.ExitUsage, "use HOST PORT"},
		"nc -l a 1 2":         {cli.ExitUsage, "use HOST PORT"},
		"nc 10.0.0.1 0":       {cli.ExitUsage, "not a port"},
		"nc -k 10.0.0.1 5":    {cli.ExitUsage, "-k needs -l"},
		"nc -l -s 10.0.0.1 5": {cli.ExitUsage, "-s is for"},
		"nc -w 0 10.0.0.1 5":  {cli.ExitUsage, "-w 0s"},
		"nc 10.0.0.1 7471 --addr 10.0.0.2/24 -w 50ms": {cli.ExitFailed, "dial rsocket 10.0.0.1:7471"},
	} {
		c := program.Start(t, new(pipe.Switch), args)
		if code := c.Wait(t); code != want.code || !strings.Contains(c.Err.String(), want.says) {
			t.Errorf("%s: exit code %d: %s", args, code, &c.Err)
		}
	}
}

// TestInputFails: a read error of the input ends both sides with an error. The other side must not
// take partial data for the whole, nor wait for the rest.
func TestInputFails(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.StartWith(t, lan, nil, "nc -l -v 7471 --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "listening on")
	input := io.MultiReader(strings.NewReader("the beginning"), iotest.ErrReader(errors.New("it is a directory")))
	c := program.StartWith(t, lan, input, "nc 10.0.0.1 7471 --addr 10.0.0.2/24")
	if code := c.Wait(t); code != cli.ExitFailed || !strings.Contains(c.Err.String(), "it is a directory") {
		t.Errorf("exit code %d: %s", code, &c.Err)
	}
	if code := s.Wait(t); code != cli.ExitFailed {
		t.Errorf("the server: exit code %d: %s", code, &s.Err)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
