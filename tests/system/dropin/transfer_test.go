//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// A transfer is one of testdata/transfer.c between two processes.
type transfer struct {
	server     string // the last argument of each
	client     string
	status     int    // of the client
	says       string // the client's output
	mayMissEnd bool   // the server may not learn of the end
	kill       string // the side that is killed when the client writes, or ""
}

// atOnce is longer than the time in which a peer is notified of the end, and shorter than the
// timeouts by which it would detect it.
const atOnce = 5 * time.Second

// run runs a transfer. It fails if a side does not end, or if the server is not notified
// immediately of the client's end.
func (x transfer) run(t *testing.T, program string, link endpoints, transport string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, client := link.pair(t)
	server.env, client.env = append(server.env, "SOFTRNIC_TRANSPORT="+transport), append(client.env, "SOFTRNIC_TRANSPORT="+transport)
	port := nextPort()
	addr, _, _ := strings.Cut(link.server, "/")
	args := func(side, how string) []string {
		return append([]string{side, addr, fmt.Sprint(port)}, strings.Fields(how)...)
	}
	s, c := server.program(ctx, t, program, args("server", x.server)...), client.program(ctx, t, program, args("client", x.client)...)
	said, ended := proc.Start(t, s)
	if err := said.WaitFor("listens", ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	var out proc.Output
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	clientEnded := make(chan error, 1)
	go func() { clientEnded <- c.Wait() }()
	if x.kill != "" {
		if err := out.WaitFor("writes", clientEnded); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if err := map[string]*exec.Cmd{"server": s, "client": c}[x.kill].Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	err := <-clientEnded
	left := time.Now()
	if status := c.ProcessState.ExitCode(); x.kill != "client" && status != x.status {
		t.Errorf("the client: %v, want exit status %d", err, x.status)
	}
	if !strings.Contains(out.String(), x.says) {
		t.Errorf("the client does not print %q", x.says)
	}
	if x.mayMissEnd {
		_ = s.Process.Kill()
	}
	err = <-ended
	if after := time.Since(left); after > atOnce && !x.mayMissEnd && x.kill != "server" {
		t.Errorf("the server ended %v after the client, want %v at most", after.Round(time.Millisecond), atOnce)
	}
	if notified := err == nil && strings.Contains(said.String(), "disconnected"); !notified && !x.mayMissEnd && x.kill != "server" {
		t.Errorf("the server: %v; it is not notified of the end of the connection", err)
	}
	t.Logf("the server ended %v after the client", time.Since(left).Round(time.Millisecond))
	if t.Failed() {
		t.Logf("client:\n%s\nserver:\n%s", out.String(), said.String())
	}
}

// transfers calls f with each link, with additional ones, and with each wire protocol.
func transfers(t *testing.T, f func(t *testing.T, program string, link endpoints, transport string), more ...endpoints) {
	program := compile(t, "transfer")
	for _, link := range slices.Concat(links, more) {
		for _, transport := range []string{"roce", "iwarp"} {
			t.Run(link.link+" "+transport, func(t *testing.T) { f(t, program, link, transport) })
		}
	}
}

// TestExitInTransfer: a program exits during a transfer, from main or from a signal handler that
// has interrupted it anywhere, even within a call of the libraries. It ends with its status. If it
// was not interrupted, its peer is notified.
func TestExitInTransfer(t *testing.T) {
	gate.System(t)
	transfers(t, func(t *testing.T, program string, link endpoints, transport string) {
		transfer{client: "exit", status: 7}.run(t, program, link, transport)
		// A thread that is interrupted while it holds something needed for the disconnection, such
		// as a ring of link shm, does not release it.
		for range 2 {
			transfer{client: "signal", status: 7, mayMissEnd: true}.run(t, program, link, transport)
		}
	})
}

// TestUnmappedUnderPeer: a program unmaps registered memory while another process writes to it. The
// writer gets an error, and the connection ends.
func TestUnmappedUnderPeer(t *testing.T) {
	gate.System(t)
	transfers(t, func(t *testing.T, program string, link endpoints, transport string) {
		transfer{server: "unmap", client: "error", says: "a write failed"}.run(t, program, link, transport)
	})
}

// TestPeerKilled: the peer of a killed program gets an error: immediately on shared memory and
// through a hub, after its retries on sockets. A peer that only waits is notified immediately,
// except on sockets without a hub, where nothing detects the end.
func TestPeerKilled(t *testing.T) {
	gate.System(t)
	hub := endpoints{
		link: "kernel:lo", server: "127.14.8.1", client: "127.14.8.2",
		env: []string{"SOFTRNIC_SHARED=1", "SOFTRNIC_COMMAND=" + command(t)},
	}
	transfers(t, func(t *testing.T, program string, link endpoints, transport string) {
		transfer{kill: "server", client: "fail", says: "a write failed"}.run(t, program, link, transport)
		if link.link == links[0].link || link.env != nil {
			transfer{kill: "client", client: "fail"}.run(t, program, link, transport)
		}
	}, hub)
}

// TestConnectionManagerCalls runs testdata/cm.c, which describes its checks.
func TestConnectionManagerCalls(t *testing.T) {
	gate.System(t)
	program := compile(t, "cm")
	for _, link := range []string{"pipe", "shm:cm"} {
		for _, transport := range []string{"roce", "iwarp"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n, _ := pair(t, 0)
			n.env = append(n.env, "SOFTRNIC_LINK="+link, "SOFTRNIC_TRANSPORT="+transport)
			if out, err := n.program(ctx, t, program).CombinedOutput(); err != nil {
				t.Errorf("%s %s: %v\n%s", link, transport, err, out)
			}
		}
	}
}
