package perf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TestCongestion: with --congestion, packets that a queue marks are answered with CNPs, which slow
// down the sender. Without it no packet is marked. Both sides are in a VLAN.
func TestCongestion(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			t.Parallel()
			args := "perf write bw --loopback --iters 50 --warmup 1ms --link pipe,vlan=7 --impair out.rate=100mbit,out.ecn=10kb " +
				"--log-level debug --counters"
			if on {
				args += " --congestion"
			}
			code, _, stderr := program.Run(t.Context(), nil, strings.Fields(args)...)
			if code != cli.ExitOK {
				t.Fatalf("exit code %d, stderr %q", code, stderr)
			}
			for _, counter := range []string{"np_ecn_marked_roce_packets ", "np_cnp_sent ", "rp_cnp_handled "} {
				if strings.Contains(stderr, counter) != on {
					t.Errorf("%s is there: %t, want %t:\n%s", counter, !on, on, stderr)
				}
			}
			if !strings.Contains(stderr, "link=pipe0.7") {
				t.Errorf("no VLAN:\n%s", stderr)
			}
		})
	}
}
