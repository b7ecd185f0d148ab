//go:build linux && amd64

package dropin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestAbsentHosts: over the kernel's sockets, a client connects to a host that answers a while
// after the client has begun to look for it. A host that never answers, and one without a route,
// are reported as Linux reports them, long before retries would end.
func TestAbsentHosts(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	if os.Getuid() != 0 {
		t.Skip("hiding a host needs root")
	}
	softrnic := command(t)
	const node = " --link kernel:veth0"
	for _, c := range []struct {
		server, client string
		hidden         time.Duration
		absent         []string // what the client says then, one of these
	}{
		{softrnic + " rping -s -P" + node, softrnic + " rping -c -C 1 -a HOST" + node, 1200 * time.Millisecond,
			[]string{"timed out", "no route to host"}},
		{softrnic + " nvme serve --namespace memory,size=1M --nqn nqn.2014-08.org.softrnic:absent" + node,
			softrnic + " nvme discover HOST" + node, 1200 * time.Millisecond,
			[]string{"timed out", "no route to host"}},
		// It waits for two seconds, and the kernel asks once a second.
		{softrnic + " run -- rping -s -P", softrnic + " run -- rping -c -C 1 -a HOST", 200 * time.Millisecond,
			[]string{"RDMA_CM_EVENT_ADDR_ERROR, error -110", "RDMA_CM_EVENT_ADDR_ERROR, error -113"}},
	} {
		t.Run(strings.ReplaceAll(c.client, softrnic, "softrnic"), func(t *testing.T) {
			t.Parallel() // they wait
			w := newNetwork(t)
			// as runs a command of root in the network namespace of a side.
			as := func(side int, args ...string) error {
				cmd := exec.Command("nsenter", append([]string{"--net", "--target", w.pids[side]}, args...)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("%v: %w\n%s", args, err, out)
				}
				return nil
			}
			// answers says whether the server's host answers ARP.
			answers := func(does bool) error {
				ignore := map[bool]string{false: "8", true: "0"}[does]
				return as(0, "sh", "-c", "echo "+ignore+" >/proc/sys/net/ipv4/conf/all/arp_ignore")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			server := w.command(ctx, 0, strings.Fields(c.server)...)
			said, ended := proc.Start(t, server)
			client := func(host string) (string, time.Duration, error) {
				began := time.Now()
				out, err := w.command(ctx, 1, strings.Fields(strings.ReplaceAll(c.client, "HOST", host))...).CombinedOutput()
				return string(out), time.Since(began), err
			}
			for {
				out, _, err := client(addresses[0])
				if err == nil {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("the server is not there: %v\n%s\nserver:\n%s", err, out, said.String())
				}
			}
			if err := errors.Join(answers(false), as(1, "ip", "neighbour", "flush", "dev", "veth0")); err != nil {
				t.Fatal(err)
			}
			shown := make(chan error, 1)
			time.AfterFunc(c.hidden, func() { shown <- answers(true) })
			if out, took, err := client(addresses[0]); err != nil || took < c.hidden {
				t.Errorf("a host that answers after %v: %v after %v\n%s", c.hidden, err, took, out)
			}
			if err := <-shown; err != nil {
				t.Fatal(err)
			}
			// Without neighbours, RoCE's retries take minutes.
			const soon = 10 * time.Second
			out, took, err := client("10.44.0.99")
			told := slices.ContainsFunc(c.absent, func(text string) bool { return strings.Contains(out, text) })
			if err == nil || took > soon || !told {
				t.Errorf("a host that never answers: %v after %v\n%s", err, took, out)
			}
			out, took, err = client("192.0.2.1")
			if err == nil || took > soon || !strings.Contains(strings.ToLower(out), "network is unreachable") {
				t.Errorf("a host without a route: %v after %v\n%s", err, took, out)
			}
			cancel()
			<-ended
			endOthers(t, w.pids[0])
		})
	}
}
