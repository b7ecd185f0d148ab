package pingpong

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// startServer starts a server of the RC ping-pong, and returns when it has printed its address.
func startServer(ctx context.Context, lan *pipe.Switch, args ...string) <-chan clitest.Outcome {
	return startPingpong(ctx, lan, append([]string{"rc"}, args...)...)
}

func startPingpong(ctx context.Context, lan *pipe.Switch, args ...string) <-chan clitest.Outcome {
	return program.Announce(ctx, lan, append([]string{"pingpong"}, args...)...)
}

var addresses = regexp.MustCompile(`(?m)^  (local|remote) address: +LID 0x0000, QPN 0x([0-9a-f]{6}), PSN 0x([0-9a-f]{6}), GID (\S+)$`)

func checkPingpong(t *testing.T, o clitest.Outcome, size, iters int) (local, remote string) {
	t.Helper()
	if o.Code != 0 || o.Stderr != "" {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", o.Code, o.Stderr, o.Stdout)
	}
	for _, want := range []string{
		fmt.Sprintf(`(?m)^%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec$`, 2*size*iters),
		fmt.Sprintf(`(?m)^%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter$`, iters),
	} {
		if !regexp.MustCompile(want).MatchString(o.Stdout) {
			t.Errorf("no %s in:\n%s", want, o.Stdout)
		}
	}
	at := map[string]string{}
	for _, m := range addresses.FindAllStringSubmatch(o.Stdout, -1) {
		at[m[1]] = strings.Join(m[2:], " ")
	}
	if len(at) != 2 {
		t.Errorf("no addresses in:\n%s", o.Stdout)
	}
	return at["local"], at["remote"]
}

// TestPingpongRoCEv1 runs each ping-pong over RoCE v1. The other side must choose it too.
func TestPingpongRoCEv1(t *testing.T) {
	for _, service := range []string{"rc", "uc", "ud", "srq"} {
		t.Run(service, func(t *testing.T) {
			lan, iters := new(pipe.Switch), 50
			args := []string{service, "-n", fmt.Sprint(iters), "-s", "1000", "-g", "129"}
			server := startPingpong(t.Context(), lan, append(args, "--addr", "10.0.0.1/24")...)
			client := startPingpong(t.Context(), lan, append(args, "--addr", "10.0.0.2/24", "10.0.0.1")...)
			for _, done := range []<-chan clitest.Outcome{client, server} {
				if o := <-done; o.Code != 0 || o.Stderr != "" || !strings.Contains(o.Stdout, fmt.Sprint(iters, " iters")) {
					t.Errorf("exit code %d, stderr %q, stdout:\n%s", o.Code, o.Stderr, o.Stdout)
				}
			}
		})
	}
}

func TestPingpongRC(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"", "-e"} {
		for _, family := range []struct{ name, server, client, to string }{
			{"IPv4", "10.0.0.1/24", "10.0.0.2/24", "10.0.0.1"},
			{"IPv6", "fd00::1/64", "fd00::2/64", "fd00::1"},
		} {
			for _, size := range []int{1, 1024, 1025, 4096, 100000, 1 << 20} {
				t.Run(fmt.Sprint(family.name, flags, size), func(t *testing.T) {
					lan, iters := new(pipe.Switch), 50
					args := append(strings.Fields(flags), "-c", fmt.Sprint("-s", size), fmt.Sprint("-n", iters), "-r3")
					server := startServer(t.Context(), lan, append(args, "--addr", family.server)...)
					client := startServer(t.Context(), lan, append(args, "--addr", family.client, family.to)...)
					cl, cr := checkPingpong(t, <-client, size, iters)
					sl, sr := checkPingpong(t, <-server, size, iters)
					if cl != sr || cr != sl {
						t.Errorf("client: local %s, remote %s; server: local %s, remote %s", cl, cr, sl, sr)
					}
				})
			}
		}
	}
}

// TestPingpongServices runs the ping-pongs other than rc.
func TestPingpongServices(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"uc -s 1", "uc -s 100000", "uc -s 5000 -m 4096", "ud -s 1", "ud -s 4096", "ud",
		"srq -s 5000", "srq -q 3 -r 3", "srq -q 256 -e"} {
		for _, net := range []string{"10.0.0.%d/24", "fd00::%d/64"} {
			t.Run(fmt.Sprintf(service+" "+net, 1), func(t *testing.T) {
				lan := new(pipe.Switch)
				args := append(strings.Fields(service), "-c", "-n300", "--addr")
				to, _, _ := strings.Cut(fmt.Sprintf(net, 1), "/")
				server := startPingpong(t.Context(), lan, append(args, fmt.Sprintf(net, 1))...)
				client := startPingpong(t.Context(), lan, append(args, fmt.Sprintf(net, 2), to)...)
				size := 4096
				if args[0] == "ud" {
					size = 2048
				}
				if args[1] == "-s" {
					fmt.Sscan(args[2], &size)
				}
				checkPingpong(t, <-client, size, 300)
				checkPingpong(t, <-server, size, 300)
			})
		}
	}
}

func TestPingpongTooLargeForADatagram(t *testing.T) {
	lan, err := pipe.New(&pipe.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	o := <-startPingpong(t.Context(), lan, "ud", "--addr", "10.0.0.1/24")
	if o.Code != cli.ExitUsage || !strings.Contains(o.Stderr, "--size 2048") || !strings.Contains(o.Stderr, "1024") {
		t.Errorf("%+v", o)
	}
}

// TestPingpongServerFollowsTheClientsFamily uses a server whose first address has the other family.
func TestPingpongServerFollowsTheClientsFamily(t *testing.T) {
	lan := new(pipe.Switch)
	server := startServer(t.Context(), lan, "-n10", "--addr", "10.0.0.1/24", "--addr", "fd00::1/64")
	client := startServer(t.Context(), lan, "-n10", "--addr", "fd00::2/64", "fd00::1")
	if _, remote := checkPingpong(t, <-client, 4096, 10); !strings.HasSuffix(remote, " fd00::1") {
		t.Errorf("the client's peer is %s", remote)
	}
	checkPingpong(t, <-server, 4096, 10)
}

func TestPingpongChkNeedsBothSides(t *testing.T) {
	lan := new(pipe.Switch)
	server := startServer(t.Context(), lan, "-n10", "-c", "--addr", "10.0.0.1/24")
	client := startServer(t.Context(), lan, "-n10", "--addr", "10.0.0.2/24", "10.0.0.1")
	checkPingpong(t, <-client, 4096, 10)
	if o := <-server; o.Code != 1 || !strings.Contains(o.Stderr, "invalid data in page 0") {
		t.Errorf("server: %+v", o)
	}
}

func TestPingpongRefusals(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"nobody there", []string{"10.0.0.1"}, "10.0.0.1"},
		{"no address of that family", []string{"fd00::1"}, "--addr"},
		{"no such GID", []string{"-g7", "10.0.0.1"}, "7"},
		{"no such port", []string{"-i2", "10.0.0.1"}, "PortNum 2"},
		{"path MTU too large", []string{"-m4096", "--mtu=1500"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			lan, err := pipe.New(&pipe.Config{MTU: 1500})
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" { // detected in the exchange with the peer
				go func() {
					defer cancel()
					o := <-startServer(ctx, lan, "--addr", "10.0.0.3/24", "10.0.0.2")
					if o.Code != 1 {
						t.Errorf("the peer: %+v", o)
					}
				}()
			}
			o := <-startServer(ctx, lan, append(test.args, "--addr", "10.0.0.2/24")...)
			if o.Code != 1 || strings.Count(o.Stderr, "\n") != 1 || !strings.Contains(o.Stderr, test.want) {
				t.Errorf("%+v", o)
			}
			if test.want == "" {
				<-ctx.Done()
			}
			cancel()
		})
	}
}

func TestPingpongInterruptedWhereverItWaits(t *testing.T) {
	t.Run("for a client", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server := startServer(ctx, new(pipe.Switch), "--addr", "10.0.0.1/24")
		cancel()
		checkInterrupted(t, <-server)
	})
	t.Run("for what a client says", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lan := new(pipe.Switch)
		server := startServer(ctx, lan, "--addr", "10.0.0.1/24")
		conn := dialServer(t, lan)
		if _, err := conn.Write([]byte("0000:0000")); err != nil {
			t.Fatal(err)
		}
		cancel()
		checkInterrupted(t, <-server)
	})
	t.Run("for a message", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lan := new(pipe.Switch)
		server := startServer(ctx, lan, "--addr", "10.0.0.1/24")
		conn := dialServer(t, lan)
		if _, err := conn.Write(dest{qpn: 1, gid: verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.2"))}.encode()); err != nil {
			t.Fatal(err)
		}
		if _, err := readDest(conn); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(done)); err != nil {
			t.Fatal(err)
		}
		cancel()
		checkInterrupted(t, <-server)
	})
}

func checkInterrupted(t *testing.T, o clitest.Outcome) {
	t.Helper()
	if o.Code != 1 || o.Stderr != "softrnic: interrupted\n" {
		t.Errorf("%+v", o)
	}
}

// dialServer connects to the server's TCP port from a node with address 10.0.0.2.
func dialServer(t *testing.T, lan *pipe.Switch) io.ReadWriter {
	t.Helper()
	f := node.Flags{Addr: []node.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.2/24")}}}
	n, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	conn, err := n.Host.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:18515"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestPingpongDistrustsItsPeer(t *testing.T) {
	for what, said := range map[string]string{
		"other text":      strings.Repeat("x", destLen),
		"no NUL":          strings.Repeat("0", destLen),
		"a QPN too large": "0000:1000000:00000:00000000000000000000ffff0a000002\x00",
		"no GID":          "0000:000001:000000:00000000000000000000000000000000\x00",
	} {
		t.Run(what, func(t *testing.T) {
			lan := new(pipe.Switch)
			server := startServer(t.Context(), lan, "--addr", "10.0.0.1/24")
			if _, err := dialServer(t, lan).Write([]byte(said)); err != nil {
				t.Fatal(err)
			}
			if o := <-server; o.Code != 1 || strings.Count(o.Stderr, "\n") != 1 {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestDestOnTheWire(t *testing.T) {
	d := dest{lid: 0x12, qpn: 0x11, psn: 0xabcdef, gid: verbs.GIDFromAddr(netip.MustParseAddr("10.77.0.2"))}
	const wire = "0012:000011:abcdef:00000000000000000000ffff0a4d0002\x00"
	if got := string(d.encode()); got != wire {
		t.Errorf("encoded as %q, want %q", got, wire)
	}
	if got, err := parseDest([]byte(wire)); err != nil || got != d {
		t.Errorf("parsed as %v, %v", got, err)
	}
	if want := "LID 0x0012, QPN 0x000011, PSN 0xabcdef, GID ::ffff:10.77.0.2"; d.String() != want {
		t.Errorf("printed as %s, want %s", d, want)
	}
}

func FuzzParseDest(f *testing.F) {
	f.Add([]byte("0012:000011:abcdef:00000000000000000000ffff0a4d0002\x00"))
	f.Add([]byte(strings.Repeat(":", destLen)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDest(b)
		if err == nil && !strings.EqualFold(string(d.encode()), string(b)) {
			if again, err := parseDest(d.encode()); err != nil || again != d {
				t.Errorf("%q is %v, which is %v, %v", b, d, again, err)
			}
		}
	})
}

func TestCheckPages(t *testing.T) {
	const page = 4096
	fresh := func() []byte {
		buf := bytes.Repeat([]byte{filler}, 2*page+100)
		markPages(buf, page)
		return buf
	}
	if err := checkPages(fresh(), page, filler); err != nil {
		t.Error(err)
	}
	for at, want := range map[int]string{0: "page 0", 1: "page 0", page: "page 1", 2*page + 99: "page 2"} {
		buf := fresh()
		buf[at] ^= 0x40
		if err := checkPages(buf, page, filler); err == nil || !strings.Contains(err.Error(), "invalid data in "+want) {
			t.Errorf("byte %d changed: %v", at, err)
		}
	}
}
