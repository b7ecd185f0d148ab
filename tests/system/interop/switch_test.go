//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// TestSwitch connects three nodes to one switch: two virtual machines, whose networks are unix
// sockets of QEMU, and a node on a segment in shared memory. Switch and node run as nobody. At the
// same time, each machine communicates with the node, and one with the other: rping over rxe and
// over siw, and ping-pongs over rxe.
func TestSwitch(t *testing.T) {
	gate.System(t)
	program := softrnicProgram(t)
	peers := peer.Boot(t, peer.Config{ID: 44, Stream: true}, peer.Config{ID: 94, Stream: true})
	runtimeDirectoryOfNobody(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	start := func(args string) *process {
		return startProcess(t, exec.CommandContext(ctx, "setpriv", asNobody(program, args)...))
	}
	lan := start(fmt.Sprintf("switch stream:%s stream:%s shm --mtu %d", peers[0].Socket(), peers[1].Socket(), peers[0].MTU))
	lan.await(t, "port=3")
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			for _, p := range peers {
				useTransport(t, p, transport)
			}
			capture := filepath.Join(forNobody(t), "capture.pcapng")
			node := start(fmt.Sprintf("serve --log-level info --counters --link shm --addr %s --mtu %d --capture %s", softrnicCIDR4,
				peers[0].MTU, capture))
			node.await(t, "msg=serving")
			run := func(p *peer.Peer, command string) {
				out, code, err := rpingClient(ctx, p, command) // or another program
				if err != nil || code != 0 {
					// A rping over siw between the machines has not ended once: what its connection waits for.
					t.Errorf("peer %d: %s: exit status %d, %v\n%.2000s\n%s", p.ID, command, code, err, out, p.Run(t, "ss -tnie; ip -s link show eth0"))
				}
			}
			// serves runs a client of the second peer against a server of the first.
			serves := func(server, listens, client string) {
				serving, err := peers[0].Start(server)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = serving.Kill() }()
				run(peers[0], listens)
				run(peers[1], client)
				if code, err := serving.Wait(ctx); err != nil || code != 0 {
					t.Errorf("%s: exit status %d, %v\n%.2000s\n%s", server, code, err, serving.Output(), peers[0].Run(t, "ss -tnie; ip -s link show eth0"))
				}
			}
			const pings = "rping -c -S 20000 -C 50 -V -a "
			pingpong := func(p *peer.Peer) string {
				return fmt.Sprintf("ibv_rc_pingpong -d rxe0 -m 1024 -s 20000 -n 50 -g %d ", gidIndex(t, p, p.Addr4()))
			}
			var jobs sync.WaitGroup
			for _, p := range peers {
				if transport == verbs.RoCEv2 {
					ping := pingpong(p) + softrnicAddr4.String()
					jobs.Go(func() { run(p, ping) })
				}
				jobs.Go(func() { run(p, pings+softrnicAddr4.String()) })
			}
			to := peers[0].Addr4().String()
			if transport == verbs.RoCEv2 {
				server, client := pingpong(peers[0])+"-c", pingpong(peers[1])+"-c "+to
				jobs.Go(func() { serves(server, untilPingpongListens, client) })
			}
			jobs.Go(func() { serves("rping -s -a "+to+" -S 20000", untilRpingListens, pings+to) })
			jobs.Wait()
			if err := node.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			<-node.ended
			node.noDamage(t)
			traced(t, capture, 0)
			if transport == verbs.RoCEv2 && node.count("rcvd_pkts") == 0 {
				t.Errorf("the node has received no packets:\n%s", tailOf(node.stderr.String(), 2000))
			}
		})
	}
}
