//go:build linux

package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// wgNode is a node with a key in a file, which nobody owns.
type wgNode struct {
	file   string
	key    wireguard.SecretKey
	public wireguard.PublicKey
}

func newWGNode(t *testing.T, name string) wgNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := wgNode{file: filepath.Join(dir, name), key: wireguard.NewPrivateKey()}
	n.public = n.key.Public()
	for _, err := range []error{os.WriteFile(n.file, []byte(n.key.Encode()), 0o600), os.Chown(n.file, 65534, 65534), os.Chmod(dir, 0o711)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestWireGuard: Linux's WireGuard is the peer of two SoftRNICs of nobody, and forwards between
// them. It pings them, and rping runs between them over both transports and both IP versions. A
// third party that captures all packets sees nothing of it in clear. A pre-shared key protects one
// of the tunnels.
func TestWireGuard(t *testing.T) {
	gate.System(t)
	program := softrnicProgram(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	runtimeDirectoryOfNobody(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	server, client, third := newWGNode(t, "server"), newWGNode(t, "client"), newWGNode(t, "third")
	kernelKey, shared := wireguard.NewPrivateKey(), wireguard.NewPrivateKey()
	config := fmt.Sprintf("[Interface]\nPrivateKey = %s\nListenPort = 51820\n"+
		"[Peer]\nPublicKey = %v\nAllowedIPs = 10.88.0.1/32, fd88::1/128\nEndpoint = 10.77.0.1:7001\n"+
		"[Peer]\nPublicKey = %v\nPresharedKey = %s\nAllowedIPs = 10.88.0.3/32, fd88::3/128\n"+
		"[Peer]\nPublicKey = %v\nAllowedIPs = 10.88.0.4/32\n",
		kernelKey.Encode(), server.public, client.public, shared.Encode(), third.public)
	if err := p.Put(ctx, "/tmp/wg0.conf", []byte(config)); err != nil {
		t.Fatal(err)
	}
	p.Run(t, "set -e; modprobe wireguard; /bin/ip link add wg0 mtu 1420 type wireguard; wg setconf wg0 /tmp/wg0.conf; "+
		"/bin/ip addr add 10.88.0.2/24 dev wg0; /bin/ip addr add fd88::2/64 dev wg0; /bin/ip link set wg0 up; "+
		"echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	defer p.Run(t, "/bin/ip link del wg0; echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")

	outside := filepath.Join(p.Netns.Dir, "outside.pcapng")
	capturing := startProcess(t, p.Netns.Command(ctx, "dumpcap", "-q", "-i", p.Netns.Bridge, "-w", outside))
	capturing.await(t, "File:")

	start := func(args string) *process {
		return startProcess(t, p.Netns.Command(ctx, "setpriv", asNobody(program, args)...))
	}
	kernelsKey := kernelKey.Public().String()
	node := start(fmt.Sprintf("serve --log-level info --counters --secure %s --secure-port 7001 --peer kernel=%s --addr 10.88.0.1/24 "+
		"--addr fd88::1/64", server.file, kernelsKey))
	node.await(t, "msg=serving")
	p.Run(t, "ping -c 3 -W 5 10.88.0.1 && ping -c 3 -W 5 fd88::1")

	settings := filepath.Join(filepath.Dir(client.file), "client.conf")
	text := fmt.Sprintf("[Interface]\nPrivateKey = %s\nAddress = 10.88.0.3/24, fd88::3/64\n[Peer]\nPublicKey = %s\nPresharedKey = %s\n"+
		"Endpoint = 10.77.0.2:51820\nAllowedIPs = 10.88.0.0/24, fd88::/64\n", client.key.Encode(), kernelsKey, shared.Encode())
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(settings, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "inside")
	for i, to := range []string{"10.88.0.1 --transport rocev2", "10.88.0.1 --transport iwarp", "fd88::1 --transport rocev2",
		"fd88::1 --transport iwarp"} {
		rping := start(fmt.Sprintf("rping -c -v -C 50 -S 20000 --secure %s --capture %s%d.pcapng -a %s", settings, inside, i, to))
		rping.wait(t)
		if n := strings.Count(rping.stdout.String(), "ping data: rdma-ping-"); n != 50 {
			t.Errorf("%s: %d pings, want 50: %s", to, n, tailOf(rping.stderr.String(), 1000))
		}
	}
	if err := node.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-node.ended
	node.noDamage(t)

	wgStream(ctx, t, p, third, kernelKey.Public())
	if out := p.Run(t, "wg show wg0 latest-handshakes"); strings.Contains(out, "\t0\n") {
		t.Errorf("a peer has had no handshake:\n%s", out)
	}

	if err := capturing.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-capturing.ended
	wgCaptured(t, outside, inside+"0.pcapng")
	for i := range 4 {
		traced(t, fmt.Sprintf("%s%d.pcapng", inside, i), 0)
	}
	if os.Getenv("SOFTRNIC_REPORT") == "1" {
		for from, to := range map[string]string{outside: wgOutside, inside + "0.pcapng": wgInside} {
			if out, err := exec.Command("editcap", "-r", from, to, "1-80").CombinedOutput(); err != nil {
				t.Errorf("editcap: %v: %s", err, out)
			}
		}
	}
}

// The beginnings of captures that TestWireGuard writes with SOFTRNIC_REPORT=1: what a third party
// sees outside of the tunnels, and what a node sees inside.
const wgOutside, wgInside = "testdata/wireguard-outside.pcapng", "testdata/wireguard-inside.pcapng"

// TestWireGuardCaptures: the captures that are kept have no data in clear outside of the tunnels.
func TestWireGuardCaptures(t *testing.T) {
	gate.System(t)
	wgClear(t, wgOutside, wgInside)
}

// wgStream sends a TCP stream between the peer and a SoftRNIC in this process, and in the long run
// those of iperf3.
func wgStream(ctx context.Context, t *testing.T, p *peer.Peer, n wgNode, kernelKey wireguard.PublicKey) {
	t.Helper()
	var l *wireguard.Link
	if err := p.Netns.Do(func() (err error) {
		l, err = wireguard.Open(&wireguard.Config{PrivateKey: n.key, Peers: []wireguard.PeerConfig{{PublicKey: kernelKey,
			Endpoint: "10.77.0.2:51820"}}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.88.0.4/24"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	const size = 4 << 20
	sent := bytes.Repeat([]byte("a stream in a tunnel, "), size/22+1)[:size]
	listening, err := p.Start("nc -l -p 7007 </dev/null >/tmp/stream")
	if err != nil {
		t.Fatal(err)
	}
	p.Run(t, "until ss -Hltn sport = :7007 | grep -q .; do sleep 0.05; done")
	conn, err := host.DialStream(ctx, netip.AddrPort{}, netip.MustParseAddrPort("10.88.0.2:7007"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(sent); err != nil {
		t.Error(err)
	}
	// A stream that is closed sends its buffer for a limited time only.
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Error(err)
	}
	defer func() { _ = conn.Close() }()
	if code, err := listening.Wait(ctx); err != nil || code != 0 {
		t.Errorf("nc: exit status %d, %v: %s", code, err, listening.Output())
	}
	if out := p.Run(t, "head -c 20 /tmp/stream; wc -c </tmp/stream; rm /tmp/stream"); !strings.HasPrefix(out,
		string(sent[:20])) || !strings.Contains(out, fmt.Sprint(size)) {
		t.Errorf("the peer received %s", out)
	}
	if gate.InLong() {
		wgIperf3(ctx, t, p, host)
	}
}

// wgIperf3 runs iperf3 between this machine and the peer in both directions. The SoftRNIC relays
// its connections.
func wgIperf3(ctx context.Context, t *testing.T, p *peer.Peer, host *netstack.Host) {
	t.Helper()
	var l net.Listener
	if err := p.Netns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := host.DialStream(ctx, netip.AddrPort{}, netip.MustParseAddrPort("10.88.0.2:5201"))
			if err != nil {
				t.Error(err)
				_ = here.Close()
				return
			}
			pass := func(to interface {
				io.Writer
				CloseWrite() error
			}, from io.Reader) {
				_, _ = io.Copy(to, from)
				_ = to.CloseWrite()
			}
			go pass(there, here)
			go pass(here.(*net.TCPConn), there)
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// What is in buffers when the sender has sent all does not count as received.
	const size, received = 32 << 20, 1 << 20
	for _, direction := range []string{"", "-R"} {
		// A server that is still busy with the previous client refuses the next.
		serving, err := p.Start("iperf3 -s -1 -B 10.88.0.2")
		if err != nil {
			t.Fatal(err)
		}
		p.Run(t, "until ss -Hltn sport = :5201 | grep -q .; do sleep 0.05; done")
		args := strings.Fields("-c 127.0.0.1 -J -n " + fmt.Sprint(size) + " -p " + port + " " + direction)
		out, err := p.Netns.Command(ctx, "iperf3", args...).Output()
		var report struct {
			End struct {
				Received struct{ Bytes int } `json:"sum_received"`
			}
		}
		if err := errors.Join(err, json.Unmarshal(out, &report)); err != nil || report.End.Received.Bytes < received {
			t.Errorf("iperf3 %v: %d bytes received, want %d: %v\n%s", args, report.End.Received.Bytes, received, err,
				tailOf(string(out), 1000))
		}
		if code, err := serving.Wait(ctx); err != nil || code != 0 {
			t.Errorf("iperf3 -s: exit status %d, %v: %s", code, err, serving.Output())
		}
	}
}

// wgCaptured checks a capture outside of the tunnels against one inside.
func wgCaptured(t *testing.T, outside, inside string) {
	t.Helper()
	out, err := exec.Command("tshark", "-r", outside, "-Y", "udp and not wg and not dhcp and not mdns", "-c", "5").CombinedOutput()
	if err != nil {
		t.Errorf("tshark: %v: %s", err, out)
	}
	if text := string(out); strings.Contains(text, "UDP") || strings.Contains(text, "RRoCE") {
		t.Errorf("packets that are not WireGuard's:\n%s", text)
	}
	if out, err := exec.Command("tshark", "-r", outside, "-Y", "wg.type == 4").Output(); err != nil || bytes.Count(out, []byte("\n")) < 1000 {
		t.Errorf("%d packets with data, %v", bytes.Count(out, []byte("\n")), err)
	}
	seen := wgClear(t, outside, inside)
	if bytes.Contains(seen, []byte("a stream in a tunnel")) {
		t.Error("outside of the tunnels, the stream is seen")
	}
}

// wgClear checks that what a capture inside has in clear is not in the one outside, which it
// returns.
func wgClear(t *testing.T, outside, inside string) []byte {
	t.Helper()
	var seen [2][]byte
	for i, name := range []string{outside, inside} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seen[i] = b
	}
	for what, clear := range map[string][]byte{
		"data":                 []byte("rdma-ping-"),
		"a part of the data":   []byte("ABCDEFGHIJKLMNOP"),
		"addresses of packets": {10, 88, 0, 3, 10, 88, 0, 1},
	} {
		if bytes.Contains(seen[0], clear) {
			t.Errorf("outside of the tunnels, %s are seen", what)
		}
		if !bytes.Contains(seen[1], clear) {
			t.Errorf("inside of the tunnel, %s are not seen: the search is wrong", what)
		}
	}
	return seen[0]
}
