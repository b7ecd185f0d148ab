//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// cmProgram is a pair of programs that use librdmacm. SERVER and CLIENT stand for their addresses.
type cmProgram struct {
	server, client string
	bytes          uint64 // minimum that each side's device sends and receives in total
	roceOnly       bool   // uses features that iWARP lacks
	connections    int    // minimum of each side; newer programs have one more, to warm up
	endless        bool   // the server does not end by itself
	clients        int    // number of runs in turn; 0 is one
	// TCP port on which a ready server listens, for a server that does not use librdmacm first.
	port int
	// The client's message if the server did not listen yet; the client is run again.
	early string
	// The client's message after more SENDs than the peer had receives for, which ends an iWARP
	// connection.
	unpaced string
	// The client waits without end if a datagram is lost, as may happen; it is killed and run again.
	lossy bool
}

var cmPrograms = []cmProgram{
	{server: "rping -s -a SERVER -v -V -C 20 -S 1000", client: "rping -c -a SERVER -v -V -C 20 -S 1000", bytes: 2 * 20 * 1000},
	{server: "rping -s -a SERVER -P -S 1000", client: "rping -c -a SERVER -V -C 5 -S 1000", bytes: 2 * 5 * 1000, endless: true, clients: 3},
	{server: "ucmatose -b SERVER -c 4 -C 20 -S 1000", client: "ucmatose -s SERVER -c 4 -C 20 -S 1000", bytes: 2 * 4 * 20 * 1000},
	{server: "ucmatose -b SERVER -c 2 -C 10 -m", client: "ucmatose -s SERVER -c 2 -C 10 -m -t 8", bytes: 2 * 2 * 10 * 100},
	{server: "rdma_server -s SERVER", client: "rdma_client -s SERVER", bytes: 2 * 16},
	{server: "rdma_xserver -c r", client: "rdma_xclient -s SERVER -c r", bytes: 2 * 16},
	{server: "rdma_xserver -c x", client: "rdma_xclient -s SERVER -c x", bytes: 2 * 16, roceOnly: true},
	{server: "cmtime -b SERVER -c 20", client: "cmtime -s SERVER -c 20", connections: 20, endless: true},
	{server: "cmtime -L -b SERVER -C 127.0.0.1 -p 7472 -c 20", client: "cmtime -b CLIENT -C 127.0.0.1 -p 7472 -c 20", connections: 20,
		port: 7472, roceOnly: true}, // it moves its QPs to RTS itself, which on iWARP only the connection manager can
	{server: "udaddy -b SERVER -C 20 -S 500", client: "udaddy -s SERVER -C 20 -S 500", bytes: 2 * 20 * 500, roceOnly: true},
	{server: "mckey -m 239.1.2.3 -b SERVER -C 20 -S 500", client: "mckey -m 239.1.2.3 -s -b CLIENT -C 20 -S 500", bytes: 20 * 500,
		roceOnly: true},
}

func TestConnectionManager(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	runAll(t, cmPrograms)
}

// TestQperf runs qperf's tests that use librdmacm, in the long run all of them. Without librdmacm,
// qperf addresses a peer by its LID alone, which does not exist over Ethernet. qperf uses one host
// name for TCP and RDMA, so it needs the machine's addresses. Its server sends the port to the
// client before it listens there, and ends on the client's request.
func TestQperf(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/qperf", "qperf")
	var list []cmProgram
	tests := []string{"rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_fetch_add_mr"}
	if os.Getenv("SOFTRNIC_LONG") != "" {
		tests = append(tests, "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "ver_rc_compare_swap",
			"ver_rc_fetch_add")
	}
	for _, test := range tests {
		p := cmProgram{server: "qperf", client: "qperf SERVER -t 1 -cm 1 " + test + " quit", bytes: 10000, port: 19765,
			early: "Event rejected"}
		if test == "rc_bw" || test == "rc_bi_bw" { // the receiving side may get no processor for a while
			p.unpaced = "WR flush failure"
		}
		list = append(list, p)
	}
	runOver(t, links[1:], list)
}

// runAll runs programs over each link, with each wire protocol that they support.
func runAll(t *testing.T, list []cmProgram) { runOver(t, links, list) }

// runOver runs programs over the links, with each wire protocol that they support.
func runOver(t *testing.T, over []endpoints, list []cmProgram) {
	build(t) // may take minutes on a busy machine: before the time of a program begins
	for i, p := range list {
		media := mediaOf(over, &p)
		for j, m := range media {
			if !turn(i, j, len(media)) {
				continue
			}
			t.Run(strings.Join([]string{m.link, m.transport, p.client}, " "), func(t *testing.T) {
				programs.Ran(t, strings.TrimSuffix(p.client, " quit"), fmt.Sprintf("%s (%s)", m.name(), m.called))
				p.runOn(t, m)
			})
		}
	}
}

// mediaOf returns the links, with each wire protocol that a program supports.
func mediaOf(over []endpoints, p *cmProgram) (media []cmMedium) {
	for _, link := range over {
		media = append(media, cmMedium{link, "roce", "RoCEv2"})
		if !p.roceOnly {
			media = append(media, cmMedium{link, "iwarp", "iWARP"})
		}
	}
	return media
}

// runOn runs the programs on a medium.
func (p *cmProgram) runOn(t *testing.T, m cmMedium) {
	t.Helper()
	p.runWith(t, m, [2][]string{})
}

// runWith runs the programs on a medium, with additional environments for the server and the
// client.
func (p *cmProgram) runWith(t *testing.T, m cmMedium, env [2][]string) {
	t.Helper()
	server, client := m.pair(t)
	server.env = append(append(server.env, "SOFTRNIC_TRANSPORT="+m.transport), env[0]...)
	client.env = append(append(client.env, "SOFTRNIC_TRANSPORT="+m.transport), env[1]...)
	for _, n := range []*node{server, client} {
		n.env = append(n.env, "SOFTRNIC_TRACE="+n.counters+".trace")
	}
	p.run(t, m.endpoints, server, client)
	for _, n := range []*node{server, client} {
		if p.connections == 0 {
			break
		}
		transport := strings.TrimSuffix(m.called, "v2")
		if got, err := programs.Connected(n.counters+".trace", transport); err != nil || got < p.connections {
			t.Errorf("%s: %d connections over %s, want %d at least (%v)", n.counters, got, transport, p.connections, err)
		}
	}
}

// cmMedium is a link and a wire protocol.
type cmMedium struct {
	endpoints
	transport string // value of SOFTRNIC_TRANSPORT
	called    string
}

// A server for all addresses serves both wire protocols.
func TestListenerOfBothTransports(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	for _, transport := range []string{"roce", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			server, client := links[0].pair(t)
			client.env = append(client.env, "SOFTRNIC_TRANSPORT="+transport)
			p := cmProgram{server: "rping -s -C 5 -S 1000", client: "rping -c -a SERVER -V -C 5 -S 1000", bytes: 2 * 5 * 1000}
			p.run(t, links[0], server, client)
			if sent := client.counted(t)["iwarp_xmit_bytes"]; sent > 0 != (transport == "iwarp") {
				t.Errorf("%d bytes were sent over iWARP", sent)
			}
		})
	}
}

// again reports whether the client is to be run again, given its output.
func (p *cmProgram) again(said string, client *node) bool {
	return p.early != "" && strings.Contains(said, p.early) ||
		p.unpaced != "" && strings.Contains(said, p.unpaced) && slices.Contains(client.env, "SOFTRNIC_TRANSPORT=iwarp")
}

// run runs the programs on the nodes of a link.
func (p *cmProgram) run(t *testing.T, link endpoints, server, client *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	host := func(addr string) string { h, _, _ := strings.Cut(addr, "/"); return h }
	command := func(ctx context.Context, n *node, line string) *exec.Cmd {
		args := strings.Fields(strings.NewReplacer("SERVER", host(link.server), "CLIENT", host(link.client)).Replace(line))
		return n.program(ctx, t, args[0], args[1:]...)
	}
	runClient := func() (out []byte, again bool, err error) {
		ctx := ctx
		if p.lossy {
			one, cancel := context.WithTimeout(ctx, patience()/4)
			defer cancel()
			ctx = one
		}
		out, err = command(ctx, client, p.client).CombinedOutput()
		return out, err != nil && (ctx.Err() != nil || p.again(string(out), client)), err
	}
	server.env = append(server.env, "SOFTRNIC_LOG=debug")
	s := command(ctx, server, p.server)
	said, ended := proc.Start(t, s)
	ready := "rdma_cm listens"
	switch {
	case strings.HasPrefix(p.server, "mckey"):
		ready = "RDMA_CM_EVENT_MULTICAST_JOIN"
	case strings.HasPrefix(p.server, "udpong"):
		ready = "rsocket is bound"
	}
	var err error
	if p.port != 0 {
		err = listens(p.port, ended)
	} else {
		err = said.WaitFor(ready, ended)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", p.server, err, said.String())
	}
	for range max(p.clients, 1) {
		out, again, err := runClient()
		for tries := 10; again && tries > 0 && ctx.Err() == nil; tries-- {
			out, again, err = runClient()
		}
		if err != nil {
			_ = s.Process.Kill()
			<-ended
			t.Fatalf("%s: %v\n%s\n%s:\n%s", p.client, err, out, p.server, said.String())
		}
	}
	sides := map[string]*node{"client": client}
	if p.endless {
		_ = s.Process.Signal(syscall.SIGTERM)
		<-ended
	} else {
		sides["server"] = server
		if err := <-ended; err != nil {
			t.Fatalf("%s: %v\n%s", p.server, err, said.String())
		}
	}
	for side, n := range sides {
		c := n.counted(t)
		if sum := 4*(c["port_xmit_data"]+c["port_rcv_data"]) + c["iwarp_xmit_bytes"] + c["iwarp_rcv_bytes"]; sum < p.bytes {
			t.Errorf("the %s's device carried %d bytes, want %d at least: %v", side, sum, p.bytes, c)
		}
	}
}
