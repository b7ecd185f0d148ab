package hostile

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// bouncePort is the port of the server under softrnic run --sockets.
const bouncePort = "7777"

// bounceLen is the bytes of an operation of its client, in testdata.
const bounceLen = 4096

// startAgents starts a server and a client, programs without RDMA, under softrnic run --sockets.
func startAgents(t *testing.T, dev *verbs.Device, dir string) ([]*server, *good) {
	t.Helper()
	bounce := filepath.Join(dir, "bounce")
	if out, err := exec.Command("gcc", "-O2", "-o", bounce, "testdata/bounce.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	run := func(addr string, args ...string) *exec.Cmd {
		return exec.Command(filepath.Join(dir, "bin", "softrnic"), append([]string{"run", "--sockets", "--sockets-wait", "20s",
			"--link", "kernel:lo", "--addr", addr, "--", bounce}, args...)...)
	}
	far := startServer(t, "run --sockets, the server", agentAddr, run(agentAddr, "serve", agentAddr, bouncePort))
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := rsocket.Dial(t.Context(), dev, agentAddr+":"+bouncePort, nil)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(until) {
			t.Fatalf("nothing listens over RDMA: %v\n%s", err, &far.log)
		}
	}
	near := &server{name: "run --sockets, the client", metrics: goodAgent + ":9101", cmd: run(goodAgent, agentAddr, bouncePort)}
	near.cmd.Args = append([]string{near.cmd.Args[0], "run", "--metrics", near.metrics}, near.cmd.Args[2:]...)
	near.cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirectory(t, 0))
	return []*server{far, near}, startWorker(t, "run --sockets", near.cmd)
}

// carried checks that it was RDMA that has carried what the good client has sent.
func carried(t *testing.T, agents []*server, g *good) {
	t.Helper()
	const counter = `softrnic_sockets_bytes_total{direction="to"} `
	for line := range strings.Lines(scrape(t, agents[1])) {
		if n, is := strings.CutPrefix(line, counter); is {
			bytes, _ := strconv.ParseFloat(strings.TrimSpace(n), 64)
			if sent := float64(g.all.Load()) * bounceLen; bytes < sent {
				t.Errorf("the good client of run --sockets has sent %.0f bytes, of which RDMA has carried %.0f", sent, bytes)
			}
			return
		}
	}
	t.Error("no metrics of run --sockets")
}

// agents returns the names of the agents' sockets, which every user can read.
func agents() (names []string) {
	b, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if name := f[len(f)-1]; strings.HasPrefix(name, "@softrnic-sockets-") && f[3] == "00010000" { // it listens
			names = append(names, name)
		}
	}
	return names
}

func dialAgent() (c *net.UnixConn, err error) {
	names := agents()
	if len(names) == 0 {
		return nil, os.ErrNotExist
	}
	c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: names[rand.IntN(len(names))], Net: "unixpacket"})
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// guess is a request with a guessed token, an operation and an address.
func guess() []byte {
	b := random(make([]byte, 44))
	binary.NativeEndian.PutUint32(b[16:], 1+rand.Uint32N(6))
	b[20] = 4
	copy(b[24:], netip.MustParseAddr(goodAddr).AsSlice())
	return b
}

// toAgent makes a kind of client of an agent that connects and calls f.
func toAgent(name string, most int, busy bool, f func(*net.UnixConn)) localKind {
	return localKind{"run --sockets: " + name, most, busy, func() (io.Closer, error) {
		c, err := dialAgent()
		if err != nil {
			return nil, err
		}
		f(c)
		return c, nil
	}}
}

// agentKinds are the kinds of hostile clients of an agent.
func agentKinds() []localKind {
	return []localKind{
		toAgent("silent", hold, false, func(*net.UnixConn) {}),
		toAgent("garbage", hold, false, func(c *net.UnixConn) { _, _ = c.Write(random(make([]byte, rand.IntN(200)))) }),
		toAgent("half-open", hold, false, func(c *net.UnixConn) { _ = c.CloseWrite() }),
		toAgent("flood of connects", 0, true, func(*net.UnixConn) {}),
		toAgent("guessed tokens", hold, true, func(c *net.UnixConn) {
			udp, err := toHub()
			if err != nil {
				return
			}
			defer udp.Close()
			if f, err := udp.File(); err == nil {
				defer f.Close()
				_, _, _ = c.WriteMsgUnix(guess(), rights(int(f.Fd()), 1), nil)
			}
		}),
		toAgent("descriptors", hold, false, func(c *net.UnixConn) {
			_, _, _ = c.WriteMsgUnix(guess(), rights(int(os.Stdout.Fd()), rand.IntN(250)), nil)
		}),
		toAgent("large packets without end", hold, false, func(c *net.UnixConn) {
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			for range 100 {
				if _, err := c.Write(make([]byte, 60<<10)); err != nil {
					return
				}
			}
		}),
		{"run --sockets: where it waits for its program", 10, true, func() (io.Closer, error) {
			b, err := os.ReadFile("/proc/net/tcp")
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				if len(f) < 4 || f[3] != "0A" || !strings.HasPrefix(f[1], "0100007F:") {
					continue
				}
				port, _ := strconv.ParseUint(f[1][9:], 16, 16)
				c, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
				if err != nil {
					return nil, err
				}
				_, _ = c.Write(random(make([]byte, bounceLen)))
				return c, nil
			}
			return nil, nil // it looks again
		}},
	}
}
