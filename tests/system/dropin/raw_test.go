//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// rawEthernets are perftest's tools for raw packet QPs with their options, and the minimum number
// of frames that the server's QPs receive. The last one has one side, which creates flows and
// destroys them. Two others do not work in perftest 4.5. raw_ethernet_burst_lat sets a rate limit
// and then refuses it, and with -e nothing requests the first event.
var rawEthernets = []struct {
	args   string
	frames uint64
	long   bool
}{
	{"raw_ethernet_bw -n 500", 500, false},
	// Flows of IPv4 and UDP.
	{"raw_ethernet_bw -n 500 -s 512 -j 10.9.0.2 -J 10.9.0.1 -k 4000 -K 5000", 500, true},
	{"raw_ethernet_lat -n 500", 500, false},
	{"raw_ethernet_fs_rate -n 100", 0, false},
}

// TestRawEthernet runs perftest's tools that exchange Ethernet frames, over shared memory: sockets
// have no frames.
func TestRawEthernet(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/raw_ethernet_bw", "perftest")
	build(t)
	for _, p := range rawEthernets {
		if p.long && os.Getenv("SOFTRNIC_LONG") == "" {
			continue
		}
		t.Run(p.args, func(t *testing.T) {
			programs.Ran(t, p.args, links[0].name()+" (Ethernet)")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			server, client := pair(t, 0)
			macs := map[*node]string{server: mac(t, server), client: mac(t, client)}
			// stdbuf makes the program write line by line. When it prints the head of its table, it
			// is ready to receive.
			side := func(n, peer *node, role, options string) []string {
				return append(strings.Fields("-oL "+options), "-d", "softrnic0", "--"+role, "-B", macs[n], "-E", macs[peer])
			}
			var said proc.Output
			s := server.program(ctx, t, "stdbuf", side(server, client, "server", p.args)...)
			s.Stdout, s.Stderr = &said, &said
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- s.Wait() }()
			if p.frames > 0 {
				if err := said.WaitFor("#bytes", ended); err != nil {
					t.Fatalf("%v\n%s", err, said.String())
				}
				if out, err := client.program(ctx, t, "stdbuf", side(client, server, "client", p.args)...).CombinedOutput(); err != nil {
					t.Errorf("the client: %v\n%s", err, out)
				}
			}
			if err := <-ended; err != nil {
				t.Fatalf("the server: %v\n%s", err, said.String())
			}
			if n := server.counted(t)["raw_rcvd_frames"]; n < p.frames {
				t.Errorf("the server's QPs received %d frames, want %d at least\n%s", n, p.frames, said.String())
			}
		})
	}
}

// mac returns the MAC address of a node's device, from its link-local address.
func mac(t *testing.T, n *node) string {
	t.Helper()
	out, err := n.program(t.Context(), t, "ibv_devinfo", "-v", "-d", "softrnic0").CombinedOutput()
	if err != nil {
		t.Fatalf("ibv_devinfo: %v\n%s", err, out)
	}
	_, gid, ok := bytes.Cut(out, []byte("GID[  0]:"))
	gid, _, _ = bytes.Cut(gid, []byte(","))
	addr, err := netip.ParseAddr(string(bytes.TrimSpace(gid)))
	if !ok || err != nil {
		t.Fatalf("there is no GID 0: %v\n%s", err, out)
	}
	b := addr.As16()
	return net.HardwareAddr{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}.String()
}
