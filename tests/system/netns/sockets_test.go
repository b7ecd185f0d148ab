//go:build linux

package netns

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestUnprivilegedSockets runs nc and proxy as nobody, without capabilities, in two network
// namespaces, over the kernel's own sockets and over shared memory. Bytes go from one nc to the
// other, and a TCP client of one namespace reaches a TCP server of the other.
func TestUnprivilegedSockets(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	runtimeDir(t)
	server := m.echo(0, "127.0.0.1:7480")
	for _, medium := range []struct {
		name string
		addr string // of the server
		node [2]string
	}{
		{"kernel", "10.7.0.1", [2]string{" --link kernel:v0", " --link kernel:v1"}},
		{"kernel, IPv6", "2001:db8:7::1", [2]string{" --link kernel:v0", " --link kernel:v1"}},
		{"shm", "10.7.0.1", [2]string{" --link shm --addr 10.7.0.1/24", " --link shm --addr 10.7.0.2/24"}},
		{"shm, IPv6", "2001:db8:7::1", [2]string{" --link shm --addr 2001:db8:7::1/64", " --link shm --addr 2001:db8:7::2/64"}},
	} {
		for _, transport := range []string{"rocev2", "iwarp"} {
			t.Run(medium.name+"/"+transport, func(t *testing.T) {
				m.t = t
				s := m.start(0, "nc -l -v 7471 --transport "+transport+medium.node[0])
				s.await("listening on")
				lines := strings.Repeat("a line that passes over RDMA\n", 20_000)
				c := m.startWith(1, strings.NewReader(lines), "nc "+medium.addr+" 7471 --transport "+transport+medium.node[1])
				for _, p := range []*running{c, s} {
					if code := p.exit(); code != 0 {
						said := p.String()
						t.Errorf("exit code %d: %s", code, said)
					}
				}
				if said := s.String(); !strings.Contains(said, lines) {
					t.Errorf("%d bytes of output, not with the %d bytes of input", len(said), len(lines))
				}

				last := m.start(0, "proxy "+transport+":7471 tcp:"+server+medium.node[0])
				last.await("from " + transport)
				first := m.start(1, "proxy tcp:127.0.0.1:7481 "+transport+":"+net.JoinHostPort(medium.addr, "7471")+medium.node[1])
				first.await("from tcp")
				results := make(chan error)
				for range 4 {
					conn := m.dial(1, "127.0.0.1:7481")
					go func() { results <- bounce(conn) }()
				}
				for range 4 {
					if err := <-results; err != nil {
						t.Error(err)
					}
				}
				for _, p := range []*running{first, last} {
					_ = p.cmd.Process.Signal(os.Interrupt)
					if code := p.exit(); code != 0 {
						said := p.String()
						t.Errorf("exit code %d: %s", code, said)
					}
				}
			})
		}
	}
}

// echo is a TCP server in a namespace that returns its input, until the end of the test.
func (m *machines) echo(i int, addr string) string {
	m.t.Helper()
	m.enter(i)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// dial connects in a namespace.
func (m *machines) dial(i int, addr string) *net.TCPConn {
	m.t.Helper()
	m.enter(i)
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := net.DialTCP("tcp", nil, to) // on this thread
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// bounce sends bytes to an echo server, ends its half, and compares the received bytes.
func bounce(c *net.TCPConn) error {
	defer c.Close()
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.CloseWrite())
	}()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err == nil && !bytes.Equal(got, data) {
		err = errors.New("the returned bytes differ")
	}
	return err
}
