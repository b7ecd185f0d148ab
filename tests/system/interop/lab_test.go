//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// TestKernelAgainstKernel runs ping-pongs between two kernels. If this test fails, so do all others
// here.
func TestKernelAgainstKernel(t *testing.T) {
	gate.Long(t)
	for _, mtu := range []struct{ link, path int }{{1500, 1024}, {4200, 4096}} {
		peers := peer.Boot(t, peer.Config{ID: 2, MTU: mtu.link}, peer.Config{ID: 3, MTU: mtu.link})
		t.Logf("result: peers have %s", peers[0].Versions)
		for _, family := range []struct {
			name string
			addr func(*peer.Peer) netip.Addr
		}{{"IPv4", (*peer.Peer).Addr4}, {"IPv6", (*peer.Peer).Addr6}} {
			t.Run(fmt.Sprintf("%s/MTU %d", family.name, mtu.path), func(t *testing.T) {
				server, client := peers[0], peers[1]
				pingpong := func(p *peer.Peer) string {
					return fmt.Sprintf("ibv_rc_pingpong -c -e -d rxe0 -m %d -s 100000 -n 20 -g %d", mtu.path,
						gidIndex(t, p, family.addr(p)))
				}
				serving, err := server.Start(pingpong(server))
				if err != nil {
					t.Fatal(err)
				}
				server.Run(t, untilPingpongListens)
				// The server listens on IPv4 only, so the two exchange their numbers over IPv4.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				out, code, err := client.Exec(ctx, pingpong(client)+" "+server.Addr4().String())
				if err != nil || code != 0 {
					t.Errorf("the client ended with %d, %v\n%s", code, err, out)
				}
				if code, err := serving.Wait(ctx); err != nil || code != 0 {
					t.Errorf("the server ended with %d, %v\n%s", code, err, serving.Output())
				}
			})
		}
	}
}

// untilPingpongListens waits, in a peer, for a server of ibv_rc_pingpong.
const untilPingpongListens = "until ss -Hltn sport = :18515 | grep -q .; do sleep 0.05; done"

// gidIndex returns the index of an address in the GID table of a peer's rxe0.
func gidIndex(t *testing.T, p *peer.Peer, addr netip.Addr) int {
	t.Helper()
	b := addr.As16()
	for i, gid := range strings.Fields(p.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/gids/[0-7] 2>/dev/null; true")) {
		if g, err := netip.ParseAddr(gid); err == nil && g.As16() == b {
			return i
		}
	}
	t.Fatalf("peer %d has no GID %v", p.ID, addr)
	return 0
}
