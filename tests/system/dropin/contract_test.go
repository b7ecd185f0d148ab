//go:build linux && amd64

package dropin

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestContract runs testdata/contract.c, which describes its checks. Exceptions of a medium are
// listed.
func TestContract(t *testing.T) {
	gate.System(t)
	program := compile(t, "contract")
	const rawQPs, counters = "none: raw packet QPs", "none: counters"
	for link, lacks := range map[string][]string{
		"pipe":      {counters},
		"shm:lan":   {counters},
		"kernel:lo": {rawQPs, counters},
	} {
		t.Run(link, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			i := 0
			if strings.HasPrefix(link, "kernel") {
				i = 1
			}
			n, _ := pair(t, i)
			n.env = append(n.env, "SOFTRNIC_LINK="+link)
			out, err := n.program(ctx, t, program).Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			kept := 0
			for line := range strings.Lines(string(out)) {
				line = strings.TrimSpace(line)
				switch {
				case strings.HasPrefix(line, "ok: "):
					kept++
				case !slices.Contains(lacks, line):
					t.Error(line)
				}
			}
			t.Logf("%d promises are kept", kept)
			if kept < 70 {
				t.Errorf("it ended early:\n%s", out)
			}
		})
	}
}
