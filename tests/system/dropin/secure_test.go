//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// setUpNAT creates the namespaces of a server, 10.46.0.2, and of a client, 10.47.0.2, behind a
// router with a NAT, which forwards UDP to the server's port 51820 and nothing else. For each line
// of input, the client moves to 10.48.0.2. The IPv6 addresses lead nowhere: the C library refuses
// IPv6 addresses in text if a machine has none.
const setUpNAT = `set -e
unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
for p in $server $client; do while [ "$(readlink /proc/$p/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done; done
ip link set lo up
ip link add eth1 type veth peer name eth0 netns $server
ip link add eth2 type veth peer name eth0 netns $client
ip address add 10.46.0.1/24 dev eth1
ip address add 10.47.0.1/24 dev eth2
ip address add 10.48.0.1/24 dev eth2
ip link set eth1 up
ip link set eth2 up
nsenter --net --target $server sh -ec 'ip link set lo up; ip address add 10.46.0.2/24 dev eth0; ip address add fd46::2/64 dev eth0 nodad; ip link set eth0 up'
nsenter --net --target $client sh -ec 'ip link set lo up; ip address add 10.47.0.2/24 dev eth0; ip address add fd47::2/64 dev eth0 nodad; ip link set eth0 up; ip route add default via 10.47.0.1'
echo 1 >/proc/sys/net/ipv4/ip_forward
nft 'table ip t {
chain out { type nat hook postrouting priority 100; oifname "eth1" masquerade random; }
chain through { type filter hook forward priority 0; policy drop; ct state established accept; iifname "eth2" udp dport 51820 accept; }
}'
echo $server $client
while read line; do
nsenter --net --target $client sh -ec 'ip address add 10.48.0.2/24 dev eth0; ip route replace default via 10.48.0.1; ip address del 10.47.0.2/24 dev eth0'
echo moved
done
kill $server $client`

// TestSecureThroughNAT runs unmodified programs of nobody, and NVMe, in two namespaces that have no
// network in common but UDP through a NAT. During a transfer the client's address changes, so that
// the NAT gives it another port, and the transfer does not fail.
func TestSecureThroughNAT(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/ip", "iproute2")
	needs(t, "/usr/sbin/nft", "nftables")
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	softrnic := filepath.Join(build(t), "softrnic")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	w := &network{dirs: [2]string{shared(t), shared(t)}}
	w.create(t, setUpNAT)

	const server, client = 0, 1
	var keys, addrs [2]string
	for side := range keys {
		out, err := w.command(ctx, side, softrnic, "key", filepath.Join(w.dirs[side], "node.key")).Output()
		if err != nil || len(strings.Fields(string(out))) != 2 {
			t.Fatalf("softrnic key: %v: %s", err, out)
		}
		keys[side], addrs[side] = strings.Fields(string(out))[0], strings.Fields(string(out))[1]
	}
	peers := [2]string{"client=" + keys[client], "server=" + keys[server] + "@10.46.0.2"}
	node := func(side int) []string {
		return []string{"--secure", filepath.Join(w.dirs[side], "node.key"), "--peer", peers[side], "--addr",
			fmt.Sprintf("10.9.0.%d/24", 1+side), "--allow", []string{"client", "server"}[side]}
	}
	program := func(side int, args ...string) *exec.Cmd {
		return w.command(ctx, side, slices.Concat([]string{softrnic, "run"}, node(side), []string{"--"}, args)...)
	}
	// between runs a server and a client. While they run, during is called.
	between := func(what string, during func(), args [2][]string) {
		serving := program(server, args[server]...)
		said, ended := proc.Start(t, serving)
		defer func() {
			if t.Failed() {
				t.Logf("%s: server:\n%s", what, said)
			}
		}()
		w.awaitPeer(ctx, t, softrnic, keys[server], func(s peerShown) bool { return true })
		answer, clientEnded := proc.Start(t, program(client, args[client]...))
		during()
		if err := <-clientEnded; err != nil {
			t.Errorf("%s: client: %v\n%s", what, err, answer)
			_ = serving.Process.Kill()
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: server: %v\n%s", what, err, said)
		}
	}
	for _, to := range []string{addrs[server], "10.9.0.1"} {
		between("rping to "+to, func() {}, [2][]string{{"rping", "-s", "-a", to, "-C", "20", "-S", "30000", "-V"},
			{"rping", "-c", "-a", to, "-C", "20", "-S", "30000", "-V"}})
	}
	t.Run("NVMe", func(t *testing.T) { disk(ctx, t, w, softrnic, keys[server], node) })
	between("ib_write_bw", func() {
		before := w.awaitPeer(ctx, t, softrnic, keys[server], func(s peerShown) bool { return s.Received > 4<<20 })
		if _, err := fmt.Fprintln(w.stdin, "move"); err != nil {
			t.Error(err)
		}
		if err := w.said.WaitFor("moved", w.ended); err != nil {
			t.Error(err)
		}
		after := w.awaitPeer(ctx, t, softrnic, keys[server], func(s peerShown) bool { return s.Endpoint != before.Endpoint })
		w.awaitPeer(ctx, t, softrnic, keys[server], func(s peerShown) bool { return s.Received > after.Received+4<<20 })
	}, [2][]string{{"ib_write_bw", "-R", "-F", "-D", "4"}, {"ib_write_bw", "-R", "-F", "-D", "4", "10.9.0.1"}})
}

// peerShown is the only peer of the server, as softrnic peers --json shows it.
type peerShown struct {
	Endpoint string
	Received uint64
}

// awaitPeer waits until the server runs and its peer is as is says.
func (w *network) awaitPeer(ctx context.Context, t *testing.T, softrnic, server string, is func(peerShown) bool) peerShown {
	t.Helper()
	for {
		out, err := w.command(ctx, 0, softrnic, "peers", "--json").Output()
		for d := json.NewDecoder(bytes.NewReader(out)); err == nil; { // nobody may have other nodes
			var shown struct {
				PublicKey string
				Peers     []peerShown
			}
			if d.Decode(&shown) != nil {
				break
			}
			if shown.PublicKey == server && len(shown.Peers) == 1 && is(shown.Peers[0]) {
				return shown.Peers[0]
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("softrnic peers: %v: %s", err, out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// disk writes through the tunnel to a disk at the server, whose public key is given, and reads it.
// node returns the flags of a side's node.
func disk(ctx context.Context, t *testing.T, w *network, softrnic, key string, node func(side int) []string) {
	const server, client = 0, 1
	target := w.command(ctx, server, slices.Concat([]string{softrnic, "nvme", "serve", "--namespace",
		filepath.Join(w.dirs[server], "disk") + ",size=8M", "--nqn", "nqn.2014-08.org.softrnic:nat"}, node(server))...)
	said, ended := proc.Start(t, target)
	defer func() {
		if t.Failed() {
			t.Logf("target:\n%s", said)
		}
	}()
	w.awaitPeer(ctx, t, softrnic, key, func(peerShown) bool { return true })
	in, out := filepath.Join(w.dirs[client], "in"), filepath.Join(w.dirs[client], "out")
	data := bytes.Repeat([]byte("a disk behind a NAT, "), 300_000)[:6<<20]
	if err := os.WriteFile(in, data, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"write", "10.9.0.1", in}, {"read", "10.9.0.1", out, "--size", fmt.Sprint(len(data))}} {
		args = slices.Concat([]string{softrnic, "nvme"}, args, node(client))
		if text, err := w.command(ctx, client, args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, text)
		}
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of NVMe differ from the %d that were written, or %v", len(got), len(data), err)
	}
	if err := target.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	<-ended
}
