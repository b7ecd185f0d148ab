//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

const (
	stunnelAddr = "10.77.0.1" // the bridge's
	tlsName     = "stunnel.test"
)

// tlsLab is a Linux peer with siw, whose iWARP port has stunnel in front of it, and a SoftRNIC.
type tlsLab struct {
	peer    *peer.Peer
	program string // softrnic
	dir     string
}

// write writes a file that only its owner may read, and returns its name.
func (l tlsLab) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(l.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// issue writes a certificate and its key, and returns their names.
func (l tlsLab) issue(t *testing.T, ca *stacktest.Authority, name string, addrs ...string) (cert, key string) {
	t.Helper()
	c, k := ca.Issue(t, name, addrs...)
	return l.write(t, name+".pem", string(c)), l.write(t, name+".key", string(k))
}

// stunnel runs stunnel in the peer's namespace until the test ends.
func (l tlsLab) stunnel(ctx context.Context, t *testing.T, config string) *process {
	t.Helper()
	cert := filepath.Join(l.dir, tlsName)
	file := l.write(t, "stunnel.conf", fmt.Sprintf("foreground = yes\npid =\noutput = /dev/stderr\nsslVersion = TLSv1.3\n"+
		"[rdma]\ncert = %s.pem\nkey = %s.key\nCAfile = %s\nverifyChain = yes\n%s", cert, cert, filepath.Join(l.dir, "ca.pem"), config))
	p := startProcess(t, l.peer.Netns.Command(ctx, "stunnel4", file))
	p.await(t, "Configuration successful")
	return p
}

// softrnic runs `softrnic rping` with TLS.
func (l tlsLab) softrnic(ctx context.Context, t *testing.T, args string) *process {
	t.Helper()
	return startProcess(t, l.peer.Netns.Command(ctx, l.program, strings.Fields(fmt.Sprintf(
		"rping --transport iwarp --counters --log-level debug --link tap:softrnic0,bridge=%s --mac %v --addr %s --tls-ca %s %s",
		l.peer.Netns.Bridge, softrnicMAC, softrnicCIDR4, filepath.Join(l.dir, "ca.pem"), args))...))
}

// TestTLS: stunnel is the TLS of Linux's siw, as server and as client. Certificates of both sides
// are verified, and --allow names that of stunnel. What SoftRNIC sends and receives is TLS and
// nothing in clear.
func TestTLS(t *testing.T) {
	gate.System(t)
	if _, err := exec.LookPath("stunnel4"); err != nil {
		t.Fatal("there is no stunnel4: install it")
	}
	l := tlsLab{peer: cmPeer(t, 2, verbs.IWARP), program: softrnicProgram(t), dir: t.TempDir()}
	l.fixBridge(t)
	ca := stacktest.NewAuthority(t)
	l.write(t, "ca.pem", string(ca.PEM))
	l.issue(t, ca, tlsName, stunnelAddr)
	cert, key := l.issue(t, ca, "softrnic.test", softrnicAddr4.String())
	own := "--tls " + cert + "," + key
	t.Run("client", func(t *testing.T) { l.client(t, own) })
	t.Run("server", func(t *testing.T) { l.server(t, own) })
}

// fixBridge gives the bridge the MAC address that it has now. Otherwise that changes with the
// ports, and the peer, which connects to the bridge's IP address, has another in its cache for a
// minute.
func (l tlsLab) fixBridge(t *testing.T) {
	t.Helper()
	script := fmt.Sprintf("ip link set %[1]s address $(ip -o link show %[1]s | sed 's/.*ether \\([^ ]*\\).*/\\1/')", l.peer.Netns.Bridge)
	if out, err := l.peer.Netns.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.peer.Run(t, "/bin/ip neigh flush all")
}

// client runs SoftRNIC as the client of siw's server behind stunnel.
func (l tlsLab) client(t *testing.T, own string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tunnel := l.stunnel(ctx, t, fmt.Sprintf("accept = %s:7500\nconnect = %v:7174\nrequireCert = yes\n", stunnelAddr, l.peer.Addr4()))
	clearSide := filepath.Join(l.peer.Netns.Dir, "clear.pcapng")
	capturing := startProcess(t, l.peer.Netns.Command(ctx, "dumpcap", "-q", "-i", l.peer.Netns.Bridge, "-w", clearSide))
	capturing.await(t, "File:")
	sizes := []int{64}
	if gate.InLong() {
		sizes = append(sizes, 65000)
	}
	for _, size := range sizes {
		serving, err := l.peer.Start(fmt.Sprintf("rping -s -a %v -p 7174 -v -S %d", l.peer.Addr4(), size))
		if err != nil {
			t.Fatal(err)
		}
		l.peer.Run(t, untilListens("rping"))
		secret := filepath.Join(t.TempDir(), "tls.pcapng")
		client := l.softrnic(ctx, t, fmt.Sprintf("-c -a %s -p 7500 -S %d -v -V -C 50 --capture %s %s", stunnelAddr, size, secret, own))
		client.wait(t)
		if n := bytes.Count(client.stdout.Bytes(), []byte("ping data: rdma-ping-")); n != 50 {
			t.Errorf("%d bytes: softrnic prints %d pings, want 50\n%s\n%s", size, n, tailOf(client.stderr.String(), 3000),
				tailOf(tunnel.stderr.String(), 2000))
		}
		client.noDamage(t)
		if code, err := serving.Wait(ctx); err != nil || code != 0 || t.Failed() {
			t.Errorf("rping -s: exit status %d, %v\n%.2000s\n%s", code, err, serving.Output(), l.peer.Run(t, "dmesg | tail -20"))
		}
		tlsCaptured(t, secret)
	}
	capturing.interrupt(t)
	if seen, err := os.ReadFile(clearSide); err != nil || !bytes.Contains(seen, []byte("rdma-ping-")) {
		t.Errorf("between stunnel and siw no data is seen, %v: the search is wrong", err)
	}
	traced(t, clearSide, 3)
	// In TLS 1.3 the client has sent MPA's request before it is refused. stunnel closes its socket
	// with that unread, so that TCP may reset the connection before the alert arrives.
	refused := l.softrnic(ctx, t, fmt.Sprintf("-c -a %s -p 7500 -C 1", stunnelAddr))
	if err := <-refused.ended; err == nil || !strings.Contains(refused.stderr.String(), "remote error: tls: ") &&
		!strings.Contains(refused.stderr.String(), "connection reset by peer") {
		t.Errorf("without a certificate: %v\n%s", err, refused.stderr.String())
	}
	if other := l.softrnic(ctx, t, fmt.Sprintf("-c -a %s -p 7500 -C 1 --tls-name other.test %s", stunnelAddr, own)); <-other.ended == nil ||
		!strings.Contains(other.stderr.String(), "not other.test") {
		t.Errorf("for another name: %s", other.stderr.String())
	}
	tunnel.interrupt(t)
}

// server runs SoftRNIC as the server of siw's client, which connects through stunnel.
func (l tlsLab) server(t *testing.T, own string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tunnel := l.stunnel(ctx, t, fmt.Sprintf("client = yes\naccept = %s:7501\nconnect = %v:7502\ncheckHost = softrnic.test\n",
		stunnelAddr, softrnicAddr4))
	for _, size := range []int{64, 65000} {
		serving := l.softrnic(ctx, t, fmt.Sprintf("-s -p 7502 -v -S %d --allow %s %s", size, tlsName, own))
		serving.await(t, "msg=listening")
		out, code, err := rpingClient(ctx, l.peer, fmt.Sprintf("rping -c -a %s -p 7501 -S %d -v -V -C 50", stunnelAddr, size))
		if err != nil || code != 0 {
			t.Errorf("rping -c: exit status %d, %v", code, err)
		}
		serving.wait(t)
		if n := bytes.Count(serving.stdout.Bytes(), []byte("server ping data: rdma-ping-")); n != 50 {
			t.Errorf("%d bytes: softrnic prints %d pings, want 50", size, n)
		}
		if t.Failed() {
			t.Logf("rping -c: %.2000s\nstunnel: %s\nsoftrnic: %s\n%s", out, tailOf(tunnel.stderr.String(), 2000),
				tailOf(serving.stderr.String(), 3000), l.peer.Run(t, "dmesg | tail -20"))
			return
		}
		serving.noDamage(t)
	}
	serving := l.softrnic(ctx, t, "-s -p 7502 --allow other.test "+own)
	serving.await(t, "msg=listening")
	out, code, err := refusedRping(ctx, l.peer, fmt.Sprintf("rping -c -a %s -p 7501 -v -C 1", stunnelAddr))
	if err != nil || code == 0 || !strings.Contains(out, "connect error ") {
		t.Errorf("a peer that is not allowed: exit status %d, %v: %s\nstunnel: %s\nsoftrnic: %s\n%s", code, err, out,
			tailOf(tunnel.stderr.String(), 2000), tailOf(serving.stderr.String(), 3000), l.peer.Run(t, "dmesg | tail -20"))
	}
	serving.await(t, "not allowed")
	serving.interrupt(t)
	tunnel.interrupt(t)
}

// tlsCaptured checks that a capture has records of TLS 1.3 and nothing in clear.
func tlsCaptured(t *testing.T, file string) {
	t.Helper()
	out, err := exec.Command("tshark", "-r", file, "-d", "tcp.port==7500,tls", "-Y", "tls.app_data").CombinedOutput()
	if n := bytes.Count(out, []byte("TLSv1.3")); err != nil || n < 100 {
		t.Errorf("%d packets with TLS 1.3, %v", n, err)
	}
	traced(t, file, 3) // it says that TLS was left out
	seen, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"data": "rdma-ping-", "a part of the data": "ABCDEFGHIJKLMNOP",
		"MPA's request": "MPA ID Req Frame", "MPA's reply": "MPA ID Rep Frame"} {
		if bytes.Contains(seen, []byte(text)) {
			t.Errorf("%s is seen in clear", what)
		}
	}
}
