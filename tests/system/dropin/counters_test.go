//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestCompletionCounters runs testdata/counters.c in two processes, over each link and with each
// wire protocol: both sides wait for completion counters only, and each operation counts once.
func TestCompletionCounters(t *testing.T) {
	gate.System(t)
	program := compile(t, "counters")
	for _, link := range links {
		for _, transport := range []string{"roce", "iwarp"} {
			t.Run(link.link+" "+transport, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				server, client := link.pair(t)
				addr, _, _ := strings.Cut(link.server, "/")
				port := fmt.Sprint(nextPort())
				for _, n := range []*node{server, client} {
					n.env = append(n.env, "SOFTRNIC_TRANSPORT="+transport)
				}
				said, ended := proc.Start(t, server.program(ctx, t, program, "server", addr, port))
				if err := said.WaitFor("listens", ended); err != nil {
					t.Fatalf("%v\n%s", err, said.String())
				}
				if out, err := client.program(ctx, t, program, "client", addr, port).CombinedOutput(); err != nil || string(out) != "counted\n" {
					t.Errorf("the client: %v\n%s", err, out)
				}
				if err := <-ended; err != nil {
					t.Errorf("the server: %v\n%s", err, said.String())
				}
			})
		}
	}
}
