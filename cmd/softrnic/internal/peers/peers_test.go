package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/wireguard"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/devinfo"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/rping"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/serve"
)

var program = clitest.Program(func() any {
	return new(struct {
		Peers   Command         `cmd:""`
		Serve   serve.Command   `cmd:""`
		Rping   rping.Command   `cmd:""`
		Devinfo devinfo.Command `cmd:""`
	})
})

// keyFile writes a new private key to a file.
func keyFile(t *testing.T, dir, name string) (file string, public wireguard.PublicKey) {
	t.Helper()
	key := wireguard.NewPrivateKey()
	file = filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(key.Encode()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, key.Public()
}

// TestSecure runs rping between two nodes with --secure, one configured by flags and the other by a
// file, over both transports, and shows their peers.
func TestSecure(t *testing.T) {
	dir := t.TempDir()
	own, client := keyFile(t, dir, "client")
	key := wireguard.NewPrivateKey()
	server := key.Public()
	port := 1024 + rand.N(30000)
	file := filepath.Join(dir, "server")
	if err := os.WriteFile(file, fmt.Appendf(nil, "[Interface]\nPrivateKey = %s\nListenPort = %d\nAddress = 10.7.0.1/24\n[Peer]\n"+
		"# Name = client\nPublicKey = %v\nAllowedIPs = 10.7.0.2/32\n", key.Encode(), port, client), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := program.Go(ctx, nil, nil, "serve", "--secure", file)
	defer func() {
		cancel()
		if o := <-served; o.Code != cli.ExitOK {
			t.Errorf("serve: exit code %d: %s", o.Code, o.Stderr)
		}
	}()
	if code, _, stderr := program.Run(t.Context(), nil, "devinfo", "--secure", own); code != cli.ExitUsage ||
		!strings.Contains(stderr, "there is no peer") {
		t.Errorf("without a peer: exit code %d: %s", code, stderr)
	}
	await(t, "the server runs", func() bool {
		code, _, _ := program.Run(t.Context(), nil, "peers")
		return code == cli.ExitOK
	})
	if code, _, stderr := program.Run(t.Context(), nil, "devinfo", "--secure", file); code != cli.ExitFailed ||
		!strings.Contains(stderr, "another process uses this key") {
		t.Errorf("with the server's key: exit code %d: %s", code, stderr)
	}
	flags := []string{"--secure", own, "--peer", fmt.Sprintf("server=%v@127.0.0.1:%d", server, port), "--addr", "10.7.0.2/24"}
	for _, transport := range []string{"rocev2", "iwarp"} {
		for _, to := range []string{server.Addr().String(), "10.7.0.1"} {
			args := append([]string{"rping", "-c", "-a", to, "-C", "3", "--transport", transport}, flags...)
			if code, stdout, stderr := program.Run(t.Context(), nil, args...); code != cli.ExitOK {
				t.Errorf("%s to %s: exit code %d: %s%s", transport, to, code, stdout, stderr)
			}
		}
	}
	code, stdout, stderr := program.Run(t.Context(), nil, "peers")
	if code != cli.ExitOK || !strings.Contains(stdout, "client  "+client.Addr().String()+"  127.0.0.1:") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	var n status.Tunnel
	code, stdout, stderr = program.Run(t.Context(), nil, "peers", "--json")
	if err := json.Unmarshal([]byte(stdout), &n); code != cli.ExitOK || err != nil || n.PublicKey != server || len(n.Peers) != 1 ||
		n.Peers[0].Name != "client" || n.Peers[0].Received == 0 || time.Since(n.Peers[0].Handshake) > time.Minute {
		t.Errorf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	// A node that the server does not know.
	stranger, _ := keyFile(t, dir, "stranger")
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if code, stdout, _ := program.Run(ctx, nil, "rping", "-c", "-a", server.Addr().String(), "--secure", stranger, "--peer",
		fmt.Sprintf("%v@127.0.0.1:%d", server, port)); code == cli.ExitOK {
		t.Errorf("a stranger was served: %s", stdout)
	}
}

// await waits until something is true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not yet: ", what)
		}
	}
}

// TestErrors: an error says what is wrong with which flag.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	own, public := keyFile(t, dir, "own")
	_, other := keyFile(t, dir, "other")
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	readable := filepath.Join(dir, "readable")
	if err := os.WriteFile(readable, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	peer := other.String()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--secure /no/such --peer " + peer, cli.ExitFailed, "/no/such"},
		{"--secure " + bad + " --peer " + peer, cli.ExitFailed, "bad: not a key"},
		{"--secure " + readable + " --peer " + peer, cli.ExitFailed, "others may read or write it (mode 0644): use chmod 600"},
		{"--secure " + own + " --peer " + public.String(), cli.ExitFailed, "it has the key of this node itself"},
		{"--secure " + own + " --peer " + peer + "," + peer, cli.ExitFailed, "two peers with its key"},
		{"--secure " + own + " --peer x", cli.ExitUsage, "not a public key"},
		{"--secure " + own + " --peer " + peer + "@host:x", cli.ExitUsage, "endpoint"},
		{"--secure " + own + " --peer " + peer + "@no.such.invalid", cli.ExitFailed, "no.such.invalid"},
		{"--secure " + own + " --peer " + peer + " --link shm", cli.ExitUsage, "--link shm: --secure uses"},
		{"--secure " + own + " --peer " + peer + " --mac 02:00:00:00:00:01", cli.ExitUsage, "--mac"},
		{"--peer " + peer, cli.ExitUsage, "--peer: only with --secure"},
		{"--secure-port 7", cli.ExitUsage, "--secure-port: only with --secure"},
	} {
		code, stdout, stderr := program.Run(t.Context(), nil, append([]string{"devinfo"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "secret") && !strings.Contains(c.args, "secret") {
			t.Errorf("%s: exit code %d, want %d: %s%s, want %q", c.args, code, c.code, stdout, stderr, c.want)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if code, _, stderr := program.Run(t.Context(), nil, "peers"); code != cli.ExitFailed || !strings.Contains(stderr, "no node") {
		t.Errorf("without nodes: exit code %d: %s", code, stderr)
	}
}

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }

// TestAllowPeers: a node that allows one peer, by its name or key, rejects the other.
func TestAllowPeers(t *testing.T) {
	dir := t.TempDir()
	server, serverKey := keyFile(t, dir, "server")
	friend, friendKey := keyFile(t, dir, "friend")
	other, otherKey := keyFile(t, dir, "other")
	port := 1024 + rand.N(30000)
	for _, allowed := range []string{"friend", friendKey.String()} {
		s := program.Start(t, nil, fmt.Sprintf("rping -s -P -d --secure %s --secure-port %d --peer friend=%v,%v --allow %s",
			server, port, friendKey, otherKey, allowed))
		s.Await(t, &s.Err, "msg=listening")
		for own, want := range map[string]int{friend: cli.ExitOK, other: cli.ExitFailed} {
			code, _, stderr := program.Run(t.Context(), nil, "rping", "-c", "-C", "1", "-a", serverKey.Addr().String(), "--secure", own,
				"--peer", fmt.Sprintf("%v@127.0.0.1:%d", serverKey, port))
			if code != want || want != cli.ExitOK && !strings.Contains(stderr, "REJECTED") {
				t.Errorf("%s: exit code %d: %s", filepath.Base(own), code, stderr)
			}
		}
		s.Stop()
		s.Wait(t)
	}
	for allowed, want := range map[string]string{"stranger": "no peer has this name", "10.0.0.0/33": "must be an address"} {
		code, _, stderr := program.Run(t.Context(), nil, "devinfo", "--secure", server, "--peer", friendKey.String(), "--allow", allowed)
		if code != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("--allow %s: exit code %d: %s", allowed, code, stderr)
		}
	}
}
