package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
)

// server is a command that waits for a peer, with its output.
type server struct {
	t    *testing.T
	args string
	stop context.CancelFunc
	code chan int

	mu  sync.Mutex
	out bytes.Buffer
}

func (s *server) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

func (s *server) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// serving starts a command and returns when it has printed says.
func serving(t *testing.T, args, says string) *server {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &server{t: t, args: args, stop: stop, code: make(chan int, 1)}
	go func() { s.code <- runCommandLine(ctx, strings.Fields(args), &cli.Env{Stdout: s, Stderr: s}) }()
	for give := time.Now().Add(time.Minute); !strings.Contains(s.said(), says); time.Sleep(time.Millisecond) {
		select {
		case code := <-s.code:
			t.Fatalf("%s: exit code %d before it prints %q:\n%s", args, code, says, s.said())
		default:
		}
		if time.Now().After(give) {
			t.Fatalf("%s: does not print %q:\n%s", args, says, s.said())
		}
	}
	return s
}

// ends waits until the command ends with success.
func (s *server) ends() {
	s.t.Helper()
	select {
	case code := <-s.code:
		if code != 0 {
			s.t.Errorf("%s: exit code %d:\n%s", s.args, code, s.said())
		}
	case <-time.After(time.Minute):
		s.t.Errorf("%s: is still running:\n%s", s.args, s.said())
	}
	s.stop()
}

// TestKernelSockets runs each command between two nodes on the loopback interface as the user of
// the test.
func TestKernelSockets(t *testing.T) {
	for i, c := range []struct{ server, says, client, prints string }{
		{"pingpong rc -c -s 100000 -n 50", "local address", "pingpong rc -c -s 100000 -n 50 ADDR", "50 iters"},
		{"pingpong uc -c -n 50", "local address", "pingpong uc -c -n 50 ADDR", "50 iters"},
		{"pingpong ud -c -s 2000 -n 50", "local address", "pingpong ud -c -s 2000 -n 50 ADDR", "50 iters"},
		{"pingpong srq -c -n 50", "local address", "pingpong srq -c -n 50 ADDR", "50 iters"},
		{"pingpong xsrq -n 50", "waiting for 1", "pingpong xsrq -n 50 ADDR", ""},
		{"rping -s -d", "listening", "rping -c -a ADDR -C 50 -S 5000 -V -v", "ping data: rdma-ping-49"},
		{"rping -s -d --transport iwarp", "listening", "rping -c -a ADDR -C 50 -S 5000 -V -v --transport iwarp", "ping data: rdma-ping-49"},
		{"perf write bw", "Waiting", "perf write bw -D 20ms --warmup 1ms --transport rocev2 --transport iwarp --tcp ADDR", "65536"},
		{"perf send lat --strict-icrc", "Waiting", "perf send lat -n 500 --verify --strict-icrc ADDR", "500"},
		{"mckey -m 239.15.0.1 -C 50", "joined", "mckey -m 239.15.0.1 -C 50 -s", "50 messages of 100 bytes sent"},
		{"serve --log-level info", "msg=serving", "rping -c -a ADDR -C 50 -V -v", "ping data: rdma-ping-49"},
		{"serve --log-level info", "msg=serving", "pingpong rc -n 50 ADDR", "50 iters"},
	} {
		t.Run(c.client, func(t *testing.T) {
			t.Parallel()
			addr := fmt.Sprintf("127.15.2.%d", i+1)
			kernelSockets(t, addr, c.server, c.says, strings.ReplaceAll(c.client, "ADDR", addr), c.prints)
		})
	}
}

// kernelSockets runs a server at addr and a client at another address.
func kernelSockets(t *testing.T, addr, server, says, client, prints string) {
	here, there := " --link kernel:lo --addr "+addr, " --link kernel:lo --addr "+strings.Replace(addr, ".2.", ".3.", 1)+"/8"
	s := serving(t, server+here+" --counters", says)
	code, stdout, stderr := runCommand(t, client+there)
	if code != 0 || !strings.Contains(stdout, prints) {
		t.Errorf("%s: exit code %d, stdout without %q:\n%s%s", client, code, prints, stdout, stderr)
	}
	if strings.HasPrefix(server, "serve") {
		s.stop()
		<-s.code
	} else {
		s.ends()
	}
	for _, bad := range []string{"icrc_", "malformed"} {
		if strings.Contains(s.said(), bad) {
			t.Errorf("%s: with %s has counted packets as %s:\n%s", server, client, bad, s.said())
		}
	}
}

// TestKernelSocketsCaptured: --capture writes the packets as on the wire, sent packets with the
// right ICRC, and --impair impairs them.
func TestKernelSocketsCaptured(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "roce.pcapng")
	s := serving(t, "rping -s -d -C 20 --link kernel:lo --addr 127.15.0.3 --impair loss=2%,corrupt=8%,dup=2%,reorder=2%,seed=1 "+
		"--counters", "listening")
	code, stdout, stderr := runCommand(t, "rping -c -C 20 -S 30000 -V -v -a 127.15.0.3 --link kernel:lo --addr 127.15.0.4 --capture "+file)
	if code != 0 || !strings.Contains(stdout, "rdma-ping-19") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	s.ends()
	if !strings.Contains(s.said(), "icrc_errors") {
		t.Errorf("no damage was noticed:\n%s", s.said())
	}
	captured, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer captured.Close()
	var sent, received, damaged int
	for n, b := range captures.Frames(t, captured) {
		right := wire.CheckICRC(b[14:42], b[42:])
		switch {
		case b[14+15] != 4: // the source address's last byte
			received++
			if !right {
				damaged++
			}
		case !right:
			t.Errorf("packet %d, which was sent, has a wrong ICRC", n)
		default:
			sent++
		}
	}
	if sent < 200 || received < 200 || damaged == 0 || damaged > received/4 {
		t.Errorf("the capture has %d packets sent, and %d received, of which %d are damaged", sent, received, damaged)
	}
}

// TestKernelSocketsRefusals: the error for an address in use names the possible owner and a remedy.
func TestKernelSocketsRefusals(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 15, 0, 5), Port: 4791})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for args, wants := range map[string][]string{
		"devinfo --link kernel:lo --addr 127.15.0.5": {"UDP port 4791 of 127.15.0.5 is in use",
			"any of 127.0.0.0/8", "ss -ulpn sport = :4791", "use --shared (kernel.Shared) for both"},
		"devinfo --link kernel --addr 192.0.2.77":                            {"192.0.2.77 is not an address of this machine", "127.0.0.1"},
		"devinfo --link kernel:lo --addr 192.0.2.77":                         {"192.0.2.77 is not one of its addresses", "127.0.0.1"},
		"devinfo --link kernel:nosuch0":                                      {"no interface nosuch0"},
		"devinfo --link kernel:lo --addr 127.15.0.6 --mtu 1500":              {"--mtu 1500: lo has MTU"},
		"devinfo --link kernel:lo --addr 127.15.0.6 --trace " + os.TempDir(): {"--trace"},
	} {
		code, _, stderr := runCommand(t, args)
		if code != cli.ExitFailed || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q", args, code, stderr)
		}
		for _, want := range wants {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: %q, want %q in it", args, stderr, want)
			}
		}
	}
}

// TestKernelSocketsNFS: a server that cannot have port 111 names the mount option that clients
// need. It lists its address once.
func TestKernelSocketsNFS(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp4", "127.15.0.10:111"); err == nil { // otherwise the server cannot have it either
		defer l.Close()
	}
	s := serving(t, "nfs serve --memory 1000000 --mount-port 20000 --link kernel:lo --addr 127.15.0.10", "msg=serving")
	s.stop()
	<-s.code
	for _, want := range []string{"clients must mount with mountport=20000", "addrs=[127.15.0.10]"} {
		if !strings.Contains(s.said(), want) {
			t.Errorf("it does not print %q:\n%s", want, s.said())
		}
	}
}

// TestKernelSocketsNAT: with a NAT between two nodes, each logs why it receives nothing and which
// transport passes the NAT.
func TestKernelSocketsNAT(t *testing.T) {
	t.Parallel()
	const at, nat, client = "127.15.0.7", "127.15.0.8", "127.15.0.9"
	inside, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(nat), Port: 4791})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := inside.Read(b)
			if err != nil {
				return
			}
			_, _ = inside.WriteTo(b[:n], &net.UDPAddr{IP: net.ParseIP(at), Port: 4791})
		}
	}()
	s := serving(t, "rping -s -d --link kernel:lo --addr "+at, "listening")
	c := serving(t, "rping -c -a "+nat+" --link kernel:lo --addr "+client, "")
	for give := time.Now().Add(time.Minute); !strings.Contains(s.said(), "icrc_errors"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("the server does not report the packets:\n%s", s.said())
		}
	}
	for _, x := range []*server{c, s} {
		x.stop()
		<-x.code
	}
	for who, said := range map[string]string{"the server": s.said(), "the client": c.said()} {
		if strings.Count(said, "NAT") != 1 || !strings.Contains(said, "--transport iwarp") || !strings.Contains(said, "ICRC") {
			t.Errorf("%s names no cause or no cure:\n%s", who, said)
		}
	}
}
